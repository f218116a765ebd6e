"""Kinds 7 and 16: scales of zero, outliers, huge and tiny states, states of low rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, H, Lab, ints, numpy

from leapgen.oracle.tolerance import distance

Make = Callable[..., Lab]
RNG = np.random.default_rng(5)


def states(kind: str, K: int, V: int) -> np.ndarray:
    """[1, HV, K, V] of a kind."""
    noise = RNG.standard_normal((1, HV, K, V))
    if kind == "zero":
        return 0 * noise
    if kind == "huge":
        return 1e30 * noise
    if kind == "tiny":
        return 1e-30 * noise
    if kind == "one outlier":
        noise[:, :, 3, 5] = 1e5
        return noise
    if kind == "one column":
        return noise * (np.arange(V) == 2)
    if kind == "one row":
        return noise * (np.arange(K) == 2)[:, None]
    rank = int(kind.removeprefix("rank "))
    return RNG.standard_normal((1, HV, K, rank)) @ RNG.standard_normal((1, HV, rank, V))


KINDS = ["zero", "huge", "tiny", "one outlier", "one column", "one row", "rank 1", "rank 3"]


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("kind", KINDS)
def test_states_survive(make_lab: Make, kind: str, dims: tuple[int, int]) -> None:
    """load_state, materialize, steps and two flushes; never worse than without compensators."""
    errors = {}
    given = states(kind, *dims)
    for rank in (4, 0):
        lab = make_lab("gdn", dims, compensators=rank)
        lab.load([2], given)
        found = numpy(lab.module.materialize(lab.pool, ints(2), layout="KV"))
        assert np.isfinite(found).all()
        errors[rank] = distance(found, lab.state[[2]], axes=2).max()
        for _ in range(2 * WINDOW):
            out = lab.module.step(lab.pool, ints(2), *lab.ordered(lab.inputs(1)))
            if kind != "huge":  # outputs of BF16 reach that far, records do not
                assert torch.isfinite(out).all()
        for name, tensor in lab.module.export(lab.pool, ints(2)).items():
            if name != "header":
                assert torch.isfinite(tensor.float()).all(), name
    assert errors[4] <= 1.05 * errors[0] + 1e-7
    assert errors[4] < 0.02


@pytest.mark.parametrize(
    ("spec", "period", "tokens"),
    [
        ("gdn", 1, 10_000),
        ("kda", 1, 10_000),
        ("gdn", 2, 2_000),
        ("kda", 2, 2_000),
        ("kda", 3, 2_000),
    ],
)
def test_few_different_tokens(make_lab: Make, spec: str, period: int, tokens: int) -> None:
    """The state keeps a rank of 1, 2, 3 (= r - 1), for long: it stays finite and right."""
    lab = make_lab(spec, seed=period)
    lab.reset(1)
    given = [lab.inputs(1) for _ in range(period)]
    exact = [{n: numpy(x) for n, x in one.items()} for one in given]
    for token in range(tokens):
        one = token % period
        lab.module.step(lab.pool, ints(1), *lab.ordered(given[one]))
        lab.state[[1]], _, _ = lab.oracle.step(lab.state[[1]], exact[one])
        if token % 500 == 499:
            found = numpy(lab.module.materialize(lab.pool, ints(1), layout="KV"))
            assert (distance(found, lab.state[[1]], axes=2) < 0.02).all(), token


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_silent_heads(make_lab: Make, spec: str) -> None:
    """Values of zero in some heads: their states stay exactly zero."""
    lab = make_lab(spec)
    lab.reset(3)
    for _ in range(2 * WINDOW + 3):
        given = lab.inputs(1)
        given["v"][:, 1::2] = 0
        out = lab.step([3], given)
        assert not out[:, 1::2].any()
    lab.check_state(3)
    assert not lab.module.materialize(lab.pool, ints(3))[:, 1::2].any()


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_keys_of_zero(make_lab: Make, spec: str) -> None:
    """Key and query zero: the norm has nothing to divide by."""
    lab = make_lab(spec)
    lab.load([0], lab.random_states(1))
    for token in range(WINDOW + 2):
        given = lab.inputs(1)
        if token % 3 == 0:
            given["k"].zero_()
            given["q"][:, : H // 2].zero_()
        lab.step([0], given)
    lab.check_state(0)
