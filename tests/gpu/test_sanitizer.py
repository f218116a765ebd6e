"""NVIDIA's memory, race and initialisation checkers over every kernel of a small case."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = shutil.which("compute-sanitizer")


@pytest.mark.skipif(CHECKER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
@pytest.mark.parametrize(
    ("spec", "dims"), [("gdn", (64, 32)), ("kda", (16, 24)), ("kda", (64, 32))]
)
def test_no_errors(
    tool: str, spec: str, dims: tuple[int, int], record_property: Callable[[str, object], None]
) -> None:
    command = [str(CHECKER), "--tool", tool, "--error-exitcode", "9", sys.executable]
    command += ["tests/gpu/sanitize.py", spec, *map(str, dims)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    summary = [line.strip("= ") for line in done.stdout.splitlines() if "SUMMARY" in line]
    record_property("summary", summary)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "all kernels ran" in done.stdout
    assert summary, done.stdout[-3000:]
