"""Writing and importing module files: atomic, shared between processes, under private names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leapgen
from leapgen.files import write_atomic
from leapgen.runtime import assemble, host

ROOT = Path(__file__).resolve().parents[2]
SMALL = "from . import _host\nMODULE = _host.Shape(K=8, V=8, H=1, HV=1, P=1, R=0)\n"


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


def test_stored_modules_share_our_host(tmp_path: Path) -> None:
    path = assemble.store("small", SMALL, tmp_path)
    assert (path.parent / "_host.py").read_bytes() == Path(host.__file__).read_bytes()
    module = assemble.import_module(path)
    assert isinstance(module, host.Shape)
    assert assemble.import_module(path) is module
    assert assemble.store("small", SMALL, tmp_path) == path
    assert "small" not in sys.modules
    assert str(path.parent) not in sys.path


def test_another_host_stays_apart(tmp_path: Path) -> None:
    (tmp_path / "_host.py").write_text(assemble.host_text() + "\nVERSION = 2\n")
    (tmp_path / "small.py").write_text(SMALL)
    module = assemble.import_module(tmp_path / "small.py")
    assert type(module).__name__ == "Shape"
    assert not isinstance(module, host.Shape)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"small.py": SMALL}, r"expected _host\.py beside"),
        ({"small.py": "x = 1\n", "_host.py": ""}, "which defines MODULE"),
        ({"small.py": "x = y\n", "_host.py": ""}, "NameError: name 'y' is not defined"),
        ({"_host.py": ""}, "cannot be read"),
    ],
)
def test_what_is_no_module(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
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
    (tmp_path / "_host.py").write_text(assemble.host_text())
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
