"""The README's walk-through, as a new user: its files, its commands, its error, in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROVED = "Proof: The native update equals the sub-steps"
BLOCK = re.compile(r"^<!-- walk-through -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every block that the README marks as part of the walk-through."""
    return BLOCK.findall((ROOT / "README.md").read_text())


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `leapgen` is this tree's command."""
    program = tmp_path / "bin" / "leapgen"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m leapgen "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_walk_through(tmp_path: Path, shell: dict[str, str]) -> None:
    found = blocks()
    assert [kind for kind, _ in found] == ["sh", "yaml", "sh", "text", "sh", "sh"]
    start, spec, ask, error, mend, build = (text for _, text in found)
    folder = tmp_path / "somewhere"
    folder.mkdir()

    done = run(start, folder, shell)
    assert done.returncode == 0, done.stderr
    assert PROVED in done.stdout

    (folder / "ebb.yaml").write_text(spec)
    done = run(ask, folder, shell)
    assert done.returncode == 1
    assert done.stderr == error
    assert "Traceback" not in done.stderr

    done = run(mend, folder, shell)
    assert done.returncode == 0, done.stderr
    assert PROVED in done.stdout

    done = run(build, folder, shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ checks passed, 0 failed", done.stdout, re.MULTILINE)
    modules = {p.relative_to(folder / "kernels").as_posix() for p in folder.rglob("ebb.py")}
    assert modules == {f"{arch}/ebb.py" for arch in ("cpu", "sm90", "sm100", "sm120")}
    assert not list(folder.rglob("*.tmp"))
    assert "ebb" not in {p.stem for p in (ROOT / "specs").glob("*.yaml")}
