"""Tables of a grid of four bits for templates: its levels in fixed point and as FP16 numbers."""

from __future__ import annotations

import numpy as np

from leapgen.formats.grids import Grid, Levels, Symmetric

LARGEST_LEVEL = 127 * 256 + 127
"""The largest number of two signed digits."""


def unit(grid: Grid) -> float:
    """What one stands for in the bytes that products take."""
    if isinstance(grid, Levels):
        return float(grid.levels[-1]) / LARGEST_LEVEL
    return 2.0 ** (grid.bits - 8) if isinstance(grid, Symmetric) else 1.0


def digits(grid: Grid) -> tuple[tuple[int, ...], ...]:
    """Levels in fixed point, to 1.6e-5 of the largest, as two signed digits to base 256."""
    if not isinstance(grid, Levels) or grid.bits != 4:
        return ()
    fixed = np.rint(grid.levels.astype(np.float64) / unit(grid)).astype(np.int64)
    low = (fixed + 128) % 256 - 128
    both = ((fixed - low) // 256, low)
    return tuple(tuple(map(int, d.astype(np.int8).view("<u4"))) for d in both)


def halves(grid: Grid) -> tuple[str, ...]:
    """Of the eight positive levels as FP16: their low bytes, then their high bytes, as words."""
    if not isinstance(grid, Levels) or grid.bits != 4:
        return ()
    raw = grid.levels[8:].astype("<f2").view("u1").reshape(8, 2).T.copy()
    return tuple(f"0x{word:08X}" for word in raw.view("<u4").reshape(-1))


def edges(grid: Grid) -> tuple[str, ...]:
    """The seven edges between them as FP16, each twice in a word."""
    if not isinstance(grid, Levels) or grid.bits != 4:
        return ()
    middle = ((grid.levels[8:-1] + grid.levels[9:]) / 2).astype("<f2").view("<u2")
    return tuple(f"0x{0x10001 * int(edge):08X}" for edge in middle)
