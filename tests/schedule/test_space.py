"""The space of configs and its predicate, against the arch table and generated default rules."""

from __future__ import annotations

import inspect
import itertools
from functools import cache

import pytest

from leapgen import pipeline
from leapgen.runtime.host import Module
from leapgen.schedule import predict, space
from leapgen.schedule.arch import ARCHES, arch_named
from leapgen.schedule.plan import Plan

GPUS = [a.name for a in ARCHES.values() if a.gpu]
STEP = {"threads": 128, "min_blocks": 7, "staged": True}
FLUSH = {"threads": 256, "slices": 1, "min_blocks": 2}
HELD = {**STEP, "held": True, "bulk": True, "fused": 1}
WORDS = {"threads": 128, "tiles": 1, "min_blocks": 7, "blocks": 924}


@cache
def chain(spec: str, arch: str) -> pipeline.Chain:
    return pipeline.compile(spec, arch)


def plan(arch: str = "sm90") -> Plan:
    return chain("gdn", arch).plan


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_default_rules_are_valid(spec: str, arch: str) -> None:
    """The rules in the generated text and the predicate say the same of what can run."""
    made = chain(spec, arch)
    module = _module(spec, arch)
    dims = ((128, 128), (64, 32), (256, 128), (128, 64), (128, 80), (64, 48), (32, 16), (96, 192))
    for (K, V), (H, HV) in itertools.product(dims, ((32, 32), (4, 8))):
        for P, R in ((16, 4), (64, 4), (1, 0)):
            shape = made.plan.shape(K, V, H, HV, P, R)
            for kernel in ("step", "flush", "materialize", "load_state"):
                config = module.kernels[kernel].config(K, V, H, HV, P, R)
                reason = space.refusal(kernel, config, shape, made.plan)
                assert reason is None, (kernel, config, shape, reason)


@cache
def _module(spec: str, arch: str) -> Module:
    pytest.importorskip("tilelang")
    return pipeline.load(chain(spec, arch).source)


@pytest.mark.parametrize("arch", GPUS)
def test_the_space_is_valid_small_and_starts_with_the_default(arch: str) -> None:
    shape = plan(arch).shape(128, 128, 32, 32)
    for kernel, default in (("step", STEP), ("flush", FLUSH)):
        found = space.configs(kernel, shape, plan(arch), frozenset(default), default)
        assert found[0] == default
        assert 10 < len(found) <= 60
        assert len({tuple(sorted(c.items())) for c in found}) == len(found)
        assert all(space.valid(kernel, c, shape, plan(arch)) for c in found[1:])
        assert all(set(c) == set(default) for c in found)


def test_a_knob_that_the_builder_lacks_is_absent() -> None:
    shape = plan().shape(128, 128, 32, 32)
    fused = space.configs("step", shape, plan(), {*STEP, "fused"}, {**STEP, "fused": 0})
    assert {c["fused"] for c in fused} == {0, 1, 2}
    lone = space.configs("step", shape, plan(), {"threads"}, {"threads": 128})
    assert {tuple(c) for c in lone} == {("threads",)}
    kept = space.configs("step", shape, plan(), {"threads", "odd"}, {"threads": 128, "odd": 5})
    assert {c["odd"] for c in kept} == {5}
    assert space.configs("step", shape, plan(), frozenset(), {}) == ({},)


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("dims", [(128, 128), (64, 32), (128, 256), (16, 24)])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_the_space_of_generated_modules(spec: str, dims: tuple[int, int], arch: str) -> None:
    """Small enough for minutes of compiling; every way of closing windows is in it."""
    made, module = chain(spec, arch), _module(spec, arch)
    shape = made.plan.shape(*dims, 32, 32)
    by_words = made.plan.by_words(shape)
    assert by_words is (dims != (16, 24))
    for kernel, knob in (("step", "fused"), ("flush", "tiles")):
        default = module.kernels[kernel].config(*dims, 32, 32, 16, 4)
        knobs = frozenset(inspect.signature(module.kernels[kernel].build).parameters) - {
            *"KVPRDH",
            "HV",
        }
        found = space.configs(kernel, shape, made.plan, knobs, default)
        assert len({tuple(sorted(c.items())) for c in found}) == len(found)
        assert 1 < len(found) <= (48 if by_words else 80)
        modes = {c.get(knob, 0) for c in found}
        assert modes <= {0, 1, 2}
        assert bool(default.get(knob)) is by_words
        assert (modes > {0}) is by_words
        for config in found:
            assert config.get(knob, 0) == 0 or "slices" not in config
            if kernel == "flush":
                assert config["blocks"] == config["min_blocks"] * made.plan.arch.multiprocessors
            else:
                assert config["held"] or not config["fused"]


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_the_shapes_that_are_held_in_words(spec: str) -> None:
    """The plan's rule is the generated module's."""
    made = chain(spec, "sm90")
    text = inspect.getmodule(_module(spec, "sm90").kernels["flush"].build)
    rule = text.__dict__["by_words"]  # type: ignore[union-attr]
    seen = set()
    for K in (8, 32, 64, 96, 128, 160, 256):
        for V in (8, 16, 32, 48, 64, 128, 160, 256, 288):
            for P, R in ((1, 0), (16, 4), (34, 8), (64, 4), (120, 8), (121, 8), (16, 8), (5, 9)):
                if min(K, V) >= R:
                    shape = made.plan.shape(K, V, 2, 4, P, R)
                    seen.add(made.plan.by_words(shape))
                    assert made.plan.by_words(shape) is rule(K, V, P, R), shape
    assert seen == {True, False}


