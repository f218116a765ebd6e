"""Where and with what a result was measured."""

from __future__ import annotations

import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from leapgen.schedule.arch import Arch, ArchError

PACKAGES = ("leapgen", "torch", "triton", "tilelang")


def describe(device: torch.device, arch: Arch, command: str) -> dict[str, Any]:
    """Device, driver, versions, date (UTC) and command."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
        "arch": arch.name,
        "driver": _driver() if cuda else "",
        "cuda": (torch.version.cuda or "") if cuda else "",
        "python": platform.python_version(),
        "versions": {name: v for name in PACKAGES if (v := version(name))},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
    }


def version(package: str) -> str:
    """Of an installed distribution; empty if it is not one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def folder(device_name: str, arch: Arch) -> str:
    """The name under tuning/ that stands for a device: `h200`, or the arch's name for a CPU."""
    if not arch.gpu:
        return arch.name
    try:
        name = arch.device(device_name).match
    except ArchError:
        name = device_name
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else ""


def _processor() -> str:
    return f"{platform.machine()} CPU"
