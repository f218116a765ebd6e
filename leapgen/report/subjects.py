"""What a verification runs: a module on this machine's CPU, its GPU, or in the emulator."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from leapgen import pipeline
from leapgen.diagnostics import MissingTool
from leapgen.emit.render import Source
from leapgen.runtime.host import Module
from leapgen.schedule.arch import Arch, arch_named


@dataclass(frozen=True)
class Subject:
    """A module that runs here, and how: `how` is `compiled`, a GPU's name, or `emulated`."""

    module: Module
    arch: Arch
    how: str
    device: str

    @property
    def emulated(self) -> bool:
        """Thread by thread on the CPU: functionally faithful, and slow."""
        return self.how == "emulated"


def subject(source: Source, arch: str) -> Subject:
    """The module of a source, on whatever runs its arch here. Errors: MissingTool."""
    row = arch_named(arch)
    prepare()
    module = pipeline.load(source)
    if not row.gpu:
        return Subject(module, row, "compiled", "cpu")
    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if dict(row.targets).get(capability) is not None:
            return Subject(module, row, torch.cuda.get_device_name(), "cuda")
    from leapgen.runtime.emulated import Emulator

    return Subject(module.with_backend(Emulator()), row, "emulated", "cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors of a verification are small: torch's threads cost more than they bring (measured on
    two cores: 0.8 s against 7 s for 100 operations at 16 x 24)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def prepare() -> None:
    """What every compilation needs. Errors: MissingTool.

    TileLang logs to stdout: each compilation, and the whole builder when one fails. Errors say
    it all. Its loggers set levels of their own, so that only the handlers can be told.
    """
    _need("g++", "install a C++17 compiler (Debian: apt-get install g++)")
    _need_tilelang()
    import tilelang  # noqa: F401  (importing it sets the loggers up)

    for handler in logging.getLogger("tilelang").handlers:
        handler.setLevel(logging.CRITICAL + 1)


def need_compiler(arch: Arch) -> None:
    """Errors: MissingTool, where nothing here compiles for an arch."""
    if arch.gpu:
        _need("nvcc", "install the CUDA toolkit (12.8 or newer; no GPU is needed)")


def _need(tool: str, remedy: str) -> None:
    if shutil.which(tool) is None:
        raise MissingTool(f"`{tool}` is not on PATH; {remedy}. `leapgen doctor` shows the rest")


def _need_tilelang() -> None:
    import importlib.util

    if importlib.util.find_spec("tilelang") is None:
        raise MissingTool(
            "tilelang is not installed; pip install 'leapgen[build]'. "
            "`leapgen doctor` shows the rest"
        )
