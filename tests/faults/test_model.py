"""A module against the NumPy window model on the same slots: no roundings between them, so wrong
indices cannot hide behind quantization noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, H, Lab, ints, numpy

from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.oracle.tolerance import bounds, distance
from leapgen.oracle.windowed import WindowModel
from leapgen.schedule.arch import arch_named
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import make_plan

Make = Callable[..., Lab]
SLOTS = (3, 0, 4)


def model_of(lab: Lab) -> WindowModel:
    plan = make_plan(derive(lower(lab.spec)), lab.spec.state, arch_named("cpu"))
    shape = Shape(lab.K, lab.V, H, HV, lab.window, lab.pool.shape.R)
    return WindowModel(lab.spec, plan, shape, lab.slots)


def sync(model: WindowModel, lab: Lab) -> None:
    """Give the model's slots what the module's hold."""
    for name, values in lab.module.export(lab.pool, ints(*SLOTS)).items():
        if name != "header":
            raw = values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
            model.pool[name][list(SLOTS)] = raw.numpy()


def near(found: Any, want: Any, limit: float, axes: int = 1) -> None:
    gap = distance(np.asarray(found, np.float64), np.asarray(want, np.float64), axes)
    assert (gap <= limit).all(), f"off by {gap.max():.2e} > {limit:.2e}"


@pytest.mark.parametrize("format", ["leapquant-int8", "fp32-window", "bf16-window"])
@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_step_flush_and_state(
    make_lab: Make, spec: str, dims: tuple[int, int], format: str
) -> None:
    lab = make_lab(spec, dims, format=format)
    model = model_of(lab)
    allowed = bounds(
        model.plan.format, model.plan.records, WINDOW, lab.spec.output.dtype, K=dims[0]
    )
    flushed = bounds(model.plan.format, model.plan.records, WINDOW, "fp32", K=dims[0], flushes=1)[
        "state"
    ]
    lab.load(SLOTS, lab.random_states(3))
    slots = np.array(SLOTS)
    for token in range(2 * WINDOW + 3):
        sync(model, lab)
        given = lab.inputs(3)
        out = lab.module.step(lab.pool, ints(*SLOTS), *lab.ordered(given))
        want = model.step(slots, {n: numpy(x).astype(np.float32) for n, x in given.items()})
        near(numpy(out), want, allowed["output"])
        found = numpy(lab.module.materialize(lab.pool, ints(*SLOTS), layout="KV"))
        full = token % WINDOW == WINDOW - 1
        near(found, model.materialize(slots), flushed if full else allowed["state"], axes=2)
        record = np.asarray(model.pool["record_u"][slots][:, :, token % WINDOW], np.float64)
        if not full and format != "bf16-window":
            mine = numpy(lab.pool.record_u[list(SLOTS)][:, :, token % WINDOW])
            near(mine, record, allowed["correction"])


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
def test_codes_are_exact_without_compensators(make_lab: Make, dims: tuple[int, int]) -> None:
    """load_state at r = 0 quantizes as the reference does, up to ties."""
    lab = make_lab("gdn", dims, compensators=0)
    model = model_of(lab)
    states = lab.random_states(3)
    lab.load(SLOTS, states, position=9)
    model.load_state(np.array(SLOTS), states.astype(np.float32), np.full(3, 9))
    data = lab.module.export(lab.pool, ints(*SLOTS))
    slots = list(SLOTS)
    for name in ("key_scale", "value_scale"):
        near(numpy(data[name]), model.pool[name][slots], 1e-6)
    apart = np.abs(numpy(data["payload"]) - model.pool["payload"][slots])
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3
    assert (data["phase"].numpy() == model.pool["phase"][slots]).all()


@pytest.mark.parametrize("format", ["leapquant-int8", "fp32-window", "bf16-window"])
@pytest.mark.parametrize("dims", [PLAIN, MATRIX, (128, 128)])
def test_bytes_of_a_slot(make_lab: Make, format: str, dims: tuple[int, int]) -> None:
    """The plan's figure, the module's, and what the allocator takes, are one."""
    lab = make_lab("kda", dims, format=format)
    plan = model_of(lab).plan
    shape = plan.shape(*dims, H, HV)
    pool = lab.module.allocate(3, H, HV, *dims)
    taken = sum(t.untyped_storage().nbytes() for t in pool.values())
    assert plan.bytes_per_slot(shape) == lab.module.bytes_per_slot(**lab.sizes) == taken / 3
    assert [(b.name, tuple(pool[b.name].shape[2:])) for b in plan.buffers] == [
        (b.name, b.dims(shape)) for b in plan.buffers
    ]
