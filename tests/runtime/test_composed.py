"""Kernels of composed formats: every code through a pool, whole lives of slots, and draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from leapgen import pipeline
from leapgen.formats import choices as rules
from leapgen.formats.composed import Composed, composed
from leapgen.formats.table import NAMED, format_spelled
from leapgen.oracle.in_place import model_of
from leapgen.report.subjects import Subject, one_thread, subject
from leapgen.report.verify import operate
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import make_plan

SIZE = (16, 24, 2, 4)
CODES = ("int4-step", "int8-window[payload=int5]", "int6-step", "fp8-step", "mxfp4", "nvfp6")
LIVES = (("kda", "leap5"), ("kda", "nvfp4"), ("gdn", "int8-step-sr"))
EMULATED = (("gdn", "mxfp4"), ("kda", "quarot-4"))


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


def random_parts(pool: Any, format: Composed, rng: np.random.Generator) -> None:
    """Every code in the payload, and scales of one size."""
    for name in pool:
        array = pool[name]
        if name.startswith("payload"):
            raw = rng.integers(0, 256, array.shape)
            raw.reshape(-1)[: min(256, raw.size)] = np.arange(min(256, raw.size))
            if format.choices.payload == "e4m3":
                raw[raw & 127 == 127] = 0  # NaN
            array[...] = raw.astype(np.uint8).view(array.dtype) if array.itemsize == 1 else raw
        elif name in ("block_scale", "value_scale", "tensor_scale"):
            array[...] = rng.integers(100, 120, array.shape)


@pytest.mark.parametrize("arch", ["cpu", "sm90"])
@pytest.mark.parametrize("name", CODES)
def test_every_code_is_what_the_model_reads(name: str, arch: str) -> None:
    """Planes of codes over a whole tile, bit for bit: materialize does nothing but decode."""
    chain, found = chain_of("gdn", name, arch), subject_of("gdn", name, arch)
    shape = chain.plan.shape(*SIZE)
    model = model_of(chain.spec, chain.plan, shape, 2)
    assert isinstance(chain.plan.format, Composed)
    random_parts(model.pool, chain.plan.format, np.random.default_rng(3))
    with one_thread():
        pool = found.module.allocate(2, H=2, HV=4, K=16, V=24)
        slots = torch.arange(2, dtype=torch.int32)
        data = found.module.export(pool, slots)
        for b in chain.plan.buffers:
            if b.role in ("payload", "scale"):
                data[b.name] = torch.from_numpy(model.pool[b.name].copy())
        found.module.import_(pool, slots, data)
        state = found.module.materialize(pool, slots).numpy()
    expected = np.swapaxes(model.state(np.arange(2)), -1, -2)
    assert len(np.unique(expected)) > 12
    assert (state.view(np.uint32) == np.ascontiguousarray(expected).view(np.uint32)).all()


def life(spec: str, name: str, arch: str, rounds: int) -> None:
    chain = chain_of(spec, name, arch)
    with one_thread():
        section = operate(chain, subject_of(spec, name, arch), chain.plan.shape(*SIZE), rounds)
    assert section.ledger.ok, [c.row for c in section.ledger.checks.values() if not c.ok]


@pytest.mark.parametrize(("spec", "name"), LIVES)
def test_slots_live_on_a_cpu(spec: str, name: str) -> None:
    life(spec, name, "cpu", 25)


@pytest.mark.parametrize(("spec", "name"), EMULATED)
def test_slots_live_on_a_gpu(spec: str, name: str) -> None:
    life(spec, name, "sm90", 4)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["cpu", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
@pytest.mark.parametrize("name", [n for n, f in NAMED.items() if isinstance(f, Composed)])
def test_every_preset_on_every_target(name: str, spec: str, arch: str) -> None:
    if not NAMED[name].kernels_on(arch_named(arch).gpu):
        pytest.skip("in the reference model only")
    life(spec, name, arch, 30)


# ---- compositions that nobody named


def pairs() -> list[rules.Choices]:
    """Valid compositions in which every pair of words of two choices stands that any can have, in
    the order of a fixed shuffle."""
    rng, words = np.random.default_rng(11), rules.words()
    words = {k: w for k, w in words.items() if k != "feedback"}
    words["scale"] = tuple(w for w in words["scale"] if "16" not in w)
    names, left, chosen = list(words), set(), []
    every: list[rules.Choices] = []
    for _ in range(6000):
        picks: dict[str, Any] = {n: words[n][rng.integers(len(words[n]))] for n in names}
        picks["compensators"] = 0 if picks["factors"] == "none" else int(rng.integers(1, 9))
        c = rules.Choices(**picks)
        if not rules.refusals(c):
            every.append(c)
    both = {
        c: {((a, vars(c)[a]), (b, vars(c)[b])) for a, b in combinations(names, 2)} for c in every
    }
    left = set().union(*both.values())
    while left:
        best = max(both, key=lambda c: len(both[c] & left))
        chosen.append(best)
        left -= both[best]
    return chosen


PAIRS = pairs()
FEW = PAIRS[1:2]


def compose(c: rules.Choices, arch: str, rounds: int) -> None:
    row = composed("composition", "", c)
    base = pipeline.compile("kda", "cpu")
    state = replace(base.spec.state, compensators=None, smoothing=None)
    plan = make_plan(base.window, state, arch_named(arch), row)
    chain = replace(base, plan=plan)
    with one_thread():
        ran = operate(chain, subject(chain.source, arch), plan.shape(*SIZE), rounds)
    assert ran.ledger.ok, [k.row for k in ran.ledger.checks.values() if not k.ok]


@pytest.mark.parametrize("c", FEW, ids=str)
def test_a_few_pairs_of_choices(c: rules.Choices) -> None:
    compose(c, "cpu", 25)


@pytest.mark.slow
@pytest.mark.parametrize("c", [*PAIRS[:1], *PAIRS[2:]], ids=str)
def test_all_pairs_of_choices(c: rules.Choices) -> None:
    compose(c, "cpu", 25)
