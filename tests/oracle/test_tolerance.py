"""Bounds: how they order, that a spec only tightens them, and the distance they bound."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen import pipeline
from leapgen.formats.presets import PRESETS
from leapgen.formats.table import FORMATS
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads, stream
from leapgen.oracle.tolerance import STRETCH, bounds, distance, half_steps
from leapgen.oracle.windowed import WindowModel
from leapgen.schedule.buffers import Shape

INT8, BF16, FP32 = (FORMATS[n] for n in ("leapquant-int8", "bf16-window", "fp32-window"))


def test_the_same_slot_leaves_arithmetic_only() -> None:
    b = bounds(FP32, "fp32", 16, "fp32")
    assert max(b.values()) < 1e-4
    assert bounds(INT8, "fp32", 16, "fp32", compensators=0) == b


def test_bounds_grow_with_what_is_rounded() -> None:
    for name in ("output", "correction", "state"):
        order = [
            bounds(FP32, "fp32", 16, "fp32", flushes=1)[name],
            bounds(FP32, "fp16", 16, "fp32", flushes=1)[name],
            bounds(BF16, "fp16", 16, "fp32", flushes=1)[name],
            bounds(INT8, "fp16", 16, "fp32", flushes=1)[name],
            bounds(INT8, "fp16", 16, "fp32", flushes=2)[name],
            bounds(INT8, "fp16", 16, "fp32", flushes=50)[name],
        ]
        assert order == sorted(order)
        assert len(set(order)) == len(order)


def test_the_output_type_counts_for_the_output_only() -> None:
    wide, narrow = (bounds(INT8, "fp16", 16, t) for t in ("fp32", "bf16"))
    assert narrow["output"] - wide["output"] == pytest.approx(2.0**-8, rel=0.01)
    assert narrow["state"] == wide["state"]


def test_a_spec_only_tightens() -> None:
    b = bounds(INT8, "fp16", 16, "bf16", tighter={"output": 1e-9, "state": 1.0})
    assert b["output"] == 1e-9
    assert b["state"] == bounds(INT8, "fp16", 16, "bf16")["state"]


def test_distance() -> None:
    a, b = np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 4.0], [0.0, 0.0]])
    assert distance(a, b).tolist() == [0.5, 0.0]
    assert distance(a, b, 2) == 0.5
    assert distance(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == np.inf
    assert distance(np.array([np.inf]), np.array([0.0])) == np.inf


@pytest.mark.parametrize("name", ["hgrn2", "gdn"])
def test_rounded_records_are_read_as_errors_of_the_state(name: str) -> None:
    """Plain tokens of the NumPy model from a zero state on, all in one window, against float64: the
    state stays within the rounding of its records; outputs do not, by far, but are `walked`."""
    spec = pipeline.parse(name, format="fp32-window")
    plan = pipeline.schedule(pipeline.derive(pipeline.lower(spec)), spec, "cpu")
    heads, rows, tokens = Heads(2, 4, 16, 24), np.arange(8), 24
    model = WindowModel(spec, plan, Shape(16, 24, 2, 4, tokens + 1, 0), len(rows))
    exact, worst = np.zeros((len(rows), 4, 16, 24)), {"output": 0.0, "state": 0.0}
    drawn = stream(spec, tokens * len(rows), heads, 3)
    for first in range(0, tokens * len(rows), len(rows)):
        token = {
            x.name: drawn[x.name] if x.constant else drawn[x.name][first : first + len(rows)]
            for x in spec.inputs
        }
        out = model.step(rows, {n: x.astype(np.float32) for n, x in token.items()})
        exact, want, _ = Stepwise(spec).step(exact, {n: np.float64(x) for n, x in token.items()})
        gaps = {"output": distance(out, want), "state": distance(model.state(rows), exact, 2)}
        worst = {n: max(worst[n], float(gaps[n].max())) for n in worst}
    same, walked = (
        bounds(plan.format, plan.records, tokens, "fp32", K=16, walked=w) for w in (False, True)
    )
    assert worst["state"] <= same["state"]
    assert same["output"] < worst["output"] <= walked["output"], worst


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("row", [INT8, INT8.with_state("none", 0), BF16, FP32])
def test_half_steps_bound_every_element_and_the_stretch_holds(row: object, spread: float) -> None:
    rng = np.random.default_rng(0)
    S = rng.standard_normal((4, 128, 96)) * np.exp(spread * rng.standard_normal((4, 128, 1)))
    S = (S * np.exp(spread * rng.standard_normal((4, 1, 96)))).astype(np.float32)
    stored = row.store(S, np.zeros((4, row.compensators, 96), np.float16))  # type: ignore[attr-defined]
    half = half_steps(row, stored.codes)  # type: ignore[arg-type]
    assert (np.abs(row.restore(stored) - S) <= 1.001 * half + 1e-6 * np.abs(S).max()).all()  # type: ignore[attr-defined]
    assert half.max() <= STRETCH * row.noise() * np.abs(S).max()  # type: ignore[attr-defined]


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("name", PRESETS)
def test_half_steps_bound_every_element_of_a_composition(name: str, spread: float) -> None:
    row, rng = PRESETS[name], np.random.default_rng(0)
    S = rng.standard_normal((3, 64, 48)) * np.exp(spread * rng.standard_normal((3, 64, 1)))
    S[0, 3, 4] *= 50.0  # what shares its scale, or its channel, is rounded by its size
    S = S.astype(np.float32)
    draws = rng.random(S.shape, np.float32) if row.stochastic else None
    stored = row.store(S, row.no_factors(3, row.compensators, 48), draws)
    error = np.abs(row.restore(stored) - S)
    if row.choices.outliers:
        return  # its ranges are the reference model's own affair
    bound = half_steps(row, stored.codes)
    assert (error <= bound * (1 + 1e-4) + 2e-6 * np.abs(S).max()).all()
    assert bound.mean() < 30 * error.mean()  # rotation: a channel's bound is that of all its errors
