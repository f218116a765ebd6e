"""State of one thread block while the integer part of a TIR program is executed for all threads.

Values are NumPy arrays over threads, (threads,) or (threads, lanes), int64 or bool; what cannot be
known (floating point, contents of memory that was not given) is an Unknown that says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leapgen.diagnostics import LeapgenError

Array = NDArray[Any]  # integers, or truth values where a condition is a value
Mask = NDArray[np.bool_]
SECTOR = 32  # bytes of a memory sector


class TirError(LeapgenError):
    """The program does something that cannot be counted; the message says what and why."""


@dataclass(frozen=True)
class Unknown:
    """A value that is not known, with the reason in words."""

    reason: str


Value = Array | Mask | Unknown


class Memory:
    """Integers in one buffer: one copy a thread (local) or one for the block (shared, global)."""

    def __init__(self, name: str, dtype: str, copies: int, size: int) -> None:
        self.name = name
        self.dtype = dtype
        self.values = np.zeros((copies, size), np.int64)
        self.known = np.zeros((copies, size), np.bool_)
        self.why = "nothing"  # what the latest unknown contents are

    @staticmethod
    def of(name: str, contents: NDArray[np.integer]) -> Memory:
        """Memory with given contents."""
        memory = Memory(name, str(contents.dtype), 1, contents.size)
        memory.values[0] = contents.ravel()
        memory.known[:] = True
        return memory

    def forget(self) -> None:
        """Nothing in it is known any more."""
        self.known[:] = False
        self.why = "what a call or a store at an unknown place left"

    def load(self, index: Array | Mask, mask: Mask) -> Value:
        """Contents at an index, where the mask is set. Raises TirError outside the buffer."""
        row, at = self._place(index, mask)
        if not self.known[row, at][mask].all():
            return Unknown(f"{self.name!r}, which holds {self.why}")
        return self.values[row, at]

    def store(self, index: Array | Mask, value: Value, mask: Mask) -> None:
        """Writes the value, or forgets the place if it is unknown, where the mask is set."""
        row, at = self._place(index, mask)
        self.known[row[mask], at[mask]] = not isinstance(value, Unknown)
        if isinstance(value, Unknown):
            self.why = value.reason
        else:
            wide = np.broadcast_to(_like(value, at), at.shape)
            self.values[row[mask], at[mask]] = wide[mask]

    def _place(self, index: Array | Mask, mask: Mask) -> tuple[Array, Array]:
        index = index.astype(np.int64)
        size = self.values.shape[1]
        flat = index.reshape(len(index), -1)
        bad = mask[:, None] & ((flat < 0) | (flat >= size))
        if bad.any():
            raise TirError(f"index {flat[bad][0]} is outside {self.name!r}, which has {size}")
        copies = np.arange(len(index)) if self.values.shape[0] > 1 else np.zeros(len(index), int)
        row = np.broadcast_to(copies.reshape(-1, *[1] * (index.ndim - 1)), index.shape)
        return row, np.clip(index, 0, size - 1)


def _like(value: Value, shape: Array) -> Array:
    assert not isinstance(value, Unknown)
    array = value.astype(np.int64)
    return array if array.ndim == shape.ndim else array.reshape(-1, *[1] * (shape.ndim - 1))


@dataclass
class Touches:
    """Accesses to one buffer in one direction, in bytes: starts by length, a sum over threads."""

    total: int = 0
    starts: dict[int, list[Array]] = field(default_factory=lambda: defaultdict(list))

    def add(self, starts: Array, size: int) -> None:
        """Accesses of ``size`` bytes each, one an entry."""
        self.total += starts.size * size
        self.starts[size].append(np.unique(starts))

    def units(self, unit: int) -> int:
        """How many different aligned units of ``unit`` bytes are touched."""
        pieces: list[Array] = [np.empty(0, np.int64)]
        for size, many in self.starts.items():
            start = np.unique(np.concatenate(many))
            begin, end = start // unit, (start + size - 1) // unit
            for step in range(int((end - begin).max()) + 1):
                pieces.append((begin + step)[begin + step <= end])
        return int(np.unique(np.concatenate(pieces)).size)


class Machine:
    """Registers, memories and accesses of one block.

    threads    extents of the block along x, y, z
    block      the block's index along x, y, z
    scalars    kernel parameters that are numbers, by name
    ints       contents of integer buffers that addresses or conditions depend on, by name
    assumed    values of local variables that follow from numbers nobody knows here, by name
    """

    def __init__(
        self,
        threads: tuple[int, int, int],
        block: Mapping[str, int],
        scalars: Mapping[str, int],
        ints: Mapping[str, NDArray[np.integer]],
        assumed: Mapping[str, int],
    ) -> None:
        self.assumed = assumed
        self.extents = threads
        self.count = threads[0] * threads[1] * threads[2]
        self.block = block
        self.scalars = scalars
        self.registers: dict[int, Value] = {}
        self.globals = {name: Memory.of(name, contents) for name, contents in ints.items()}
        self.stopped = np.zeros(self.count, np.bool_)  # left the loop, or returned
        self.uncertain: list[str] = []  # why branches now open may or may not be taken
        self.touches: dict[tuple[str, str], Touches] = defaultdict(Touches)

    def constant(self, value: int) -> Array:
        """The same number in every thread."""
        return np.full(self.count, value, np.int64)

    def thread_index(self, tag: str) -> Array:
        """``threadIdx.x`` and so on, or ``blockIdx.x`` and so on, in every thread."""
        kind, _, axis = tag.partition(".")
        if kind == "blockIdx":
            return self.constant(self.block.get(axis, 0))
        linear = np.arange(self.count)
        x, y, _ = self.extents
        return {"x": linear % x, "y": linear // x % y, "z": linear // (x * y)}[axis]

    def touch(self, name: str, way: str, byte: Value, size: int, mask: Mask) -> None:
        """An access of ``size`` bytes at byte offsets of a global buffer, where the mask is set.

        Raises TirError if the offset is unknown or negative.
        """
        if isinstance(byte, Unknown):
            raise TirError(f"the address of a {way} of {name!r} depends on {byte.reason}")
        active = byte[mask]
        if active.size and active.min() < 0:
            raise TirError(f"a {way} of {name!r} at byte {active.min()}")
        if active.size:
            self.touches[name, way].add(active.ravel(), size)
