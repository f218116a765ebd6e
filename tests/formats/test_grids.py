"""Payload grids: every code against ml_dtypes, ties and edges, stochastic rounding, levels."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen.formats import elements
from leapgen.formats.grids import GRIDS, Levels, Minifloat, Symmetric
from leapgen.formats.lloyd import fitted, k_means, lloyd_max
from leapgen.formats.philox import philox, uniforms

ml_dtypes = pytest.importorskip("ml_dtypes")
TYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
MINIFLOATS = tuple(n for n, g in GRIDS.items() if isinstance(g, Minifloat))
INTEGERS = tuple(n for n, g in GRIDS.items() if isinstance(g, Symmetric))
LEVELS = tuple(n for n, g in GRIDS.items() if isinstance(g, Levels))


def values(name: str) -> np.ndarray:
    """Every finite value of a grid, ascending, zero once."""
    grid = GRIDS[name]
    if isinstance(grid, Symmetric):
        return np.arange(-grid.top, grid.top + 1, dtype=np.float32)
    if isinstance(grid, Levels):
        return grid.levels
    every = grid.decode(np.arange(1 << grid.bits))
    return np.unique(every[np.isfinite(every)])


def test_every_minifloat_is_tested() -> None:
    assert set(MINIFLOATS) == set(TYPES)


@pytest.mark.parametrize("name", MINIFLOATS)
def test_every_code_is_the_value_of_ml_dtypes(name: str) -> None:
    codes = np.arange(1 << GRIDS[name].bits).astype(np.uint8)
    ours = GRIDS[name].decode(codes)
    theirs = codes.view(TYPES[name]).astype(np.float32)
    assert ((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all()
    assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(ours)].all()
    assert ours[np.isfinite(ours)].max() == GRIDS[name].top


@pytest.mark.parametrize("name", MINIFLOATS)
def test_rounding_is_that_of_ml_dtypes(name: str) -> None:
    """Every value, every midpoint, their neighbours in FP32, and numbers of every size."""
    grid, every = GRIDS[name], values(name)
    middle = (every[1:] + every[:-1]) / 2
    near = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(50_000) * 2.0 ** rng.integers(-150, 12, 50_000)
    x = np.concatenate([every, middle, *near, wide, [0.0, -0.0]]).astype(np.float32)
    expected = np.clip(x, -grid.top, grid.top).astype(TYPES[name]).view(np.uint8)
    assert (grid.encode(x) == expected).all()


@pytest.mark.parametrize("name", [*MINIFLOATS, *INTEGERS, *LEVELS])
def test_what_lies_outside_saturates_and_nan_is_told(name: str) -> None:
    grid, every = GRIDS[name], values(name)
    x = np.array([np.inf, -np.inf, 3e38, -3e38, 1e-45, np.nan], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        codes = grid.encode(x)
    back = grid.decode(codes)
    assert back[:4].tolist() == [every[-1], every[0], every[-1], every[0]]
    assert abs(back[4]) == np.abs(every).min()
    assert np.isnan(back[5]) if name == "e4m3" else abs(back[5]) == np.abs(every).min()
    assert codes.dtype == np.dtype(grid.dtype)


@pytest.mark.parametrize("name", [*MINIFLOATS, *INTEGERS, *LEVELS])
def test_every_value_keeps_its_code_and_numbers_go_to_the_nearest(name: str) -> None:
    grid, every = GRIDS[name], values(name)
    assert (grid.decode(grid.encode(every)) == every).all()
    x = np.linspace(every[0], every[-1], 40_001).astype(np.float32)
    error = np.abs(grid.decode(grid.encode(x)) - x)
    best = np.abs(x[:, None] - every[None, :]).min(axis=1)
    assert (error <= best + 1e-6 * grid.top).all()  # ties, as FP32 sees them
    assert error.max() <= grid.gap * grid.top * (1 + 1e-5)
    if not isinstance(grid, Levels):
        assert error.max() > 0.99 * grid.gap * grid.top


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_tie_to_even_and_leave_the_most_negative_code(name: str) -> None:
    grid = GRIDS[name]
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -1e9], np.float32)
    assert grid.encode(x).tolist() == [0, 2, 2, 0, -2, -grid.top]


# ---- stochastic rounding


@pytest.mark.parametrize("name", ["bf16", "fp16", *MINIFLOATS, *INTEGERS])
def test_stochastic_rounding_is_unbiased_between_neighbours(name: str) -> None:
    grid, n = GRIDS[name], 1 << 16
    for number in (0.3, -1.37, 2.9, 1e-4 if grid.wide else 0.8):
        draws = ((np.arange(n) + 0.5) / n).astype(np.float32)
        x = np.full(n, number, np.float32)
        back = grid.decode(grid.encode(x, draws)).astype(np.float64)
        found = np.unique(back)
        assert len(found) <= 2
        assert found[0] <= x[0] <= found[-1]
        step = found[-1] - found[0]
        assert abs(back.mean() - float(x[0])) <= 1e-4 * max(step, abs(number))


@pytest.mark.parametrize("name", ["bf16", "fp16", *MINIFLOATS, *INTEGERS])
def test_what_is_on_the_grid_is_never_moved(name: str) -> None:
    grid = GRIDS[name]
    every = np.arange(-64, 65).astype(np.float32) / 8 if grid.wide else values(name)
    for draw in (0.0, 0.5, 1 - 2.0**-24):
        draws = np.full(every.shape, draw, np.float32)
        assert (grid.decode(grid.encode(every, draws)) == every).all()


def test_fp16_rounds_subnormals_stochastically_too() -> None:
    grid, n = GRIDS["fp16"], 4096
    x = np.full(n, 2.0**-24 * 0.25, np.float32)
    draws = ((np.arange(n) + 0.5) / n).astype(np.float32)
    back = grid.decode(grid.encode(x, draws))
    assert set(back.tolist()) == {0.0, 2.0**-24}
    assert abs((back > 0).mean() - 0.25) < 1e-3


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_stochastic_rounding_stays_finite(dtype: str) -> None:
    x = np.array([3.4e38, -3.4e38, 65504, 65519, 1e30], np.float32)
    draws = np.full(x.shape, 1 - 2.0**-24, np.float32)
    back = elements.decode(dtype, GRIDS[dtype].encode(x, draws))
    assert np.isfinite(back).all()


def test_levels_are_not_rounded_stochastically() -> None:
    with pytest.raises(ValueError, match="levels are not"):
        GRIDS["levels4"].encode(np.zeros(3, np.float32), np.zeros(3, np.float32))


def test_philox_known_answers() -> None:
    """The known answers that come with Random123 (kat_vectors, philox4x32 10)."""
    top = 0xFFFFFFFF
    known = [
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((top,) * 4, (top,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for counter, key, words in known:
        assert " ".join(f"{int(w):08x}" for w in philox(counter, key)) == words


def test_draws_depend_on_seed_head_store_and_element_alone() -> None:
    one = uniforms(np.array([3]), np.array([1]), 16, 8)
    many = uniforms(np.array([[0, 3], [3, 9]]), np.array([[1, 1], [0, 1]]), 16, 8)
    assert (many[0, 1] == one[0]).all()
    others = [
        many[0, 0],
        many[1, 0],
        many[1, 1],
        uniforms(np.array([3]), np.array([1]), 16, 8, 1)[0],
    ]
    assert all((other == one[0]).mean() < 0.01 for other in others)
    assert one.min() >= 0
    assert one.max() < 1


def test_draws_are_uniform() -> None:
    draws = uniforms(np.arange(8), np.zeros(8), 64, 64).ravel()
    counts = np.histogram(draws, 16, (0, 1))[0]
    expected = len(draws) / 16
    assert (((counts - expected) ** 2) / expected).sum() < 45  # 15 degrees of freedom: p < 1e-4


# ---- levels


@pytest.mark.parametrize(
    ("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (4, 9.5e-3), (5, 2.5e-3), (8, 4.1e-5)]
)
def test_lloyd_max_reaches_the_published_distortion(bits: int, distortion: float) -> None:
    levels = lloyd_max(bits)
    x = np.linspace(-8, 8, 400_001)
    weight = np.exp(-x * x / 2)
    edges = (levels[1:] + levels[:-1]) / 2
    error = (weight * (x - levels[np.searchsorted(edges, x)]) ** 2).sum() / weight.sum()
    assert abs(error / distortion - 1) < 0.02


def test_lloyd_max_of_two_bits_is_maxs_table() -> None:
    assert np.allclose(lloyd_max(2), [-1.5104, -0.4528, 0.4528, 1.5104], atol=1e-4)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_fitted_levels_are_means_of_their_cells(bits: int) -> None:
    """Levels of other data of the same kind come out alike: heavy in the middle, thin outside."""
    levels = fitted(bits)
    assert len(levels) == 1 << bits
    assert (np.diff(levels) > 0).all()
    assert (levels == -levels[::-1]).all()
    assert levels[-1] < 1
    middle, outside = np.diff(levels)[len(levels) // 2 - 1], np.diff(levels)[-1]
    assert outside > 1.5 * middle


def test_k_means_finds_levels_of_data_that_has_them() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([0.1, 0.4, 0.7, 0.95])
    sign = rng.choice([-1, 1], 4000)
    data = sign * (truth[rng.integers(0, 4, 4000)] + 1e-3 * rng.standard_normal(4000))
    assert np.allclose(k_means(data, 3), truth, atol=1e-3)
