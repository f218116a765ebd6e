"""Four-bit levels as INT8 numbers, and the polynomial that finds the nearest."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen.emit import levels
from leapgen.formats.grids import GRIDS
from leapgen.formats.lloyd import lloyd_max

GRID = GRIDS["levels4"]


def test_bytes_are_the_levels() -> None:
    whole = np.array(levels.table(GRID), "<u4").view(np.int8)
    every = GRID.decode(np.arange(16))
    assert np.allclose(whole * levels.unit(GRID), every, rtol=1e-6)
    assert whole[-1] == levels.LARGEST_LEVEL
    assert (whole == -whole[::-1]).all()
    assert np.abs(every - lloyd_max(4)).max() <= levels.unit(GRID) / 2 * (1 + 1e-6)


def test_rounded_levels_add_little_noise() -> None:
    x = np.random.default_rng(4).standard_normal(400_000)
    best = lloyd_max(4)
    error = (GRID.decode(GRID.encode(x.astype(np.float32))) - x).var()
    least = np.abs(x[:, None] - best).min(axis=1)
    assert error <= 1.005 * (least**2).mean()


def test_the_polynomial_counts_edges() -> None:
    """As kernels evaluate it, in FP16, beyond the largest level too."""
    a, b, c = (np.float16(x) for x in levels.compander(GRID))
    top = float(GRID.decode(np.array([15]))[0])
    x = np.linspace(-1.5 * top, 1.5 * top, 20_001).astype(np.float32)
    w = np.clip(x / (2 * top), -0.5, 0.5).astype(np.float16)
    t = w * w
    y = (w * ((t * c + b) * t + a) - np.float16(0.5)).astype(np.float64)
    found = np.rint(y).astype(int) + 8
    assert found.min() == 0
    assert found.max() == 15
    near = np.abs(y - np.floor(y) - 0.5) < 0.03  # where a level ends
    assert (found == GRID.encode(x))[~near].all()
    assert near.mean() < 0.1


@pytest.mark.parametrize("name", ["int4", "fitted4", "levels8"])
def test_other_grids_have_neither(name: str) -> None:
    assert not levels.table(GRIDS[name])
    assert not levels.compander(GRIDS[name])
