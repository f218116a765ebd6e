"""The window model under random operations against float64, whatever their order."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_samples import Inputs, model_of, plan_of, spec_of

from leapgen.oracle import in_place
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.tolerance import distance

SIZE = (4, 16, 24)


@pytest.mark.parametrize("name", ["gdn", "kda", "erase_write"])
@pytest.mark.parametrize("P", [1, 2, 5, 16, 32])
def test_two_hundred_random_operations(name: str, P: int) -> None:
    spec = spec_of(name, {"format": "fp32-window", "records": "fp32"})
    model, reference, inputs = model_of(spec, P=P), Stepwise(spec), Inputs(spec, 3)
    rng = np.random.default_rng(P)
    everyone = np.arange(5)
    model.reset(everyone)
    S, position = np.zeros((5, *SIZE)), np.zeros(5, int)
    for _ in range(200):
        rows = rng.permutation(5)[:3]
        match rng.choice(["step", "load", "copy", "reset", "flush"], p=[0.7, 0.1, 0.1, 0.05, 0.05]):
            case "step":
                x = inputs()
                S[rows], o, _ = reference.step(S[rows], x)
                position[rows] += 1
                assert distance(model.step(rows, x), o).max() < 1e-4
            case "load":
                S[rows] = rng.standard_normal((3, *SIZE)).astype(np.float32)
                position[rows] = rng.integers(0, 1000, 3)
                model.load_state(rows, S[rows], position[rows])
            case "copy":
                model.copy(rows[:1], rows[1:2])
                S[rows[1]], position[rows[1]] = S[rows[0]], position[rows[0]]
            case "reset":
                model.reset(rows[:1])
                S[rows[0]], position[rows[0]] = 0, 0
            case "flush":
                model.flush(rows)  # none is due: a step flushes what it fills
        place = model.pool["cursor"] + model.pool["phase"]
        assert (place == (position % P)[:, None]).all()
        assert distance(model.materialize(everyone), S, 2).max() < 1e-4
    assert (model.pool.status == 0).all()


def test_a_window_of_one_token_with_exact_records_is_the_recurrence_itself() -> None:
    """Window 1, FP32: every token is flushed, so that nothing is left of the window."""
    spec = spec_of("kda", {"format": "fp32-window", "records": "fp32"})
    model, inputs = model_of(spec, P=1), Inputs(spec, 1)
    model.reset(np.array([2]))
    for t in range(20):
        model.step(np.array([2]), inputs())
        assert model.flushes == 4 * (t + 1)
        assert (model.pool["cursor"][2] == 0).all()
        assert (model.pool["payload"][2] == model.materialize(np.array([2]))[0]).all()


@pytest.mark.parametrize("name", ["gdn", "kda", "erase_write"])
def test_a_state_that_every_step_stores_is_a_window_of_one_token(name: str) -> None:
    """The two models are written apart: one reads through records, the other is the recurrence."""
    spec = spec_of(name, {"format": "fp32-step", "records": None})
    plan = plan_of(spec)
    direct = in_place.model_of(spec, plan, plan.shape(16, 24, 2, 4), 5)
    assert isinstance(direct, in_place.StepModel)
    assert list(direct.pool) == ["payload"]
    window = model_of(spec_of(name, {"format": "fp32-window", "records": "fp32"}), P=1)
    inputs, rows = Inputs(spec, 3), np.array([4, -1, 0])
    state = np.random.default_rng(0).standard_normal((3, *SIZE)).astype(np.float32)
    for model in (direct, window):
        model.load_state(rows, state)
    for _ in range(12):
        x = inputs()
        (out, us), (expected, corrections) = (
            model.step_with_corrections(rows, x) for model in (direct, window)
        )
        assert not out[1].any()
        assert distance(out[[0, 2]], expected[[0, 2]]).max() < 1e-4
        assert distance(us[[0, 2]], corrections[[0, 2]]).max() < 1e-4
    assert distance(direct.materialize(rows), window.materialize(rows), 2).max() < 1e-4
    assert direct.flushes == window.flushes
    direct.flush(rows)
    direct.copy(np.array([4]), np.array([2]))
    assert (direct.pool["payload"][2] == direct.pool["payload"][4]).all()
