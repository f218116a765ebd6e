"""Kernels that store the state at every step: every kind of recurrence, on the CPU and emulated."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emit_specs import TEXTS, plan_of, spec_of
from test_other_recurrences import draw, sent

from leapgen import pipeline
from leapgen.emit.render import render
from leapgen.oracle.in_place import model_of
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.tolerance import bounds, distance
from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import Module, Pool
from leapgen.schedule.plan import Shape

K, V, H, HV = 16, 24, 2, 4
SLOTS = np.array([2, 0])
FORMATS = ("fp32-step", "bf16-step", "int8-step")
KNOBS: tuple[dict[str, int], ...] = (
    {"threads": 32, "slices": 1, "lanes": 1, "min_blocks": 1},
    {"threads": 64, "slices": 3, "lanes": 2, "min_blocks": 2},
    {"threads": 256, "slices": 2, "lanes": 32, "min_blocks": 1},
)


@functools.cache
def module_of(name: str, format: str, arch: str, place: Path) -> Module:
    spec = spec_of(name, format)
    module = pipeline.load(render(plan_of(spec, arch), spec), place / f"{arch}-{format}")
    return module if arch == "cpu" else module.with_backend(Emulator())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("in_place")


def loaded(module: Module, state: np.ndarray[Any, Any]) -> tuple[Pool, torch.Tensor]:
    pool, slots = module.allocate(3, H, HV, K, V), torch.tensor(SLOTS, dtype=torch.int32)
    module.load_state(pool, slots, torch.tensor(state), layout="KV")
    return pool, slots


def marked(name: str, format: str, arch: str) -> Any:
    quick = "two" in name and (format, arch) in (("fp32-step", "sm90"), ("int8-step", "cpu"))
    marks = () if quick else pytest.mark.slow
    return pytest.param(name, format, arch, marks=marks, id=f"{name}-{format}-{arch}")


@pytest.mark.parametrize(
    ("name", "format", "arch"),
    [marked(n, f, a) for n in TEXTS for f in FORMATS for a in ("cpu", "sm90")],
)
def test_a_step_is_the_recurrence(name: str, format: str, arch: str, place: Path) -> None:
    """Each step from the pool's own state: output and stored state, in float64 and in the model."""
    spec = spec_of(name, format)
    plan, shape = plan_of(spec, arch), Shape(K, V, H, HV, 1, 0)
    module = module_of(name, format, arch, place)
    rng = np.random.default_rng(1)
    state = rng.standard_normal((2, HV, K, V)).astype(np.float32)
    pool, slots = loaded(module, state)
    model = model_of(spec, plan, shape, 3)
    constants = {x.name: draw(x, 2, rng) for x in spec.inputs if x.constant}
    limit, stored = (
        bounds(plan.format, "fp32", 1, spec.output.dtype, K=K, substeps=2, flushes=n)
        for n in (0, 1)
    )
    for _ in range(4):
        token = {x.name: constants.get(x.name, draw(x, 2, rng)) for x in spec.inputs}
        for key, values in module.export(pool, slots).items():
            if key in model.pool:
                raw = values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
                model.pool[key][SLOTS] = raw.numpy()
        before = module.materialize(pool, slots, layout="KV").numpy().astype(np.float64)
        assert np.array_equal(before, model.materialize(SLOTS))
        out = module.step(pool, slots, *sent(spec, token), check=True).float().numpy()
        exact, expected, _ = Stepwise(spec).step(before, token)
        assert (distance(out, expected) <= limit["output"]).all()
        assert (distance(out, model.step(SLOTS, token)) <= limit["output"]).all()
        after = module.materialize(pool, slots, layout="KV").numpy()
        assert (distance(after, exact, axes=2) <= stored["state"]).all()
    assert not pool.status.any()
    assert not module.materialize(pool, torch.tensor([1], dtype=torch.int32)).any()


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_any_division_of_a_tile_gives_the_same_state(
    format: str, knobs: dict[str, int], place: Path
) -> None:
    """Up to the order of sums, and a code where that turns a tie."""
    name = "two sub-steps, keys of value heads"
    spec, module = spec_of(name, format), module_of(name, format, "sm90", place)
    tuned = module.with_configs(step=knobs, materialize=knobs, load_state=knobs)
    rng = np.random.default_rng(2)
    state = rng.standard_normal((2, HV, K, V)).astype(np.float32)
    token = {x.name: draw(x, 2, rng) for x in spec.inputs}
    results = []
    for m in (module, tuned):
        pool, slots = loaded(m, state)
        out = m.step(pool, slots, *sent(spec, token)).float().numpy()
        results.append((out, m.materialize(pool, slots, layout="KV").numpy()))
    (out, found), (other, turned) = results
    row = plan_of(spec, "sm90").format
    assert (distance(other, out) < 2**-7).all()
    assert (distance(turned, found, axes=2) <= 2.1 * row.noise() + 1e-5).all()


def test_a_pool_holds_the_state_alone(place: Path) -> None:
    name = "constant decay"
    module = module_of(name, "int8-step", "cpu", place)
    assert [b.name for b in module.buffers] == ["payload", "value_scale"]
    assert "flush" not in module.kernels
    assert module.bytes_per_slot(H=H, HV=HV, K=K, V=V) == HV * (K * V + 4 * V)
    pool = module.allocate(2, H, HV, K, V)
    slots = torch.tensor([0, 1], dtype=torch.int32)
    module.flush(pool, slots, check=True)
    with pytest.raises(ValueError, match="window: expected 1, as every step rewrites the state"):
        module.allocate(2, H, HV, K, V, window=16)
