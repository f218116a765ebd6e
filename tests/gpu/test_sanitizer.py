"""NVIDIA's memory, race and initialisation checkers over every kernel of a small case."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = shutil.which("compute-sanitizer")
ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # torch asks the driver for each tensor
CASES = [
    ("gdn", (64, 32), "leapquant-int8"),
    ("kda", (16, 24), "leapquant-int8"),
    ("kda", (64, 32), "leapquant-int8"),
    ("gdn", (64, 32), "bf16-window"),
    ("kda", (64, 32), "int8-step"),
    ("gdn", (64, 32), "leap8"),
    ("kda", (64, 32), "leap5"),
    ("gdn", (64, 32), "leap4"),
    ("gdn", (64, 32), "leap4-levels"),
]


TUNED = [
    ("gdn", "leapquant-int8"),
    ("kda", "leapquant-int8"),
    ("rwkv7", "leapquant-int8"),
    ("deltaproduct", "leapquant-int8"),
    ("gla", "leapquant-int8"),
    ("gdn", "leapquant-int4"),
    ("gdn", "leap4"),
    ("gdn", "leap5"),
    ("gdn", "leap6"),
    ("gdn", "int8-step"),
    ("kda", "leap4"),
    ("kda", "leap5"),
]
needs_checker = pytest.mark.skipif(CHECKER is None, reason="compute-sanitizer is not installed")


@needs_checker
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
@pytest.mark.parametrize(("spec", "dims", "format"), CASES)
def test_no_errors(
    tool: str,
    spec: str,
    dims: tuple[int, int],
    format: str,
    record_property: Callable[[str, object], None],
) -> None:
    bare = ["bare"] if tool == "initcheck" else []
    check(tool, [spec, *map(str, dims), format, *bare], record_property)


@needs_checker
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize(("spec", "format"), TUNED)
def test_tuned_configs_have_no_errors(
    tool: str, spec: str, format: str, record_property: Callable[[str, object], None]
) -> None:
    check(tool, [spec, "tuned", format], record_property)


def check(tool: str, arguments: list[str], record_property: Callable[[str, object], None]) -> None:
    """The checker finds nothing in a run of `sanitize.py`; what it sums up is recorded."""
    command = [str(CHECKER), "--tool", tool, "--error-exitcode", "9", sys.executable]
    command += ["tests/gpu/sanitize.py", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, env=os.environ | ALONE
    )
    summary = [line.strip("= ") for line in done.stdout.splitlines() if "SUMMARY" in line]
    record_property("summary", summary)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "all kernels ran" in done.stdout
    assert summary, done.stdout[-3000:]
