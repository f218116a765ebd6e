"""Recurrences that no shipped spec has, on the CPU: against float64 and against the NumPy model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emit_specs import TEXTS, plan_of, spec_of

from leapgen import pipeline
from leapgen.emit.render import render
from leapgen.formats import elements
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads
from leapgen.oracle.tolerance import bounds, combined_in, distance
from leapgen.oracle.windowed import WindowModel
from leapgen.runtime.host import DTYPES
from leapgen.schedule.plan import Shape
from leapgen.spec.model import Input, Spec

SHAPE = Shape(K=16, V=24, H=2, HV=4, P=4, R=2)
SLOTS = np.array([2, 0])
TOKENS = 11
FAST = {"two", "tells", "sums"}


def draw(x: Input, rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    sizes = Heads(SHAPE.H, SHAPE.HV, SHAPE.K, SHAPE.V).of(x)
    drawn = 0.5 * rng.standard_normal(sizes if x.constant else (rows, *sizes))
    return elements.decode(x.dtype, elements.encode(x.dtype, drawn.astype(np.float32)))


def sent(spec: Spec, token: dict[str, Any]) -> list[torch.Tensor]:
    return [torch.tensor(x).to(DTYPES[spec.input(name).dtype]) for name, x in token.items()]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if set(name.split()) & FAST else pytest.mark.slow, id=name)
        for name in TEXTS
    ],
)
def test_kernels_agree_with_the_oracles(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    plan = plan_of(spec, "cpu")
    module = pipeline.load(render(plan, spec), tmp_path)
    pool = module.allocate(
        3, SHAPE.H, SHAPE.HV, SHAPE.K, SHAPE.V, window=SHAPE.P, compensators=SHAPE.R
    )
    for buffer in module.buffers:
        if buffer.role in ("record", "decay"):
            pool[buffer.name].fill_(torch.nan)
    rng = np.random.default_rng(0)
    state = rng.standard_normal((2, SHAPE.HV, SHAPE.K, SHAPE.V)).astype(np.float32)
    slots, position = torch.tensor(SLOTS, dtype=torch.int32), np.array([0, 1])
    start = torch.tensor(position, dtype=torch.int32)
    module.load_state(pool, slots, torch.tensor(state), start, layout="KV")
    model = WindowModel(spec, plan, SHAPE, 3)
    exact: np.ndarray[Any, Any] = state.astype(np.float64)
    model.load_state(SLOTS, state, position)
    constants = {x.name: draw(x, 2, rng) for x in spec.inputs if x.constant}
    for count in range(TOKENS):
        token = {x.name: constants.get(x.name, draw(x, 2, rng)) for x in spec.inputs}
        out = module.step(pool, slots, *sent(spec, token)).float().numpy()
        modelled = model.step(SLOTS, token)
        exact, expected, _ = Stepwise(spec).step(exact, token)
        limit = bounds(
            plan.format,
            plan.records,
            SHAPE.P,
            spec.output.dtype,
            K=SHAPE.K,
            compensators=SHAPE.R,
            substeps=len(spec.substeps),
            flushes=1 + (count + 1) // SHAPE.P,
            combined=combined_in(spec),
        )
        assert (distance(out, expected) <= limit["output"]).all()
        assert (distance(out, modelled) <= limit["output"]).all()
        found = module.materialize(pool, slots, layout="KV").numpy()
        assert (distance(found, exact, axes=2) <= limit["state"]).all()
    assert (pool.cursor[SLOTS].numpy() == model.pool["cursor"][SLOTS]).all()
    assert not pool.status.any()
