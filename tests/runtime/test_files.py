"""Writing and importing module files: atomic, shared between processes, under private names."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leapgen
from leapgen import paths
from leapgen.files import write_atomic, write_folder
from leapgen.runtime import assemble, host

ROOT = Path(__file__).resolve().parents[2]
SMALL = "from . import _host\nMODULE = _host.Shape(K=8, V=8, H=1, HV=1, P=1, R=0)\n"
HOST = "_host/__init__.py"


def test_write_atomic(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.py"
    assert write_atomic(path, "one")
    before = path.stat().st_mtime_ns
    assert not write_atomic(path, "one")
    assert path.stat().st_mtime_ns == before
    assert write_atomic(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["file.py"]


def test_readers_see_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [c * 100_000 for c in "abcd"]
    write_atomic(path, texts[0])
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(write_atomic, path, text) for text in texts * 4]
        while not all(d.done() for d in done):
            assert path.read_text() in texts
    assert all(d.exception() is None for d in done)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomic(path, "text")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_write_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder"
    assert write_folder(path, {"a": "1", "b": "2"})
    (path / "__pycache__").mkdir()
    before = (path / "a").stat().st_mtime_ns
    assert not write_folder(path, {"a": "1", "b": "2"})
    assert (path / "a").stat().st_mtime_ns == before
    assert write_folder(path, {"a": "1", "c": "3"})
    assert {p.name: p.read_text() for p in path.iterdir()} == {"a": "1", "c": "3"}
    assert [p.name for p in path.parent.iterdir()] == ["folder"]


def test_a_folder_is_replaced_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    test_write_folder(tmp_path)


def test_a_killed_process_leaves_a_whole_folder(tmp_path: Path) -> None:
    """Killed at any moment; the next one also removes what is left beside it."""
    path = tmp_path / "folder"
    versions = [dict.fromkeys(("a", "b", "c"), c * 9999) for c in "xy"]
    script = (
        "import itertools, pathlib, sys; from leapgen.files import write_folder\n"
        "for c in itertools.cycle('xy'):\n"
        "    files = {name: c * 9999 for name in ('a', 'b', 'c')}\n"
        "    write_folder(pathlib.Path(sys.argv[1]), files)\n"
    )
    for wait in (0.0, 0.0103, 0.0217):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)])
        while not path.is_dir():
            assert process.poll() is None
        time.sleep(wait)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert {p.name: p.read_text() for p in path.iterdir()} in versions
        write_folder(path, {})
        assert [p.name for p in tmp_path.iterdir()] == ["folder"]
        path.rmdir()


def test_what_a_killed_process_left_goes_where_nothing_changes(tmp_path: Path) -> None:
    """But not what a living one is filling."""
    path = tmp_path / "folder"
    write_folder(path, {"a": "1"})
    left, held = tmp_path / ".folder.part-left", tmp_path / ".folder.part-held"
    for part in (left, held):
        part.mkdir()
        (part / "a").write_text("torn")
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert not write_folder(path, {"a": "1"})
    assert sorted(tmp_path.iterdir()) == [held, path]
    os.close(handle)
    assert not write_folder(path, {"a": "1"})
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", {"a": "1"})
    with pytest.raises(ValueError, match="null"):
        write_folder(tmp_path / "folder", {"a": "2", "\0": "no name of a file"})
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "a"]
    assert (tmp_path / "folder" / "a").read_text() == "1"


def test_stored_modules_share_our_host(tmp_path: Path) -> None:
    path = assemble.store("small", SMALL, tmp_path)
    assert paths.python_files(path.parent / paths.HOST) == paths.host_files()
    assert "pool.py" in paths.host_files()
    module = assemble.import_module(path)
    assert isinstance(module, host.Shape)
    assert assemble.import_module(path) is module
    assert assemble.store("small", SMALL, tmp_path) == path
    assert "small" not in sys.modules
    assert str(path.parent) not in sys.path


def test_another_host_stays_apart(tmp_path: Path) -> None:
    """Also if it differs in one of its files."""
    files = paths.host_files()
    write_folder(tmp_path / paths.HOST, {**files, "pool.py": files["pool.py"] + "VERSION = 2\n"})
    (tmp_path / "small.py").write_text(SMALL)
    module = assemble.import_module(tmp_path / "small.py")
    assert type(module).__name__ == "Shape"
    assert not isinstance(module, host.Shape)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"small.py": SMALL}, "expected _host/ beside"),
        ({"small.py": "x = 1\n", HOST: ""}, "which defines MODULE"),
        ({"small.py": "x = y\n", HOST: ""}, "NameError: name 'y' is not defined"),
        ({HOST: ""}, "cannot be read"),
        ({"small.py": SMALL, HOST: "from . import lost\n"}, "ImportError: .* 'lost'"),
    ],
)
def test_what_is_no_module(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        write_atomic(tmp_path / name, text)
    with pytest.raises(leapgen.LeapgenError, match=message):
        assemble.import_module(tmp_path / "small.py")


def test_the_package_is_light_and_has_one_version() -> None:
    script = (
        "import sys, leapgen\n"
        "assert leapgen.__version__\n"
        "heavy = {'torch', 'tilelang', 'sympy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == leapgen.__version__


def test_the_host_imports_torch_and_the_standard_library(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('leapgen', 'tilelang', 'numpy.typing', 'sympy'):\n"
        "    sys.modules[name] = None\n"
        "import _host\n"
    )
    write_folder(tmp_path / paths.HOST, paths.host_files())
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
