"""Tests on a real GPU, and a record of what they measured there (`--record FILE`)."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FAULTS = Path(__file__).resolve().parents[1] / "faults"
sys.path.insert(0, str(FAULTS))

from lab_fixtures import cache, make_lab  # noqa: E402

from leapgen import pipeline  # noqa: E402
from leapgen.files import write_atomic  # noqa: E402
from leapgen.runtime.module import present_arch  # noqa: E402

__all__ = ["arch", "cache", "make_lab"]

SPECS = ("gdn", "kda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if Path(str(item.fspath)).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(missing)


@pytest.fixture
def arch() -> Iterator[str]:
    """The present GPU's; tensors are made on it for the time of a test."""
    torch.set_default_device("cuda")
    yield present_arch().name
    torch.set_default_device(None)


# ---- the record

_OUTCOMES: list[dict[str, Any]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/gpu" in report.nodeid and (report.when == "call" or report.outcome != "passed"):
        entry = {"test": report.nodeid, "outcome": report.outcome, **dict(report.user_properties)}
        _OUTCOMES.append({**entry, "seconds": round(report.duration, 2)})


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--record", default=None)
    if not target or not torch.cuda.is_available():
        return
    chosen = {s: pipeline.compile(s, present_arch().name) for s in SPECS}
    data = {
        "command": "python -m pytest tests/gpu --record FILE",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": _driver(),
        "versions": _versions(),
        "modules": {c.source.path: c.source.digest for c in chosen.values()},
        "tests": _OUTCOMES,
    }
    write_atomic(Path(target), json.dumps(data, indent=1) + "\n")


def _driver() -> str:
    import subprocess

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def _versions() -> dict[str, str]:
    import importlib.metadata as metadata

    names = ("torch", "tilelang", "sympy", "numpy")
    return {"python": sys.version.split()[0], "cuda": str(torch.version.cuda)} | {
        n: metadata.version(n) for n in names
    }
