"""Imports SGLang where neither a GPU nor its compiled packages are: what its modules import only to
have the names is stood in by empty modules. None of it is called by what the tests run."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

MISSING = (
    "flash_attn",
    "flashinfer",
    "gguf",
    "sgl_kernel",
    "torch_memory_saver",
    "torchcodec",
    "torchvision",
)


class _Named(type):
    """A class whose attributes are such classes again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - importlib asks the module itself

    def __getattr__(self, name: str) -> Any:
        return getattr(_Named("empty", (), {}), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line, so that an installed package is found before."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in MISSING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def installed() -> bool:
    return importlib.util.find_spec("sglang") is not None


def prepare() -> None:
    """Once, before anything of the engine is imported."""
    # These ask themselves whether image packages are there, and must find that they are not.
    for name in ("image_utils", "image_transforms", "image_processing_utils", "processing_utils"):
        importlib.import_module(f"transformers.{name}")
    sys.meta_path.append(_Finder())
