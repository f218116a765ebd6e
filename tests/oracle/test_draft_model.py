"""Drafts in the NumPy model: what is accepted is as if it had been stepped, the rest never was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leapgen import paths, pipeline
from leapgen.oracle.drafts import DraftModel, Speculation
from leapgen.oracle.streams import Heads, stream
from leapgen.schedule.plan import PlanError
from leapgen.spec import loader

ROWS, WINDOW, DRAFTS = 3, 5, 4
HEADS = Heads(2, 4, 16, 8)


def model_of(name: str, format: str, drafts: int = DRAFTS, records: str = "fp16") -> DraftModel:
    spec = loader.load(paths.spec_file(name), None, {"format": format, "records": records})
    plan = pipeline.schedule(pipeline.derive(pipeline.lower(spec)), spec, "cpu")
    r = min(plan.format.compensators, 2)
    shape = plan.shape(HEADS.K, HEADS.V, HEADS.H, HEADS.HV, WINDOW, r, drafts)
    return DraftModel(spec, plan, shape, ROWS)


def drafts_of(model: DraftModel, tokens: int, seed: int) -> dict[str, Any]:
    """Inputs [rows, tokens, ...] of a verify."""
    drawn = stream(model.spec, ROWS * tokens, HEADS, seed)
    constants = stream(model.spec, 1, HEADS, 0)
    return {
        x.name: constants[x.name].astype(np.float32)
        if x.constant
        else drawn[x.name].reshape(ROWS, tokens, *drawn[x.name].shape[1:]).astype(np.float32)
        for x in model.spec.inputs
    }


def same(one: DraftModel, other: DraftModel, rows: np.ndarray[Any, Any]) -> None:
    """Equal slots, bit by bit, records beyond the cursor aside."""
    for name in ("payload", "cursor", "phase"):
        assert np.array_equal(one.pool[name][rows], other.pool[name][rows]), name
    assert np.array_equal(one.materialize(rows), other.materialize(rows))


@pytest.mark.parametrize("format", ["fp32-window", "bf16-window", "leapquant-int8", "leap5"])
@pytest.mark.parametrize("spec", ["gdn", "kda", "deltaproduct", "retnet", "hgrn2", "mamba2"])
def test_accepted_drafts_are_steps(spec: str, format: str) -> None:
    """Outputs and slots of rounds of drafts against plain steps of the accepted ones, to the bit as
    long as no window closes late; the cursor never stands at the window's end."""
    drafted, plain = model_of(spec, format), model_of(spec, format, 0)
    rng = np.random.default_rng(5)
    rows = np.arange(ROWS)
    for turn in range(12):
        tokens = int(rng.integers(1, DRAFTS + 1))
        inputs = drafts_of(drafted, tokens, turn)
        room = WINDOW - drafted.pool["phase"][:, 0] - drafted.pool["cursor"][:, 0]
        lengths = rng.integers(0, tokens + 1, ROWS)
        kept = np.minimum(rng.integers(0, tokens + 1, ROWS), np.minimum(lengths, room))
        before = plain.flushes
        out = drafted.verify(rows, inputs, lengths)
        assert (drafted.pool["pending"] == lengths[:, None]).all()
        assert not out[np.arange(tokens) >= lengths[:, None]].any()
        flushes = drafted.flushes
        drafted.commit(rows, kept)
        for t in range(kept.max(initial=0)):
            chosen = rows[t < kept]
            token = {
                x.name: inputs[x.name] if x.constant else inputs[x.name][chosen, t]
                for x in drafted.spec.inputs
            }
            assert np.array_equal(plain.step(chosen, token), out[chosen, t])
        assert drafted.flushes - flushes == plain.flushes - before
        same(drafted, plain, rows)
        assert (drafted.pool["cursor"] < WINDOW).all()
    assert drafted.flushes > 0


def test_an_overshoot_is_folded_in_one_flush() -> None:
    """A commit beyond the window's end folds all that it accepts, and the next window starts behind
    it. States are exact here, so plain decode is what they must equal."""
    model = model_of("gdn", "fp32-window", records="fp32")
    exact = Speculation(model.spec, np.zeros((ROWS, HEADS.HV, HEADS.K, HEADS.V)))
    rows, cursor, flushes = np.arange(ROWS), np.zeros(ROWS, int), 0
    kept = np.zeros(ROWS, int)
    for turn, following in enumerate(([4, 3, 1], [4, 4, 4], [2, 4, 4], [4, 1, 3])):
        inputs = drafts_of(model, DRAFTS, turn)
        out = model.verify(rows, inputs, accepted=kept)
        want = exact.verify(rows, inputs, accepted=kept)
        assert np.abs(out - want).max() < 3e-6 * np.abs(want).max()
        kept = np.array(following)
        cursor += kept
        flushes += int((cursor >= WINDOW).sum())
        cursor[cursor >= WINDOW] = 0
    model.commit(rows, kept)
    exact.commit(rows, kept)
    assert (model.pool["cursor"] == cursor[:, None]).all()
    assert not model.pool["phase"].any()
    assert model.flushes == HEADS.HV * flushes
    apart = np.abs(model.materialize(rows) - exact.state)
    assert apart.max() < 3e-6 * np.abs(exact.state).max()


def test_drafts_are_dropped_and_clamped() -> None:
    model = model_of("kda", "leapquant-int8")
    rows = np.arange(ROWS)
    inputs = drafts_of(model, 3, 1)
    one = {
        x.name: inputs[x.name] if x.constant else inputs[x.name][:, 0] for x in model.spec.inputs
    }
    model.verify(rows, inputs, np.array([3, 1, 0]))
    model.commit(rows, np.array([9, 9, 9]))
    assert (model.pool["cursor"] == [[3], [1], [0]]).all()
    model.commit(rows, np.array([1, 1, 1]))
    assert (model.pool["cursor"] == [[3], [1], [0]]).all()
    model.verify(rows, inputs)
    model.step(rows[:1], {n: x if model.spec.input(n).constant else x[:1] for n, x in one.items()})
    model.copy(rows[1:2], rows[2:])
    assert (model.pool["pending"] == [[0], [3], [0]]).all()
    state = model.materialize(rows[1:2])
    model.commit(rows, np.array([-1, 2, 2]))
    assert (model.pool["cursor"] == [[4], [3], [1]]).all()
    assert not np.array_equal(model.materialize(rows[1:2]), state)
    model.verify(rows, inputs)
    model.reset(rows[:1])
    model.load_state(rows[1:2], state)
    assert (model.pool["pending"] == [[0], [0], [3]]).all()


def test_plans_without_a_window_have_no_drafts() -> None:
    plan = pipeline.compile("gdn", "cpu", format="int8-step").plan
    assert plan.draft_kernels == ()
    with pytest.raises(PlanError, match="drafts must be none with format int8-step, found D=2"):
        plan.shape(16, 8, 2, 4, D=2)
    windowed = pipeline.compile("gdn", "cpu").plan
    shapes = [windowed.shape(16, 8, 2, 4, 5, 2, D) for D in (0, 3)]
    # Three tokens' keys and corrections, and four heads' counts; their decays fit the padding.
    more = 3 * (2 * 16 * 2 + 4 * 8 * 2) + 4 * 4
    assert windowed.bytes_per_slot(shapes[1]) - windowed.bytes_per_slot(shapes[0]) == more
