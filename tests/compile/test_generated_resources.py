"""Registers of the generated kernels as nvcc assigns them, and what MANIFEST.json says of them."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from typing import Any

import pytest
from generated_modules import ARCHES, GENERATED, SPECS, derived, file_of, module_at

from leapgen.emit.parts import kernel_digest
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.report import manifest
from leapgen.report.compiled import shapes
from leapgen.report.resources import Resources, assemble_all
from leapgen.report.usage import LARGEST_FRAME
from leapgen.schedule.arch import arch_named

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
SHAPES = [(name, dims) for name in SPECS for dims in shapes(derived(name)[0])]
DEFAULT = {("sm90", "kda"), ("sm100", "gdn"), ("sm120", "kda")}  # a head of the spec's dimensions
BOOK = manifest.read(GENERATED)


def assembled(
    arch: str, name: str, shape: tuple[int, ...], *kinds: str, **knobs: int
) -> list[Resources]:
    """Kernels compiled as the host compiles them, but for what `knobs` say."""
    module = module_at(file_of(name, arch))
    K, V, H, HV = shape
    numbers = module.shape(H, HV, K, V).builder_arguments
    kernels = [module.kernels[kind] for kind in kinds]
    jobs: list[tuple[Any, str]] = [
        (k.build(*numbers, **{**k.config(*numbers), **knobs}), arch_named(arch).target)
        for k in kernels
    ]
    assert all(k.pass_configs == kernels[0].pass_configs for k in kernels)
    return assemble_all(jobs, {**PASS_CONFIGS, **kernels[0].pass_configs})


def is_default(arch: str, name: str, shape: tuple[int, ...]) -> bool:
    return (arch, name) in DEFAULT and shape[2:] == (1, 1)


CASES = [
    pytest.param(
        *(arch, name, shape),
        id=f"{arch}-{name}-" + "x".join(map(str, shape)),
        marks=() if is_default(arch, name, shape) else pytest.mark.slow,
    )
    for arch, (name, shape) in itertools.product(ARCHES, SHAPES)
]


@needs_nvcc
@pytest.mark.compile
@pytest.mark.parametrize(("arch", "name", "shape"), CASES)
def test_a_step_lives_in_registers(arch: str, name: str, shape: tuple[int, ...]) -> None:
    """Alone it spills nothing; what closes a window in the same launch may have a small frame."""
    (step,) = assembled(arch, name, shape, "step", fused=0)
    assert (step.spills, step.stack) == (0, 0)
    (step,) = assembled(arch, name, shape, "step")
    assert step.stack <= LARGEST_FRAME
    assert step.shared <= arch_named(arch).shared_block


@needs_nvcc
@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize(("arch", "name", "shape"), CASES)
def test_a_flush_hardly_spills(arch: str, name: str, shape: tuple[int, ...]) -> None:
    (flush,) = assembled(arch, name, shape, "flush")
    assert flush.stack <= LARGEST_FRAME
    assert flush.shared <= arch_named(arch).shared_block


def test_the_manifest_names_every_file() -> None:
    files = GENERATED.glob("*/*.py")
    assert set(BOOK.modules) == {p.relative_to(GENERATED).as_posix() for p in files}


@pytest.mark.parametrize("path", sorted(BOOK.modules))
def test_digests_of_the_manifest(path: str) -> None:
    digest = hashlib.sha256((GENERATED / path).read_bytes()).hexdigest()
    assert digest.startswith(BOOK.modules[path]["digest"])


def test_resources_of_the_manifest() -> None:
    """`leapgen build --compile` ran on these modules: what closes windows hardly spills."""
    for arch, name in itertools.product(("sm90", "sm100", "sm120"), SPECS):
        path = f"{arch}/{name}.py"
        records = BOOK.resources.get(path)
        assert records, f"{path} is missing: run `leapgen build --compile`"
        text = file_of(name, arch).read_text()
        digests = {kind: kernel_digest(text, (kind,)) for kind in ("step", "flush")}
        found = {(k["kernel"], k["K"], k["V"], k["H"], k["HV"]): k for k in records}
        for (kind, digest), shape in itertools.product(digests.items(), shapes(derived(name)[0])):
            record = found[kind, *shape]
            assert record["digest"] == digest, f"{kind} of {path} has changed since"
            K, V, H, HV = shape
            module = module_at(file_of(name, arch))
            numbers = module.shape(H, HV, K, V).builder_arguments
            assert record["config"] == module.kernels[kind].config(*numbers), (path, shape)
            assert record["stack"] <= LARGEST_FRAME, (path, shape)
