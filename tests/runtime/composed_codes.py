"""Chains, subjects and pools of composed formats, and every code through a pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from leapgen import pipeline
from leapgen.formats.base import Format
from leapgen.formats.composed import Composed
from leapgen.formats.table import format_spelled
from leapgen.oracle.in_place import model_of
from leapgen.report.subjects import Subject, one_thread, subject
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import make_plan

SIZE = (16, 24, 2, 4)


@cache
def chain_of(spec: str, format: str, arch: str) -> pipeline.Chain:
    """The chain of a format that need not be a named one."""
    chain = pipeline.compile(spec, "cpu")
    state = replace(chain.spec.state, compensators=None, smoothing=None)
    row = format_spelled(format)
    plan = make_plan(chain.window, state, arch_named(arch), row)
    return replace(chain, plan=plan)


@cache
def subject_of(spec: str, format: str, arch: str) -> Subject:
    return subject(chain_of(spec, format, arch).source, arch)


def sixteen_bits(dtype: np.dtype[Any], rng: np.random.Generator, shape: Any) -> Any:
    """Bits of finite FP16, or of BF16, which the model stores as uint16."""
    exponent = 0x7F80 if dtype == np.uint16 else 0x7C00
    bits = rng.integers(0, 2**16, shape).astype(np.uint16)
    bits[bits & exponent == exponent] = 0x8000
    return bits.view(dtype)


def random_parts(pool: Any, format: Format, rng: np.random.Generator) -> None:
    """Every code in the payload, and scales of one size."""
    for name in pool:
        array = pool[name]
        if name.startswith("payload") and array.itemsize == 2:
            array[...] = sixteen_bits(array.dtype, rng, array.shape)
        elif name.startswith("payload"):
            raw = rng.integers(0, 256, array.shape)
            raw.reshape(-1)[: min(256, raw.size)] = np.arange(min(256, raw.size))
            if isinstance(format, Composed) and format.choices.payload == "e4m3":
                raw[raw & 127 == 127] = 0  # NaN
            array[...] = raw.astype(np.uint8).view(array.dtype) if array.itemsize == 1 else raw
        elif name in ("block_scale", "value_scale", "tensor_scale"):
            first = 0x3F80 if array.dtype == np.uint16 else 100  # BF16's one
            array[...] = rng.integers(first, first + 20, array.shape)


def every_code(name: str, arch: str) -> None:
    chain, found = chain_of("gdn", name, arch), subject_of("gdn", name, arch)
    shape = chain.plan.shape(*SIZE)
    model = model_of(chain.spec, chain.plan, shape, 2)
    random_parts(model.pool, chain.plan.format, np.random.default_rng(3))
    with one_thread():
        pool = found.module.allocate(2, H=2, HV=4, K=16, V=24, device=found.device)
        slots = torch.arange(2, dtype=torch.int32, device=found.device)
        data = found.module.export(pool, slots)
        for b in chain.plan.buffers:
            if b.role in ("payload", "scale"):
                raw = torch.from_numpy(model.pool[b.name].copy())
                data[b.name] = raw.view(data[b.name].dtype)
        found.module.import_(pool, slots, data)
        state = found.module.materialize(pool, slots).cpu().numpy()
    expected = np.swapaxes(model.state(np.arange(2)), -1, -2)
    assert len(np.unique(expected)) > 12
    if chain.plan.windowed:  # codes of -0, to which the sum of no records is added
        state, expected = state + np.float32(0), expected + np.float32(0)
    assert (state.view(np.uint32) == np.ascontiguousarray(expected).view(np.uint32)).all()
