"""From a prim_func to something that can be launched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# The emitted C reads bits of floats through pointers of another type.
C_FLAGS = ["-O3", "-march=native", "-fno-strict-aliasing"]


class Backend(Protocol):
    """Turns a prim_func into a callable that takes its parameters in order."""

    @property
    def device(self) -> str:
        """Torch device type of the tensors it runs on."""

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """The callable. target: "c", or {"kind": "cuda", "arch": ...}."""


@dataclass(frozen=True)
class TileLang:
    """Compiles with TileLang: tvm_ffi on CUDA (torch's current stream), cython on `c`."""

    device: str

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """See Backend."""
        import tilelang

        cuda = self.device == "cuda"
        compiled: Callable[..., Any] = tilelang.compile(
            func,
            target=target,
            execution_backend="tvm_ffi" if cuda else "cython",
            # Kernels guard the indices that depend on data themselves.
            pass_configs={"tl.disable_safe_memory_legalize": True, **pass_configs},
            compile_flags=None if cuda else C_FLAGS,
        )
        return compiled


# Building parses a prim_func's source, which CPython 3.11 cannot do in several threads at once
# ("AST constructor recursion depth mismatch").
TRACING = threading.Lock()

# What TileLang raises while it builds, lowers or compiles a kernel.
BUILD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    NameError,
    AttributeError,
    AssertionError,
    OSError,
)


def shorten(text: str, limit: int = 1200) -> str:
    """Both ends of it: compiler messages can be thousands of lines long."""
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"


class Once:
    """A map whose values are made once, whatever the number of threads that ask."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value, made by the first thread that asks while the others wait."""
        if key not in self._values:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
            with lock:
                if key not in self._values:
                    self._values[key] = make()
        return self._values[key]


@dataclass(frozen=True)
class Launch:
    """A compiled kernel and the names of its parameters, in order.

    fused   a step that flushes
    blocks  that a multiprocessor holds at once; 0: unknown
    """

    names: tuple[str, ...]
    call: Callable[..., Any]
    fused: bool = False
    blocks: int = 0

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Run it on arguments by name."""
        self.call(*[values[name] for name in self.names])
