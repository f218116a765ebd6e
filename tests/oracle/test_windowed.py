"""The window model: against the float64 interpreter in every mode, and the contracts of a pool."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_samples import Inputs, model_of, spec_of

from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.tolerance import bounds, distance, half_steps
from leapgen.oracle.windowed import WindowModel
from leapgen.spec.model import Spec

SPECS = ("gdn", "kda", "erase_write")
EXACT = {"format": "fp32-window", "records": "fp32"}
INT8 = {"format": "leapquant-int8", "records": "fp16"}
FLAT = {**INT8, "compensators": 0}
SLOTS = np.array([3, 1, 4])


def started(spec: Spec, P: int, position: object = None) -> tuple[WindowModel, np.ndarray]:
    model = model_of(spec, P=P)
    S = np.random.default_rng(1).standard_normal((3, 4, 16, 24)).astype(np.float32)
    model.load_state(SLOTS, S, None if position is None else np.asarray(position))
    return model, model.materialize(SLOTS).astype(np.float64)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("P", [1, 2, 5, 16])
def test_an_exact_window_is_the_recurrence(name: str, P: int) -> None:
    spec = spec_of(name, EXACT)
    model, S = started(spec, P, [0, 2, 13])
    inputs, reference = Inputs(spec, 3), Stepwise(spec)
    for _ in range(2 * P + 3):
        x = inputs()
        S, o, us = reference.step(S, x)
        out, found = model.step_with_corrections(SLOTS, x)
        assert distance(out, o).max() < 2e-5
        assert distance(found, np.stack(us, axis=-2)).max() < 2e-5
        assert distance(model.materialize(SLOTS), S, 2).max() < 2e-5
    assert (model.pool.status == 0).all()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "state", [INT8, {**INT8, "smoothing": "none"}, {**INT8, "compensators": 0}]
)
def test_a_quantized_window_stays_within_its_bounds(name: str, state: dict[str, object]) -> None:
    spec = spec_of(name, state)
    model, S = started(spec, 4)
    inputs, reference = Inputs(spec, 3), Stepwise(spec)
    for t in range(17):
        x = inputs()
        S, o, us = reference.step(S, x)
        limit = bounds(model.plan.format, "fp16", 4, "fp32", K=16, substeps=len(us), flushes=t // 4)
        out, found = model.step_with_corrections(SLOTS, x)
        assert distance(out, o).max() < limit["output"]
        assert distance(found, np.stack(us, axis=-2)).max() < limit["correction"]
        limit = bounds(
            model.plan.format, "fp16", 4, "fp32", K=16, substeps=len(us), flushes=(t + 1) // 4
        )
        assert distance(model.materialize(SLOTS), S, 2).max() < limit["state"]


@pytest.mark.parametrize("P", [1, 3, 16])
def test_windows_close_where_the_position_is_a_multiple(P: int) -> None:
    spec = spec_of("gdn", EXACT)
    position = np.array([0, 2, 13])
    model, _ = started(spec, P, position)
    inputs = Inputs(spec, 3)
    for t in range(2 * P + 1):
        phase = model.pool["phase"][SLOTS, 0]
        cursor = model.pool["cursor"][SLOTS, 0]
        assert ((phase + cursor) == (position + t) % P).all()
        model.step(SLOTS, inputs())
    expected = sum(((position + t + 1) % P == 0).sum() for t in range(2 * P + 1)) * 4
    assert model.flushes == expected


def test_a_flush_is_within_half_a_step_of_the_state_before() -> None:
    spec = spec_of("kda", INT8)
    model, _ = started(spec, 4)
    inputs = Inputs(spec, 3)
    for _ in range(3):
        model.step(SLOTS, inputs())
    twin = model_of(spec, P=5)  # the same tokens, but its window does not close
    for name in model.pool:
        part = model.pool[name]
        if part.ndim > 2 and name.startswith("record"):
            twin.pool[name][:, :, :4] = part
        else:
            twin.pool[name][...] = part
    x = inputs()
    model.step(SLOTS, x)
    twin.step(SLOTS, x)
    stored = model.pool.stored(SLOTS)
    gap = np.abs(model.materialize(SLOTS) - twin.materialize(SLOTS))
    peak = np.abs(twin.materialize(SLOTS)).max()
    assert (gap <= half_steps(model.plan.format, stored.codes) + 1e-5 * peak).all()


def test_inactive_rows_touch_nothing_and_give_zeros() -> None:
    spec = spec_of("gdn", INT8)
    model, _ = started(spec, 4)
    before = {name: model.pool[name].tobytes() for name in model.pool}
    rows = np.array([-1, 0, 0])
    out = model.step(rows, Inputs(spec, 3)(), first_slot=1)
    assert (out == 0).all()
    assert (model.materialize(rows, first_slot=1) == 0).all()
    model.flush(rows, first_slot=1)
    model.reset(rows, first_slot=1)
    model.copy(rows, SLOTS, first_slot=1)
    model.copy(SLOTS, rows, first_slot=1)
    model.load_state(rows, np.ones((3, 4, 16, 24)), first_slot=1)
    assert {name: model.pool[name].tobytes() for name in model.pool} == before
    assert (model.pool.status == 0).all()


def test_what_only_the_device_knows_is_noted() -> None:
    spec = spec_of("gdn", INT8)
    model, _ = started(spec, 4)
    before = model.pool["payload"].tobytes()
    assert (model.step(np.array([5, 9, 5]), Inputs(spec, 3)()) == 0).all()
    assert model.pool.status.tolist() == [1, 0, 0, 0]
    model.pool["cursor"][3] = 4
    out = model.step(SLOTS, Inputs(spec, 3)())
    assert (out[0] == 0).all()
    assert (out[1:] != 0).any()
    assert model.pool.status.tolist() == [1, 1, 0, 0]
    assert model.pool["payload"].tobytes() == before


def test_rows_do_not_see_each_other() -> None:
    spec = spec_of("kda", INT8)
    together, _ = started(spec, 4, [0, 2, 3])
    alone, _ = started(spec, 4, [0, 2, 3])
    inputs = Inputs(spec, 3)
    constants = {x.name for x in spec.inputs if x.constant}
    for _ in range(6):
        x = inputs()
        out = together.step(SLOTS, x)
        for row in (2, 0, 1):
            one = {n: a if n in constants else a[row : row + 1] for n, a in x.items()}
            assert np.abs(alone.step(SLOTS[row : row + 1], one)[0] - out[row]).max() < 1e-6


def test_copy_reset_export() -> None:
    spec = spec_of("kda", INT8)
    model, _ = started(spec, 4)
    inputs = Inputs(spec, 3)
    for _ in range(2):
        model.step(SLOTS, inputs())
    model.copy(np.array([3]), np.array([0]))
    a, b = model.export(np.array([3])), model.export(np.array([0]))
    assert list(a) == [x.name for x in model.plan.buffers]
    assert all(a[n].tobytes() == b[n].tobytes() for n in a)
    assert (model.materialize(np.array([3])) == model.materialize(np.array([0]))).all()
    model.reset(np.array([3]))
    assert (model.materialize(np.array([3])) == 0).all()
    assert (model.materialize(np.array([0])) != 0).any()


def test_materialize_leaves_the_window_open() -> None:
    spec = spec_of("gdn", INT8)
    model, _ = started(spec, 4)
    inputs = Inputs(spec, 3)
    model.step(SLOTS, inputs())
    before = {name: model.pool[name].tobytes() for name in model.pool}
    model.materialize(SLOTS)
    assert {name: model.pool[name].tobytes() for name in model.pool} == before


GATES = (0.0, -1e-8, -5.0, -88.0, -1e4, -np.inf)


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_extreme_decays(name: str) -> None:
    spec = spec_of(name, EXACT, {"gate": "log_decay"})
    model, S = started(spec, 16)
    inputs, reference = Inputs(spec, 3), Stepwise(spec)
    rng = np.random.default_rng(2)
    for _ in range(40):
        x = inputs()
        x["g"] = rng.choice(np.array(GATES, np.float32), x["g"].shape)
        S, o, _ = reference.step(S, x)
        out = model.step(SLOTS, x)
        assert np.isfinite(out).all()
        assert distance(out, o).max() < 2e-4
        assert distance(model.materialize(SLOTS), S, 2).max() < 1e-4


def test_one_huge_gate_does_not_swallow_later_small_ones() -> None:
    spec = spec_of("gdn", EXACT, {"gate": "log_decay"})
    model, S = started(spec, 16)
    inputs, reference = Inputs(spec, 3), Stepwise(spec)
    for t in range(15):
        x = inputs()
        x["g"] = np.full_like(x["g"], -1e4 if t == 0 else -1e-3)
        S, _, _ = reference.step(S, x)
        model.step(SLOTS, x)
    assert distance(model.materialize(SLOTS), S, 2).max() < 1e-4


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_extreme_states_stay_finite(scale: float) -> None:
    spec = spec_of("kda", INT8)
    model = model_of(spec, P=4)
    S = (np.random.default_rng(1).standard_normal((3, 4, 16, 24)) * scale).astype(np.float32)
    model.load_state(SLOTS, S)
    assert distance(model.materialize(SLOTS), S, 2).max() < 0.01
    inputs = Inputs(spec, 3)
    for _ in range(9):
        assert np.isfinite(model.step(SLOTS, inputs())).all()
        assert np.isfinite(model.materialize(SLOTS)).all()


def test_corrections_are_clamped_to_what_a_record_holds() -> None:
    spec = spec_of("gdn", INT8)
    model, _ = started(spec, 8)
    x = Inputs(spec, 3)()
    x["v"] = x["v"] * np.float32(1e7)
    model.step(SLOTS, x)
    u = model.pool["record_u"][SLOTS][:, :, 0].astype(np.float32)
    assert np.isfinite(u).all()
    assert np.abs(u).max() == 65504
