"""Launch an emulated kernel over NumPy arrays or CPU tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapgen.oracle.emulator.build import build
from leapgen.oracle.emulator.errors import LaunchFailed
from leapgen.oracle.emulator.guard import Block, Guard, Region
from leapgen.oracle.emulator.lowering import PASS_CONFIGS, lower
from leapgen.oracle.emulator.places import resolve
from leapgen.oracle.emulator.source import Parameter, read_signature, translate

DYNAMIC_BYTES = 227 * 1024  # the most that any present arch gives one block
_SCALARS: dict[str, Any] = {
    "int": ctypes.c_int32, "int32_t": ctypes.c_int32, "uint": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
    "long long": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "float": ctypes.c_float,
    "double": ctypes.c_double, "bool": ctypes.c_bool, "short": ctypes.c_int16,
    "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8,
}  # fmt: skip
_LOCK = threading.Lock()  # signal handlers belong to the process: one launch at a time


class _Region(ctypes.Structure):  # lg::Region of shim/hooks.h
    _fields_ = (
        ("begin", ctypes.c_size_t),
        ("end", ctypes.c_size_t),
        ("outer_begin", ctypes.c_size_t),
        ("outer_end", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("races_allowed", ctypes.c_uint64),
        ("shared", ctypes.c_uint64),
        ("counts", ctypes.c_uint64 * 4),
    )


class _Launch(ctypes.Structure):  # lg::Launch of shim/emulator.h
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("seed", ctypes.c_uint64),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_uint64),
        ("unwritten_allowed", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Count:
    """What a checked launch did to one buffer, summed over its blocks.

    read_bytes, written_bytes      sum over all accesses of all threads
    read_sectors, written_sectors  different 32-byte sectors, each once a block
    """

    read_bytes: int
    written_bytes: int
    read_sectors: int
    written_sectors: int


class EmulatedKernel:
    """One CUDA kernel, compiled for the CPU.

    source         CUDA text as TileLang emits it
    threads        threads of a block: a number, or (x, y, z); default from __launch_bounds__
    kernel         name of the kernel, if the source has several
    dynamic_bytes  dynamic shared memory of a block
    checked        watch every access: bounds to the byte, alignment, shared memory that is read
                   before it is written, and races, found exactly and not by chance; about ten
                   times slower

    Raises UnsupportedSource for constructs that are not emulated, BuildFailed if g++ fails,
    MissingTool if it is absent.
    """

    def __init__(
        self,
        source: str,
        threads: int | tuple[int, int, int] | None = None,
        *,
        kernel: str | None = None,
        dynamic_bytes: int = DYNAMIC_BYTES,
        checked: bool = False,
    ) -> None:
        self.source = source
        self.checked = checked
        self.signature = read_signature(source, kernel)
        block = threads if threads is not None else self.signature.threads
        if block is None:
            raise ValueError("threads: the source has no __launch_bounds__, so a number is needed")
        self.block = (block, 1, 1) if isinstance(block, int) else block
        self.library = build(translate(source, self.signature, dynamic_bytes), checked)
        loaded = ctypes.CDLL(str(self.library))
        self._launch = loaded.leapgen_launch
        self._error = loaded.leapgen_error
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
        guard: bool = True,
        races_allowed: Collection[str] = (),
        unwritten_allowed: bool = False,
    ) -> dict[str, Count]:
        """Run all blocks of a grid of 1 to 3 extents; zero blocks do nothing.

        arguments      by name (further names are ignored) or in the CUDA kernel's order:
                       contiguous NumPy arrays or CPU tensors, changed in place, and numbers
        seed           order of blocks and threads; 0 is ascending, others are random orders
        guard          run on copies with unreadable pages beside them (needs their memory twice)
        races_allowed  buffers to which threads or blocks may store the same value, checked runs
        unwritten_allowed  reading shared memory that nobody wrote is no error, checked runs (a
                       matrix instruction may have columns that are not used)

        Returns, for a checked and guarded launch, what happened to each buffer (buffers that
        overlap count together, under their names joined by ``+``); otherwise nothing.
        Raises LaunchFailed for deadlocks, faults, misuse of collectives and what checked runs
        find; the arguments are then as before (with guard). ValueError if they do not fit.
        """
        extents = (grid,) if isinstance(grid, int) else tuple(grid)
        if 0 in extents:
            return {}
        matched = list(zip(*self._matched(arguments), strict=True))
        blocks = {p.name: _block(p, a) for p, a in matched if p.pointer}
        with _LOCK, Guard(blocks.values()) if guard else nullcontext() as guarded:
            values = [
                ctypes.c_void_p(
                    guarded.address(blocks[p.name]) if guarded else blocks[p.name].address
                )
                if p.pointer
                else _scalar(p, a)
                for p, a in matched
            ]
            regions = guarded.regions if guarded else []
            table = _table(regions, races_allowed)
            grid = (*extents, 1, 1)[:3]
            self._run(_Launch(grid, self.block, seed, 0, 0, unwritten_allowed), values, table)
            if guarded:
                guarded.keep()
        return _counts(table) if self.checked else {}

    def _run(self, info: _Launch, values: list[Any], table: Any) -> None:
        pointers = (ctypes.c_void_p * max(1, len(values)))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        info.regions, info.region_count = ctypes.addressof(table), len(table)
        if self._launch(pointers, ctypes.byref(info)):
            text = self._error().decode(errors="replace")
            raise LaunchFailed(resolve(text, self.library, self.source))

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


def _table(regions: Sequence[Region], races_allowed: Collection[str]) -> Any:
    table = (_Region * (len(regions) + 2))()  # two more: shared memory, filled by the launch
    for entry, region in zip(table, regions, strict=False):
        entry.begin, entry.end = region.begin, region.end
        entry.outer_begin, entry.outer_end = region.outer
        entry.name = "+".join(region.names).encode()
        entry.races_allowed = int(any(name in races_allowed for name in region.names))
    return table


def _counts(table: Any) -> dict[str, Count]:
    return {
        entry.name.decode(): Count(
            read_bytes=entry.counts[0],
            written_bytes=entry.counts[1],
            read_sectors=entry.counts[2],
            written_sectors=entry.counts[3],
        )
        for entry in table
        if not entry.shared
    }


def _scalar(parameter: Parameter, argument: Any) -> Any:
    if parameter.type not in _SCALARS:
        raise ValueError(f"{parameter.name}: a scalar of type {parameter.type}")
    return _SCALARS[parameter.type](argument)


def _block(parameter: Parameter, argument: Any) -> Block:
    name = parameter.name
    if isinstance(argument, np.ndarray):
        contiguous, address = argument.flags.c_contiguous, argument.ctypes.data
        itemsize, size = argument.itemsize, argument.nbytes
    elif hasattr(argument, "data_ptr"):
        contiguous, address = argument.is_contiguous(), argument.data_ptr()
        itemsize = argument.element_size()
        size = argument.numel() * itemsize
    else:
        raise ValueError(f"{name}: an array expected, found {type(argument).__name__}")
    if not contiguous:
        raise ValueError(f"{name}: the array is not contiguous; pass a flat view of its memory")
    if itemsize != parameter.itemsize:
        raise ValueError(
            f"{name}: elements of {parameter.itemsize} bytes ({parameter.type}) expected, "
            f"found {itemsize}"
        )
    return Block(name, address, size)


def from_prim_func(
    func: Any,
    arch: str = "sm_90a",
    pass_configs: Mapping[str, object] = PASS_CONFIGS,
    *,
    checked: bool = False,
) -> EmulatedKernel:
    """Lower a TileLang prim_func and compile what it emits; block size and shared memory follow."""
    lowered = lower(func, arch, pass_configs)
    return EmulatedKernel(
        lowered.source,
        lowered.threads,
        kernel=lowered.kernel,
        dynamic_bytes=lowered.shared_bytes,
        checked=checked,
    )
