"""Kinds 5 and 6: orientation, and decays from none at all to a reset of the state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, Lab, ints, numpy

from leapgen.oracle.tolerance import distance

Make = Callable[..., Lab]
GATES = (0.0, -1e-8, -5.0, -88.0, -1e4, float("-inf"))


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
def test_one_hot_states_come_back(make_lab: Make, dims: tuple[int, int]) -> None:
    """Every head another place; in both layouts; nothing elsewhere."""
    lab = make_lab("gdn", dims)
    K, V = dims
    state = torch.zeros(3, HV, V, K)
    for row in range(3):
        for head in range(HV):
            state[row, head, (7 * row + 5 * head) % V, (11 * head + 3 * row + 1) % K] = row - 1.5
    lab.module.load_state(lab.pool, ints(3, 0, 4), state)
    found = lab.module.materialize(lab.pool, ints(3, 0, 4))
    assert torch.allclose(found, state, atol=1e-3)
    assert torch.equal(found != 0, state != 0)
    turned = lab.module.materialize(lab.pool, ints(3, 0, 4), layout="KV")
    assert torch.equal(turned, found.mT)
    lab.module.load_state(lab.pool, ints(1, 2, 3), turned.contiguous(), layout="KV")
    again = lab.module.materialize(lab.pool, ints(1, 2, 3))
    assert torch.allclose(again, state, atol=2e-3)


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_one_gate_for_long(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    """Each head its own gate, over two windows, from a state of ones."""
    lab = make_lab(spec, dims, picks={"gate": "log_decay"})
    for gates in (GATES[:HV], GATES[2:]):
        lab.load([1, 3], np.ones((2, HV, *dims)))
        for _ in range(2 * WINDOW):
            given = lab.inputs(2)
            shape = given["g"].shape
            of_head = torch.tensor(gates).reshape(1, HV, *[1] * (len(shape) - 2))
            given["g"] = of_head.expand(shape).contiguous()
            out = lab.step([3, 1], given)
            assert torch.isfinite(out).all()
        lab.check_state(1, 3)


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_gates_in_any_order(make_lab: Make, spec: str) -> None:
    """Large and small decays mixed over time and, where they are vectors, over channels: a gate of
    -1e4 must not swallow the ones after it."""
    lab = make_lab(spec, picks={"gate": "log_decay"}, seed=3)
    lab.load([0, 2, 4], lab.random_states(3))
    for _ in range(3 * WINDOW):
        given = lab.inputs(3)
        given["g"] = torch.tensor(lab.rng.choice([*GATES, *[-1e-3] * 6], given["g"].shape)).float()
        lab.step([2, 4, 0], given)
    lab.check_state(0, 2, 4)


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_an_infinite_decay_is_a_reset(make_lab: Make, spec: str) -> None:
    """After it, a slot with a past and an empty one give the same."""
    lab = make_lab(spec, picks={"gate": "log_decay"})
    lab.load([0], 1e3 * lab.random_states(1))
    lab.reset(1)
    for token in range(WINDOW):
        given = {
            n: x if lab.spec.input(n).constant else x[:1].expand(2, *x.shape[1:])
            for n, x in lab.inputs(1).items()
        }
        if token == 3:
            given["g"] = torch.full_like(given["g"], float("-inf"))
        out = lab.step([0, 1], given)
        if token >= 3:
            assert (distance(numpy(out[0]), numpy(out[1])) < 1e-2).all()
    lab.check_state(0, 1)
    assert np.abs(lab.state[0]).max() < 100


def test_no_decay_is_the_rule_without_gates(make_lab: Make) -> None:
    """g = 0: vector and scalar decays give the same outputs."""
    labs = [make_lab(spec, picks={"gate": "log_decay"}) for spec in ("gdn", "kda")]
    states = labs[0].random_states(1)
    for lab in labs:
        lab.load([2], states)
    for _ in range(WINDOW + 4):
        given = labs[0].inputs(1)
        outs = []
        for lab in labs:
            own = {x.name: given[x.name] for x in lab.spec.inputs if x.name != "g"}
            sizes = next(x for x in lab.module.inputs if x.name == "g").sizes(1, lab.pool.shape)
            outs.append(lab.step([2], {**own, "g": torch.zeros(sizes)}))
        assert (distance(numpy(outs[0]), numpy(outs[1])) < 1e-2).all()
