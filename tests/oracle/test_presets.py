"""Every named format in the models of window and step: against float64, and a slot's contracts."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_samples import Inputs, plan_of, spec_of

from leapgen.formats.table import NAMED
from leapgen.oracle import in_place
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.tolerance import distance
from leapgen.oracle.windowed import WindowModel

SLOTS = np.array([3, 1])
ALLOWED = {32: 2e-3, 16: 0.05, 8: 0.25, 6: 0.35, 5: 0.4, 4: 0.8}
"""Distance of a state from the exact one after ten tokens, by the width of a code."""


def model(name: str, spec_name: str = "kda", window: int = 4) -> WindowModel:
    spec = spec_of(spec_name, {"format": name, "window": window})
    plan = plan_of(spec)
    return in_place.model_of(spec, plan, plan.shape(16, 24, 2, 4), 5)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("spec", ["gdn", "kda", "erase_write"])
def test_every_format_runs_every_recurrence(name: str, spec: str) -> None:
    found = model(name, spec)
    start = np.random.default_rng(1).standard_normal((2, 4, 16, 24)).astype(np.float32)
    found.load_state(SLOTS, start)
    S, reference, inputs = start.astype(np.float64), Stepwise(found.spec), Inputs(found.spec, 2)
    for _ in range(10):
        x = inputs()
        S, out, _ = reference.step(S, x)
        o = found.step(SLOTS, x)
        assert np.isfinite(o).all()
    assert distance(found.materialize(SLOTS), S, 2).max() < ALLOWED[NAMED[name].bits]
    assert distance(o, out).max() < 2 * ALLOWED[NAMED[name].bits]
    assert (found.pool.status == 0).all()


@pytest.mark.parametrize("name", NAMED)
def test_the_pool_holds_what_the_plan_counts(name: str) -> None:
    found = model(name)
    shape = found.shape
    for b in found.plan.buffers:
        array = found.pool[b.name]
        assert array.nbytes == 5 * shape.size(b.heads) * b.tile_bytes(shape), b.name
    stored = sum(b.slot_bytes(shape) for b in found.plan.buffers)
    assert found.plan.bytes_per_slot(shape) == stored


@pytest.mark.parametrize("name", NAMED)
def test_a_copied_slot_goes_on_as_its_source(name: str) -> None:
    """Also where codes are rounded by draws: these depend on what the slot holds, not on which
    slot or row it is."""
    found = model(name)
    inputs = Inputs(found.spec, 1)
    for _ in range(6):
        found.step(np.array([1]), inputs())
    found.copy(np.array([1]), np.array([4]))
    for _ in range(7):
        x = {n: a if n in inputs.constants else np.repeat(a, 2, 0) for n, a in inputs().items()}
        out = found.step(np.array([4, 1]), x)
        assert (out[0] == out[1]).all()
    states = found.materialize(np.array([4, 1]))
    assert (states[0] == states[1]).all()
    found.reset(np.array([4]))
    assert (found.materialize(np.array([4])) == 0).all()


def store(found: WindowModel, slot: np.ndarray, S: np.ndarray) -> None:
    """As a step stores: the draws are those of the stores that the slot has seen."""
    cold = found.plan.format.no_factors(*S.shape[:2], found.shape.R, found.shape.V)
    found.pool.store((slot,), found.plan.format.store(S, cold, found._draws(slot)))


def test_two_stores_of_one_state_draw_differently() -> None:
    found = model("int8-step-sr")
    S = np.random.default_rng(2).standard_normal((1, 4, 16, 24)).astype(np.float32)
    slot = np.array([2])
    found.load_state(slot, S)
    codes = [found.pool["payload"][2].copy()]
    store(found, slot, S)
    codes.append(found.pool["payload"][2].copy())
    assert (codes[0] != codes[1]).mean() > 0.1
    assert np.abs(codes[0].astype(int) - codes[1].astype(int)).max() == 1
    assert (found.pool["stores"][2] == 2).all()
    found.load_state(slot, S)  # a new life: what the slot held does not matter
    assert (found.pool["payload"][2] == codes[0]).all()


def test_a_state_that_does_not_change_is_kept_on_average_by_draws() -> None:
    """Stored again and again, a state that is rounded to nearest stays where it fell."""
    means = {}
    S = np.random.default_rng(3).standard_normal((1, 4, 16, 24)).astype(np.float32)
    for name in ("int8-step-sr", "int8-step"):
        found, total = model(name), np.zeros_like(S, np.float64)
        for _ in range(200):
            store(found, np.array([0]), S)
            total += found.materialize(np.array([0]))
        means[name] = np.abs(total / 200 - S).mean()
    assert means["int8-step-sr"] < 0.3 * means["int8-step"]


def test_blocks_and_packed_codes_of_a_slot_are_those_of_the_format() -> None:
    """What the pool gives back is what was put in, planes and all."""
    for name in ("leap5", "nvfp6", "int8-step-ef", "kvquant-6", "leapquant-int4"):
        found = model(name)
        S = np.random.default_rng(4).standard_normal((1, 4, 16, 24)).astype(np.float32)
        format = found.plan.format
        old = format.no_factors(1, 4, found.shape.R, 24)
        stored = format.store(S, old)
        found.load_state(np.array([3]), S)
        back = found.pool.stored(np.array([3]))
        assert stored.parts.keys() == back.parts.keys()
        for part, expected in stored.parts.items():
            assert (back.parts[part] == expected).all(), (name, part)
