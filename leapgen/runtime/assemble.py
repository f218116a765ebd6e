"""From generated text to a running module: files on disk, and their import.

A generated file stands beside a `_host.py` and may lie anywhere. TileLang reads the source of a
prim_func from its file, so modules are always files. Each folder becomes a package of a private
name; nothing is put on `sys.path`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from leapgen.diagnostics import LeapgenError
from leapgen.files import write_atomic
from leapgen.runtime import host

HOST_NAME = "_host.py"
_LOCK = threading.RLock()


class NotAModule(LeapgenError):
    """A file is not a generated module, or fails when it is imported."""


def host_text() -> str:
    """Content of the `_host.py` that belongs beside generated modules."""
    return Path(host.__file__).read_text(encoding="utf-8")


def cache_folder() -> Path:
    """Where modules that were not generated beforehand are kept, for the present user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "leapgen" / "modules"


def store(stem: str, text: str, folder: Path | None = None) -> Path:
    """Write a module's text with its host into a folder named by both contents; the file's path.

    Safe against other processes that store the same module.
    """
    beside = host_text()
    digest = hashlib.sha256(f"{text}\0{beside}".encode()).hexdigest()[:16]
    place = (folder or cache_folder()) / digest
    write_atomic(place / HOST_NAME, beside)
    write_atomic(place / f"{stem}.py", text)
    return place / f"{stem}.py"


def import_module(path: Path) -> host.Module:
    """The MODULE of a generated file, imported once a process.

    Errors: NotAModule.
    """
    path = path.resolve()
    package = f"_leapgen_{hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]}"
    name = f"{package}.{path.stem.replace('-', '_')}"
    with _LOCK:
        if name not in sys.modules:
            _package(package, path.parent)
            _execute(name, path)
        module: host.Module | None = getattr(sys.modules[name], "MODULE", None)
    if module is None:
        raise NotAModule(f"{path}: expected a generated module, which defines MODULE")
    return module


def _package(name: str, folder: Path) -> None:
    """A package for a folder, with its host: ours if the bytes are equal, so that the classes in
    signatures and `except` clauses are the same ones."""
    if name in sys.modules:
        return
    beside = folder / HOST_NAME
    if not beside.is_file():
        raise NotAModule(f"{folder}: expected {HOST_NAME} beside the generated modules")
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    if beside.read_bytes() == Path(host.__file__).read_bytes():
        sys.modules[f"{name}._host"] = host
    else:
        _execute(f"{name}._host", beside)
    package._host = sys.modules[f"{name}._host"]  # type: ignore[attr-defined]


def _execute(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NotAModule(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        del sys.modules[name]
        raise NotAModule(f"{path}: {type(error).__name__}: {error}") from error
    except OSError as error:
        del sys.modules[name]
        raise NotAModule(f"{path}: cannot be read: {error}") from error
