"""The wheel: specs, templates and generated modules travel with the package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from leapgen import paths

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel and nothing else of leapgen."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("leapgen-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the unpacked wheel; the source tree is not on its path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "leapgen", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_builds_a_spec_from_another_folder(site: Path, tmp_path: Path) -> None:
    done = run(site, tmp_path, "build", "gdn", "--arch", "cpu,sm90")
    assert done.returncode == 0, done.stderr
    for arch in ("cpu", "sm90"):
        built = tmp_path / "generated" / arch / "gdn.py"
        assert built.read_bytes() == (ROOT / "generated" / arch / "gdn.py").read_bytes()
        shipped = site / "leapgen" / "_data" / "generated" / arch / "gdn.py"
        assert shipped.read_bytes() == built.read_bytes()
        hosts = [paths.python_files(file.parent / paths.HOST) for file in (built, shipped)]
        assert hosts == [paths.host_files()] * 2


def test_never_writes_into_the_package(site: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in site.rglob("*") if "__pycache__" not in p.parts}
    run(site, tmp_path, "build", "kda", "--arch", "cpu")
    after = {p: p.stat().st_mtime_ns for p in site.rglob("*") if "__pycache__" not in p.parts}
    changed = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    assert not {p for p in changed if p.is_file()}


def test_lists_what_it_ships(site: Path, tmp_path: Path) -> None:
    done = run(site, tmp_path, "list", "specs")
    assert done.returncode == 0, done.stderr
    assert "kda" in done.stdout
