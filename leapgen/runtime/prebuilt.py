"""Compiled kernels of a bundle in the places of builders, prim_funcs and a compiler.

Copied into bundles as `_prebuilt.py`, beside `_bundled.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leapgen.runtime import host, launches


class BundleError(Exception):
    """A bundle, or something asked of it, was refused: what, expected, found."""


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter, as far as the host asks."""

    name: str


@dataclass(frozen=True)
class Built:
    """A compiled kernel, where the host expects a prim_func.

    binaries   target -> what the manifest says of its binary
    """

    params: tuple[Parameter, ...]
    binaries: Mapping[str, Mapping[str, Any]]
    buffer_map: tuple[()] = ()


class Kernels(dict[str, host.Kernel]):
    """All kernels of a module; those that are compiled are what it consists of for loops, as in
    `Module.prepare`."""

    known: set[str] | None = None

    def __iter__(self) -> Iterator[str]:
        return (n for n in super().__iter__() if self.known is None or n in self.known)


@dataclass(frozen=True)
class Loader:
    """A `host.Backend` that loads what is compiled; what is not, `other` compiles, if there is
    one."""

    folder: Path
    device: str
    other: host.Backend | None = None

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """See host.Backend. Errors: BundleError."""
        if not isinstance(func, Built):
            assert self.other is not None
            return self.other.compile(func, target, pass_configs)
        word = target if isinstance(target, str) else target["arch"]
        if word not in func.binaries:
            raise BundleError(f"target: expected one of {', '.join(func.binaries)}, found {word}")
        entry = func.binaries[word]
        path = self.folder / entry["file"]
        names = [p.name for p in func.params]
        try:
            if self.device == "cpu":
                return launches.on_cpu(path, entry, names)
            return launches.on_gpu(path, entry, names)
        except (OSError, AttributeError, launches.DriverError) as error:
            raise BundleError(f"{path}: cannot be loaded: {error}") from error
