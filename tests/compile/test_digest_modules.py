"""Recurrences whose GPU modules generated/ keeps as digests: they compile, and steps do not spill.

By default the steps of those that take paths of their own, at the dimensions of a head of the spec;
all recurrences, and every kernel, arch, published shape and the FP32 window are slow.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
from generated_modules import SPECS, derived

from leapgen import paths, pipeline
from leapgen.emit.render import render
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.report.compiled import shapes
from leapgen.report.resources import Resources, assemble_all
from leapgen.report.subjects import prepare
from leapgen.report.usage import LARGEST_FRAME
from leapgen.runtime.host import Module
from leapgen.schedule.arch import arch_named

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]
OTHERS = tuple(p.stem for p in paths.shipped_specs() if p.stem not in SPECS)
ARCHES = ("sm90", "sm100", "sm120")
FORMATS = ("leapquant-int8", "fp32-window")
# One read, three, a decay that the slot holds, one that the key tells, two sub-steps.
FAST = {"mamba2", "deltaproduct", "retnet", "hgrn2", "rwkv7"}
EVERY = [
    (*case, shape)
    for case in itertools.product(OTHERS, ARCHES, FORMATS)
    for shape in shapes(derived(case[0])[0])
]


def module_of(name: str, arch: str, format: str) -> Module:
    prepare()
    spec = pipeline.parse(name, format=format)
    return pipeline.load(render(pipeline.schedule(derived(name)[1], spec, arch), spec, ""))


def assembled(
    module: Module, arch: str, shape: tuple[int, ...], kinds: tuple[str, ...]
) -> list[Resources]:
    K, V, H, HV = shape
    numbers = module.shape(H, HV, K, V).builder_arguments
    kernels = [module.kernels[kind] for kind in kinds]
    jobs = [(k.build(*numbers, **k.config(*numbers)), arch_named(arch).target) for k in kernels]
    return assemble_all(jobs, {**PASS_CONFIGS, **dict(kernels[0].pass_configs)})


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow, id=n) for n in OTHERS],
)
def test_a_step_lives_in_registers(name: str) -> None:
    """Each recurrence on one of the archs, in turn."""
    arch = ARCHES[OTHERS.index(name) % len(ARCHES)]
    spec = derived(name)[0]
    module = module_of(name, arch, FORMATS[0])
    (step,) = assembled(module, arch, (spec.K, spec.V, 1, 1), ("step",))
    assert step.stack <= LARGEST_FRAME
    assert step.shared <= arch_named(arch).shared_block


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch", "format", "shape"), EVERY)
def test_every_kernel_fits(name: str, arch: str, format: str, shape: tuple[int, ...]) -> None:
    module = module_of(name, arch, format)
    kinds = tuple(module.kernels)
    for kind, found in zip(kinds, assembled(module, arch, shape, kinds), strict=True):
        assert found.shared <= arch_named(arch).shared_block
        if kind == "step":
            assert found.stack <= LARGEST_FRAME
