"""Launch an emulated kernel over NumPy arrays or CPU tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from leapgen.oracle.emulator.build import build
from leapgen.oracle.emulator.errors import LaunchFailed
from leapgen.oracle.emulator.lowering import PASS_CONFIGS, lower
from leapgen.oracle.emulator.source import Parameter, read_signature, translate

DYNAMIC_BYTES = 227 * 1024  # the most that any present arch gives one block
_SCALARS: dict[str, type[Any]] = {
    "int": ctypes.c_int32, "int32_t": ctypes.c_int32, "uint": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
    "long long": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "float": ctypes.c_float,
    "double": ctypes.c_double, "bool": ctypes.c_bool, "short": ctypes.c_int16,
    "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8,
}  # fmt: skip
_LOCK = threading.Lock()  # signal handlers belong to the process: one launch at a time


class Tensor(Protocol):
    """The part of a torch tensor that a launch needs."""

    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...


class _Launch(ctypes.Structure):  # lg::Launch of shim/emulator.h
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("dynamic_bytes", ctypes.c_uint64),
    ]


class EmulatedKernel:
    """One CUDA kernel, compiled for the CPU.

    source         CUDA text as TileLang emits it
    threads        threads of a block: a number, or (x, y, z); default from __launch_bounds__
    kernel         name of the kernel, if the source has several
    dynamic_bytes  dynamic shared memory of a block

    Raises UnsupportedSource for constructs that are not emulated, BuildFailed if g++ fails.
    """

    def __init__(
        self,
        source: str,
        threads: int | tuple[int, int, int] | None = None,
        *,
        kernel: str | None = None,
        dynamic_bytes: int = DYNAMIC_BYTES,
    ) -> None:
        self.signature = read_signature(source, kernel)
        block = threads if threads is not None else self.signature.threads
        if block is None:
            raise ValueError("threads: the source has no __launch_bounds__, so a number is needed")
        self.block = (block, 1, 1) if isinstance(block, int) else block
        library = ctypes.CDLL(str(build(translate(source, self.signature, dynamic_bytes))))
        self._launch = library.leapgen_launch
        self._error = library.leapgen_error
        self._error.restype = ctypes.c_char_p

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the CUDA kernel's order."""
        return tuple(parameter.name for parameter in self.signature.parameters)

    def launch(
        self,
        grid: int | Sequence[int],
        arguments: Mapping[str, Any] | Sequence[Any],
        *,
        seed: int = 1,
    ) -> None:
        """Run all blocks of a grid of 1 to 3 extents.

        arguments  by name (further names are ignored) or in the CUDA kernel's order: contiguous
                   NumPy arrays or CPU tensors, changed in place, and numbers
        seed       order of blocks and threads; 0 is ascending, every other number a random order

        Raises LaunchFailed for deadlocks, faults and misuse of collectives; ValueError for
        arguments that do not fit the signature.
        """
        extents = (grid,) if isinstance(grid, int) else tuple(grid)
        if 0 in extents:
            return
        values = [self._value(p, a) for p, a in zip(*self._matched(arguments), strict=True)]
        pointers = (ctypes.c_void_p * max(1, len(values)))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        info = _Launch((*extents, 1, 1)[:3], self.block, seed, 0)
        with _LOCK:
            if self._launch(pointers, ctypes.byref(info)):
                raise LaunchFailed(self._error().decode(errors="replace"))

    def _matched(
        self, arguments: Mapping[str, Any] | Sequence[Any]
    ) -> tuple[tuple[Parameter, ...], list[Any]]:
        parameters = self.signature.parameters
        if isinstance(arguments, Mapping):
            missing = [p.name for p in parameters if p.name not in arguments]
            if missing:
                raise ValueError(f"arguments are missing: {', '.join(missing)}")
            return parameters, [arguments[p.name] for p in parameters]
        if len(arguments) != len(parameters):
            raise ValueError(f"{len(parameters)} arguments expected, found {len(arguments)}")
        return parameters, list(arguments)

    @staticmethod
    def _value(parameter: Parameter, argument: Any) -> Any:
        if not parameter.pointer:
            if parameter.type not in _SCALARS:
                raise ValueError(f"{parameter.name}: a scalar of type {parameter.type}")
            return _SCALARS[parameter.type](argument)
        address, itemsize = _address(parameter, argument)
        if itemsize != parameter.itemsize:
            raise ValueError(
                f"{parameter.name}: elements of {parameter.itemsize} bytes ({parameter.type}) "
                f"expected, found {itemsize}"
            )
        return ctypes.c_void_p(address)


def _address(parameter: Parameter, argument: Any) -> tuple[int, int]:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError(f"{parameter.name}: the array is not contiguous")
        return argument.ctypes.data, argument.itemsize
    if hasattr(argument, "data_ptr"):
        return argument.data_ptr(), argument.element_size()
    raise ValueError(f"{parameter.name}: an array expected, found {type(argument).__name__}")


def from_prim_func(
    func: Any, arch: str = "sm_90a", pass_configs: Mapping[str, object] = PASS_CONFIGS
) -> EmulatedKernel:
    """Lower a TileLang prim_func and compile what it emits; block size and shared memory follow."""
    lowered = lower(func, arch, pass_configs)
    return EmulatedKernel(
        lowered.source,
        lowered.threads,
        kernel=lowered.kernel,
        dynamic_bytes=lowered.shared_bytes,
    )
