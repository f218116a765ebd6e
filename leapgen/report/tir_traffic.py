"""Global memory that one block of a TileLang kernel touches, counted exactly from its device TIR.

The integer part of the program is executed for all threads of a block: indices, conditions, loop
bounds, integer variables, and loads from those integer buffers whose contents are given. Nothing is
estimated: an address, a loop bound or a branch around an access that cannot be evaluated is an
error that names the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leapgen.oracle.emulator.lowering import lower
from leapgen.report.tir_machine import SECTOR, Machine
from leapgen.report.tir_program import Program


@dataclass(frozen=True)
class Amount:
    """One buffer in one direction.

    bytes     sum over all accesses of all threads
    distinct  different bytes
    sectors   different 32-byte sectors, the buffer's start taken as aligned to 32 bytes
    """

    bytes: int = 0
    distinct: int = 0
    sectors: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.bytes + other.bytes, self.distinct + other.distinct, self.sectors + other.sectors
        )


@dataclass(frozen=True)
class Traffic:
    """What one block moves: entries by (buffer, ``read`` or ``write``)."""

    entries: Mapping[tuple[str, str], Amount]

    def __getitem__(self, key: tuple[str, str]) -> Amount:
        return self.entries.get(key, Amount())

    def total(self, way: str) -> Amount:
        """The sum over buffers of one direction."""
        return sum((a for (_, w), a in self.entries.items() if w == way), Amount())


def count(
    func: Any,
    arch: str,
    *,
    scalars: Mapping[str, int],
    ints: Mapping[str, NDArray[np.integer]],
    block: Mapping[str, int],
    threads: int | None = None,
    both: bool = False,
    assumed: Mapping[str, int] | None = None,
) -> Traffic:
    """Traffic of one block of a TileLang prim_func, lowered for ``arch`` (``sm_90a``).

    scalars  values of the kernel's number parameters, dynamic dims included, by name
    ints     contents of integer buffers (flat), by name; they are not changed
    block    the block's index, ``{"x": 3}``; axes that are missing are 0
    threads  checked against the kernel's block size, if given
    both     count both sides of branches whose condition is not known, instead of refusing
    assumed  values of local integer variables that follow from the data, by name (a number of
             rounds, say); they hold wherever the variable is read

    Raises TirError for anything that cannot be counted, ValueError if ``threads`` differs.
    """
    lowered = lower(func, arch)
    total = int(np.prod(lowered.threads))
    if threads is not None and threads != total:
        raise ValueError(f"the kernel has {total} threads a block, not {threads}")
    return count_lowered(
        lowered.device,
        lowered.threads,
        scalars=scalars,
        ints=ints,
        block=block,
        both=both,
        assumed=assumed,
    )


def count_lowered(
    device: Any,
    threads: tuple[int, int, int],
    *,
    scalars: Mapping[str, int],
    ints: Mapping[str, NDArray[np.integer]],
    block: Mapping[str, int],
    both: bool = False,
    assumed: Mapping[str, int] | None = None,
) -> Traffic:
    """As ``count``, for a device PrimFunc that is lowered already."""
    machine = Machine(threads, block, scalars, ints, assumed or {})
    program = Program(machine, both)
    program.parameters(device)
    run = program.statement(device.body)
    if run:
        run(np.ones(machine.count, np.bool_))
    return Traffic(
        {
            key: Amount(touches.total, touches.units(1), touches.units(SECTOR))
            for key, touches in sorted(machine.touches.items())
        }
    )
