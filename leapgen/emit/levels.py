"""Tables of a grid of four bits for templates: its levels as INT8, and what finds the nearest."""

from __future__ import annotations

import numpy as np

from leapgen.formats.grids import Grid, Levels, Symmetric

LARGEST_LEVEL = 127


def unit(grid: Grid) -> float:
    """What one stands for in the bytes that products take."""
    if isinstance(grid, Levels):
        return float(grid.levels[-1]) / LARGEST_LEVEL
    return 2.0 ** (grid.bits - 8) if isinstance(grid, Symmetric) else 1.0


def table(grid: Grid) -> tuple[int, ...]:
    """All levels as bytes in four words, by their codes."""
    if not isinstance(grid, Levels) or not grid.scaled_by_rms or grid.bits != 4:
        return ()
    whole = np.rint(grid.levels.astype(np.float64) / unit(grid)).astype(np.int8)
    return tuple(map(int, whole.view("<u4")))


def compander(grid: Grid) -> tuple[float, ...]:
    """Coefficients a, b, c of an odd polynomial w (a + b w^2 + c w^4), -1/2 <= w <= 1/2, that is
    n at the n-th edge above zero, where w is a number over twice the largest level: its floor is a
    level's number from the middle on. By least squares; off by at most 1.5% of a step."""
    if not isinstance(grid, Levels) or not table(grid):
        return ()
    top = float(grid.levels[-1])
    w = (grid.levels[8:-1] + grid.levels[9:]).astype(np.float64) / (4 * top)
    powers = np.stack([w, w**3, w**5], axis=1)
    found = np.linalg.lstsq(powers, np.arange(1.0, 8.0), rcond=None)[0]
    return tuple(map(float, found))
