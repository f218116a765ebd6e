"""Steps whose payload becomes operands of an integer product: any codes, against the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from composed_codes import chain_of, random_parts, subject_of
from test_composed import PRODUCTS

from leapgen.formats.composed import Composed
from leapgen.oracle.in_place import model_of
from leapgen.oracle.streams import Heads, stream
from leapgen.oracle.windowed import WindowModel
from leapgen.report.subjects import one_thread
from leapgen.runtime.host import DTYPES

SLOTS = 2
SHAPES = ((64, 32, 1, 2), (96, 96, 1, 1))  # more key channels than threads; no power of two
ROTATED = "leap5[transform=rotation,scale=keys32-e4m3]"
QUICK = (("gdn", ROTATED, (32, 32, 1, 1)),)
ALL = [
    (s, n, shape)
    for s in ("gdn", "kda")
    for n in (
        *PRODUCTS,
        ROTATED,
        "int8-window[transform=rotation]",
        "leap4-levels[scale=keys32-e4m3]",
    )
    for shape in SHAPES
]


def filled(model: WindowModel, format: Composed, rng: np.random.Generator) -> None:
    """Every code, random scales, and compensators whose product is as large as the payload's."""
    random_parts(model.pool, format, rng)
    for name in model.pool:
        array = model.pool[name]
        if name in ("comp_key", "comp_u"):
            whole = array.dtype == np.int8
            array[...] = (
                rng.integers(-100, 100, array.shape) if whole else rng.normal(size=array.shape)
            )
        elif name.endswith("_scale") and array.dtype in (np.float32, np.float16):
            array[...] = 0.01 + 0.01 * rng.random(array.shape)
        elif name == "value_scale":  # BF16, by its bits
            wide = np.asarray(0.01 + 0.01 * rng.random(array.shape), np.float32)
            array[...] = wide.view(np.uint32) >> 16


def errors(
    spec: str, name: str, sizes: tuple[int, ...], tokens: int
) -> Iterator[tuple[float, float]]:
    """Of outputs and of corrections, relative to the largest, token by token."""
    K, V, H, HV = sizes
    chain, found = chain_of(spec, name, "sm90"), subject_of(spec, name, "sm90")
    shape = chain.plan.shape(*sizes)
    assert chain.plan.layout(shape).name == "fragment"
    model = model_of(chain.spec, chain.plan, shape, SLOTS)
    assert isinstance(chain.plan.format, Composed)
    filled(model, chain.plan.format, np.random.default_rng(3))
    pool = found.module.allocate(SLOTS, H=H, HV=HV, K=K, V=V)
    slots = torch.arange(SLOTS, dtype=torch.int32)
    data = found.module.export(pool, slots)
    for b in chain.plan.buffers:
        if b.role in ("payload", "scale", "compensator"):
            array = model.pool[b.name].copy()
            signed = array.view(np.int16) if array.dtype == np.uint16 else array
            data[b.name] = torch.from_numpy(signed).view(data[b.name].dtype)
    found.module.import_(pool, slots, data)
    for token in range(tokens):
        given = stream(chain.spec, SLOTS, Heads(H, HV, K, V), 5 + token)
        inputs = {x.name: np.ascontiguousarray(given[x.name]) for x in chain.spec.inputs}
        tensors = [torch.from_numpy(inputs[x.name]).to(DTYPES[x.dtype]) for x in chain.spec.inputs]
        out = found.module.step(pool, slots, *tensors).float().numpy()
        expected, corrections = model.step_with_corrections(np.arange(SLOTS), inputs)
        u = found.module.export(pool, slots)["record_u"].float().numpy()[:, :, token]
        wanted = np.asarray(corrections).reshape(u.shape)
        yield (
            float(np.abs(out - expected).max() / np.abs(expected).max()),
            float(np.abs(u - wanted).max() / np.abs(wanted).max()),
        )


def close(spec: str, name: str, sizes: tuple[int, ...], tokens: int) -> None:
    """Within the roundings of BF16 outputs and FP16 corrections, half a unit of the largest, and a
    twentieth for what vectors and levels in fixed point lose."""
    with one_thread():
        for o, u in errors(spec, name, sizes, tokens):
            assert o <= 1.05 * 2.0**-8
            assert u <= 1.05 * 2.0**-11


@pytest.mark.parametrize(("spec", "name", "sizes"), QUICK)
def test_a_step_reads_every_code(spec: str, name: str, sizes: tuple[int, ...]) -> None:
    close(spec, name, sizes, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "name", "sizes"), ALL)
def test_steps_read_every_code(spec: str, name: str, sizes: tuple[int, ...]) -> None:
    close(spec, name, sizes, 3)
