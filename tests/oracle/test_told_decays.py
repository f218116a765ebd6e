"""Decays that no record holds: from the key of a token, and from one decay of all tokens."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen import pipeline
from leapgen.oracle.evaluate import log_decay_of
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.tolerance import bounds, distance
from leapgen.oracle.windowed import WindowModel
from leapgen.schedule.buffers import Shape

SHAPE = Shape(K=16, V=8, H=1, HV=2, P=8, R=0)
# Of a sigmoid that is the key: decays of 1e-17, 3e-4, one half, 1 - 3e-4, 1 - 2e-9, exactly 1.
GATES = (-40.0, -8.0, 0.0, 8.0, 20.0, 120.0)


@pytest.mark.parametrize("gate", GATES)
def test_a_rounded_key_keeps_the_bound_of_its_decay(gate: float) -> None:
    """Near a decay of 1 the key is small, and its rounding far below that of a decay; near 0 the
    decay is what is lost, and the state with it."""
    spec = pipeline.parse("hgrn2", format="fp32-window")
    plan = pipeline.schedule(pipeline.derive(pipeline.lower(spec)), spec, "cpu")
    rng = np.random.default_rng(0)
    model = WindowModel(spec, plan, SHAPE, 1)
    state = rng.standard_normal((1, 2, 16, 8)).astype(np.float32)
    slots = np.array([0])
    model.load_state(slots, state)
    exact = state.astype(np.float64)
    limit = bounds(plan.format, plan.records, SHAPE.P, "fp32", K=16, compensators=0, walked=True)
    for _ in range(2 * SHAPE.P + 3):
        token = {
            "q": rng.standard_normal((1, 1, 16)),
            "f": gate + 0.25 * rng.standard_normal((1, 1, 16)),
            "i": rng.standard_normal((1, 2, 8)),
        }
        out = model.step(slots, token)
        exact, expected, _ = Stepwise(spec).step(exact, token)
        assert (distance(out, expected) <= limit["output"]).all()
        assert (distance(model.state(slots), exact, axes=2) <= limit["state"]).all()


def test_the_formula_of_a_decay_in_its_key() -> None:
    spec = pipeline.parse("hgrn2")
    key = np.array([0.0, 0.25, 0.5])
    assert np.allclose(log_decay_of(spec, key), np.log(1 - key))
    with pytest.raises(ValueError, match="tells"):
        log_decay_of(pipeline.parse("deltanet"), key)
