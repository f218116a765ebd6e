"""From generated text to a running module: files on disk, and their import.

A generated file stands beside the package `_host` and may lie anywhere. TileLang reads the source
of a prim_func from its file, so modules are always files. Each folder becomes a package of a
private name; nothing is put on `sys.path`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from leapgen import paths
from leapgen.diagnostics import LeapgenError
from leapgen.files import write_atomic, write_folder
from leapgen.runtime import host

_LOCK = threading.RLock()


class NotAModule(LeapgenError):
    """A file is not a generated module, or fails when it is imported."""


def cache_folder() -> Path:
    """Where modules that were not generated beforehand are kept, for the present user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "leapgen" / "modules"


def store(stem: str, text: str, folder: Path | None = None) -> Path:
    """Write a module's text with its host into a folder named by both contents; the file's path.

    Safe against other processes that store the same module.
    """
    beside = paths.host_files()
    contents = "\0".join((text, *beside.values()))
    place = (folder or cache_folder()) / hashlib.sha256(contents.encode()).hexdigest()[:16]
    write_folder(place / paths.HOST, beside)
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
    """A package for a folder, with its host: ours if the texts are equal, so that the classes in
    signatures and `except` clauses are the same ones."""
    if name in sys.modules:
        return
    beside = folder / paths.HOST
    if not (beside / "__init__.py").is_file():
        raise NotAModule(f"{folder}: expected {paths.HOST}/ beside the generated modules")
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    if paths.python_files(beside) == paths.host_files():
        sys.modules[f"{name}.{paths.HOST}"] = host
    else:
        _execute(f"{name}.{paths.HOST}", beside / "__init__.py")
    setattr(package, paths.HOST, sys.modules[f"{name}.{paths.HOST}"])


def _execute(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NotAModule(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        _forget(name)
        raise NotAModule(f"{path}: {type(error).__name__}: {error}") from error
    except OSError as error:
        _forget(name)
        raise NotAModule(f"{path}: cannot be read: {error}") from error


def _forget(name: str) -> None:
    """A module and those inside it, so that the next import starts anew."""
    for known in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
        del sys.modules[known]
