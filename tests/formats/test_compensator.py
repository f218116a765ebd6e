"""The fit: as good as the singular value decomposition, harmless where there is nothing to fit."""

from __future__ import annotations

import numpy as np
import pytest
from format_samples import KINDS, squared, states

from leapgen.formats import compensator
from leapgen.formats.table import FORMATS

INT8 = FORMATS["leapquant-int8"]


def cold(S: np.ndarray, R: int) -> np.ndarray:
    return np.zeros((*S.shape[:-2], R, S.shape[-1]), np.float16)


def errors(S: np.ndarray, R: int, windows: int) -> np.ndarray:
    """Relative squared error a head after storing the same state several times."""
    old = cold(S, R)
    for _ in range(windows):
        stored = INT8.store(S, old)
        old = stored.comp_u
    assert np.isfinite(stored.comp_key.astype(np.float32)).all()
    assert np.isfinite(stored.comp_u.astype(np.float32)).all()
    back = INT8.restore(stored)
    assert np.isfinite(back).all()
    scale = np.abs(S).max(axis=(-2, -1), keepdims=True).astype(np.float64)
    scale = np.where(scale > 0, scale, 1)
    return squared((back.astype(np.float64) - S) / scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("R", [1, 4, 8])
@pytest.mark.parametrize("windows", [1, 3])
def test_never_worse_than_no_compensators(kind: str, R: int, windows: int) -> None:
    S = states(kind)
    # Taking out the largest directions can move the peak of a column a little: hence the factor.
    assert (errors(S, R, windows) <= 1.2 * errors(S, 0, 1) + 1e-12).all()


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_a_state_of_low_rank_is_taken_whole(rank: int) -> None:
    S = states(f"rank{rank}")
    assert (errors(S, 4, 2) < 1e-3 * errors(S, 0, 1)).all()


def test_cold_and_warm_fits_reach_the_singular_directions() -> None:
    rng = np.random.default_rng(1)
    S = np.einsum(
        "hir,r,hrj->hij",
        rng.standard_normal((4, 128, 64)),
        0.8 ** np.arange(64),
        rng.standard_normal((4, 64, 96)),
    ).astype(np.float32)
    best = (np.linalg.svd(S, compute_uv=False)[:, 4:] ** 2).sum(axis=-1)
    old = cold(S, 4)
    for bound in (1.2, 1.1, 1.05):
        key, old = compensator.fit(S, old)
        ratio = squared(S - compensator.product(key, old)) / best
        assert (ratio < bound).all(), ratio


def test_warm_fit_follows_a_moving_state() -> None:
    rng = np.random.default_rng(2)
    drift = rng.standard_normal((2, 64, 48)).astype(np.float32)
    S = states("rank4", 64, 48, 2)
    old = cold(S, 4)
    for _ in range(20):
        S = S + np.float32(0.05) * drift
        key, old = compensator.fit(S, old)
    best = (np.linalg.svd(S, compute_uv=False)[:, 4:] ** 2).sum(axis=-1)
    assert (squared(S - compensator.product(key, old)) < 1.1 * best + 1e-5).all()


def test_heads_do_not_see_each_other() -> None:
    S = states("1")
    warm = compensator.fit(S, cold(S, 4))[1]
    warm[1] = 0  # one head cold, the others warm
    together = compensator.fit(S, warm)
    for h in range(len(S)):
        alone = compensator.fit(S[h : h + 1], warm[h : h + 1])
        for a, b in zip(together, alone, strict=True):
            assert np.abs(a[h].astype(np.float64) - b[0]).max() < 1e-3


@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1e9, 1e30])
def test_factors_that_fp16_cannot_hold_are_dropped_on_both_sides(scale: float) -> None:
    S = states("rank1") * np.float32(scale)
    key, u = compensator.fit(S, cold(S, 2))
    assert (np.abs(key).max(axis=-1) == 0).tolist() == (np.abs(u).max(axis=-1) == 0).tolist()
    top = np.abs(np.concatenate([key, u], axis=-1)).max(axis=-1)
    assert ((top == 0) | (top >= compensator.FACTOR_MIN)).all()


def test_constant_tokens_for_ten_thousand_steps() -> None:
    """A delta rule fed one token for ever: rank one, and a singular Gram matrix in every fit."""
    rng = np.random.default_rng(3)
    K = V = 32
    k, v = rng.standard_normal(K), rng.standard_normal(V)
    k = (k / np.linalg.norm(k)).astype(np.float32)
    v = v.astype(np.float32)
    S, exact = np.zeros((1, K, V), np.float32), np.zeros((1, K, V))
    old = cold(S, 4)
    for token in range(10_000):
        S = S * np.float32(0.99) + k[:, None] * (v - np.float32(0.99) * (k @ S[0]))
        exact = exact * 0.99 + k[:, None] * (v - 0.99 * (k @ exact[0]))
        if token % 16 == 15:
            stored = INT8.store(S, old)
            S, old = INT8.restore(stored), stored.comp_u
    assert squared(S - exact) < 1e-6 * squared(exact)


def test_two_alternating_tokens() -> None:
    rng = np.random.default_rng(4)
    K, V = 32, 24
    keys = rng.standard_normal((2, K))
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    values = rng.standard_normal((2, V)).astype(np.float32)
    S, exact = np.zeros((1, K, V), np.float32), np.zeros((1, K, V))
    old = cold(S, 4)
    for token in range(3_000):
        k, v = keys[token % 2], values[token % 2]
        S = S + k[:, None] * (v - k @ S[0])
        exact = exact + k[:, None] * (v - k @ exact[0])
        if token % 16 == 15:
            stored = INT8.store(S, old)
            S, old = INT8.restore(stored), stored.comp_u
    assert squared(S - exact) < 1e-6 * squared(exact)


def test_the_pattern_is_what_the_kernels_compute() -> None:
    got = compensator.pattern(3, 8) * np.sqrt(np.float32(8))
    for v in range(8):
        for h in range(3):
            x = (v * 0x9E3779B1 + (h + 1) * 0x85EBCA77) & 0xFFFFFFFF
            x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
            x ^= x >> 15
            assert round(float(got[v, h])) == (1 if (x >> 16) & 1 else -1)


@pytest.mark.parametrize("V", [64, 80, 128, 192, 256])
def test_columns_of_the_pattern_are_nearly_orthogonal(V: int) -> None:
    wide = compensator.pattern(8, V)
    assert np.linalg.svd(wide, compute_uv=False)[-1] > 0.7


def test_no_compensators_is_a_fit_of_nothing() -> None:
    S = states("1")
    key, u = compensator.fit(S, cold(S, 0))
    assert key.shape == (3, 0, 40)
    assert u.shape == (3, 0, 24)
    assert (compensator.product(key, u) == 0).all()