def test_no_words_without_fp16() -> None:
    for format in ("bf16-window", "fp32-window", "int8-step"):
        other = pipeline.compile("gdn", "sm90", {}, format).plan
        assert not other.by_words(other.shape(128, 128, 2, 4))
    assert not chain("gdn", "cpu").plan.by_words(plan().shape(128, 128, 2, 4))


def test_states_in_registers() -> None:
    """Knobs of kernels that store the state at every step: slices share a head, lanes a channel."""
    shape = plan().shape(128, 128, 32, 32)
    default = {"threads": 128, "slices": 4, "lanes": 16, "min_blocks": 6}
    found = space.configs("step", shape, plan(), frozenset(default), default)
    assert 20 < len(found) < 100
    assert all(16 <= 128 * 128 // (c["slices"] * c["threads"]) <= 64 for c in found)
    for change, reason in (({"lanes": 12}, "a power of two"), ({"slices": 3}, "a divisor of V")):
        assert reason in str(space.refusal("step", {**default, **change}, shape, plan()))
    usage = predict.Usage(60, 0, 1024, 700)
    device = predict.device_of(arch_named("sm90"))
    times = [predict.kernel_us("step", default, usage, shape, n, plan(), device) for n in (1, 512)]
    assert 1 < times[0] < 5 < times[1]


@pytest.mark.parametrize(
    ("kernel", "config", "reason"),
    [
        ("step", {**STEP, "threads": 100}, "a multiple of 32"),
        ("step", {**STEP, "threads": 2048}, "up to 1024"),
        ("step", {**STEP, "min_blocks": 0}, "more than an SM holds"),
        ("step", {**STEP, "min_blocks": 17}, "more than an SM holds"),
        ("step", {**STEP, "min_blocks": 9}, "bytes of shared memory, an SM has"),
        ("step", {"threads": 512, "min_blocks": 5}, "more than an SM holds"),
        ("step", {"threads": 1024, "min_blocks": 2, "staged": False}, None),
        ("flush", {**FLUSH, "threads": 64}, "at least K and V / slices"),
        ("flush", {**FLUSH, "slices": 3}, "a divisor of V"),
        ("flush", {**FLUSH, "slices": 8}, "whole groups of value channels"),
        ("flush", {**FLUSH, "min_blocks": 4}, "bytes of shared memory, an SM has"),
        ("flush", {**FLUSH, "slices": 2, "min_blocks": 4}, None),
        ("step", HELD, None),
        ("step", {**HELD, "fused": 2}, None),
        ("step", {**HELD, "fused": 3}, "1 or 2 tiles of a warp"),
        ("step", {**HELD, "held": False, "threads": 256, "min_blocks": 2}, "threads = V = 128"),
        ("step", {**STEP, "fused": 1, "staged": False}, "fused: with a staged payload"),
        ("flush", WORDS, None),
        ("flush", {**WORDS, "tiles": 4}, "1 or 2 tiles of a warp"),
        ("flush", {**WORDS, "threads": 256}, "threads = V = 128"),
        ("flush", {**WORDS, "min_blocks": 9}, "bytes of shared memory, an SM has"),
        ("flush", {**WORDS, "tiles": 2, "min_blocks": 8}, None),
    ],
)
def test_refusals(kernel: str, config: dict[str, int | bool], reason: str | None) -> None:
    shape = plan().shape(128, 128, 32, 32)
    found = space.refusal(kernel, config, shape, plan())
    assert (found is None) if reason is None else (found is not None and reason in found), found
    assert space.valid(kernel, config, shape, plan()) is (reason is None)


def test_registers_are_shared_by_resident_threads() -> None:
    sm90 = arch_named("sm90")
    assert space.registers({"threads": 128, "min_blocks": 7}, sm90) == 73
    assert space.registers({"threads": 128, "min_blocks": 1}, sm90) == 255
    assert space.resident({"threads": 128}, 72, 26 * 1024, sm90) == 7
    assert space.resident({"threads": 128}, 73, 0, sm90) == 6
    assert space.resident({"threads": 256}, 32, 0, sm90) == 8
    assert space.resident({"threads": 256}, 255, 0, sm90) == 1


def test_least_shared_is_no_more_than_the_kernels_take() -> None:
    """What the predicate counts, no kernel can do without: it must not refuse what runs."""
    shape = plan().shape(128, 128, 32, 32)
    build = _module("gdn", "sm90").kernels["step"].build
    taken = inspect.getmodule(build).__dict__["_staged_bytes"](128, 128, 16, 4)  # type: ignore[union-attr]
    assert 0.8 * taken < space.least_shared("step", STEP, shape, plan()) <= taken
    assert space.least_shared("step", {**STEP, "staged": False}, shape, plan()) == 0


@pytest.mark.parametrize(
    ("dims", "P", "R"), [((128, 128), 16, 4), ((64, 32), 16, 4), ((96, 256), 34, 8)]
)
def test_least_shared_of_words(dims: tuple[int, int], P: int, R: int) -> None:
    shape = plan().shape(*dims, 32, 32, P, R)
    config = {**WORDS, "threads": dims[1]}
    scope = inspect.getmodule(_module("gdn", "sm90").kernels["flush"].build).__dict__  # type: ignore[union-attr]
    taken = scope["_word_bytes"](*dims, P, R)
    assert 0.8 * taken < space.least_shared("flush", config, shape, plan()) <= taken
    two = space.least_shared("flush", {**config, "tiles": 2}, shape, plan())
    assert two == space.least_shared("flush", config, shape, plan()) - dims[0] * dims[1]
    step = {**HELD, "threads": dims[1]}
    assert space.least_shared("step", step, shape, plan()) >= two + dims[0] * dims[1]


def test_words_need_a_shape_that_has_them() -> None:
    wide = plan().shape(128, 48, 32, 32)
    assert "no state of this shape" in str(space.refusal("flush", WORDS, wide, plan()))
    assert "no state of this shape" in str(
        space.refusal("step", {**HELD, "held": False}, wide, plan())
    )


# ---- predicted times


def us(rows: int = 512, arch: str = "sm90", **changes: int) -> float:
    usage = {"registers": 72, "spills": 0, "shared": 26 * 1024, "instructions": 540} | changes
    shape = plan(arch).shape(128, 128, 32, 32)
    device = predict.device_of(arch_named(arch))
    return predict.kernel_us("step", STEP, predict.Usage(**usage), shape, rows, plan(arch), device)


def test_predictions_are_near_what_an_h200_measured() -> None:
    """The prototype step of the study: 101.5 us at 512 rows, 16.7 at 64, 2.6 at 1."""
    assert us(512) == pytest.approx(101.5, rel=0.05)
    assert us(64) == pytest.approx(16.7, rel=0.1)
    assert us(8) == pytest.approx(3.3, rel=0.2)
    assert us(1) == pytest.approx(2.6, rel=0.5)


def test_predictions_rank() -> None:
    assert us(registers=255) > us()
    assert us(spills=400) > us()
    assert us(instructions=5000) > 2 * us()
    assert us(shared=200 * 1024) > us()
    assert us(arch="sm100") < us()
    shape = plan().shape(128, 128, 32, 32)
    usage = predict.Usage(72, 0, 400 * 1024, 540)
    device = predict.device_of(arch_named("sm90"))
    assert predict.kernel_us("step", STEP, usage, shape, 1, plan(), device) == float("inf")


def test_predictions_of_steps_that_close_windows() -> None:
    """An H200 took 101 us for the step alone, 127 for two launches, 114 for one."""
    shape, device = plan().shape(128, 128, 32, 32), predict.device_of(arch_named("sm90"))

    def of(kernel: str, config: dict[str, int], code: int, rows: int, spills: int = 0) -> float:
        usage = predict.Usage(72, spills, 28000, code)
        return predict.kernel_us(kernel, config, usage, shape, rows, plan(), device)

    for rows in (1, 64, 512):
        alone = of("step", {**HELD, "fused": 0}, 1083, rows)
        pair = alone + of("flush", WORDS, 2953, rows)
        one = of("step", HELD, 3720, rows)
        assert alone < one < pair, rows
        assert one < of("step", HELD, 3720, rows, spills=500) < 1.2 * one
    assert of("step", HELD, 3720, 512) == pytest.approx(110, rel=0.1)


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
def test_archs_that_are_tuned_or_predicted_have_figures(arch: str) -> None:
    device = predict.device_of(arch_named(arch))
    assert device.sms > 40
    assert 1e9 < device.clock < 3e9
