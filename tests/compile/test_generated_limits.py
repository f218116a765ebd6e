"""Shapes that the generated GPU modules refuse: what a block's shared memory cannot hold."""

from __future__ import annotations

import shutil

import pytest
from generated_modules import ARCHES, SPECS, file_of, module_at

from leapgen.report.resources import assemble_all
from leapgen.runtime.host import ArgumentError, Module, Shape
from leapgen.schedule.arch import arch_named

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
HEADS = {"H": 2, "HV": 4}
STATIC = 48 * 1024  # bytes of arrays whose size the compiler knows, on every arch


def of(name: str, arch: str) -> Module:
    return module_at(file_of(name, arch))


def longest(module: Module, **sizes: int) -> Shape:
    """The shape with the longest window that is accepted."""
    low, high = 1, 1 << 16  # accepted, refused
    while high - low > 1:
        middle = (low + high) // 2
        try:
            module.shape(window=middle, **HEADS, **sizes)
            low = middle
        except ArgumentError:
            high = middle
    return module.shape(window=low, **HEADS, **sizes)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", SPECS)
def test_long_windows_are_refused_by_name(name: str, arch: str) -> None:
    module = of(name, arch)
    both = [(64, 16)] if arch_named(arch).shared_block > 128 * 1024 else []
    for window, compensators in ((64, 4), (16, 16), *both):
        module.shape(K=128, V=128, window=window, compensators=compensators, **HEADS)
    for window in (1000, 10**6):
        said = rf"window of {window}, 4 compensators and 128 x 128 channels, \w+ takes \d+ bytes"
        with pytest.raises(ArgumentError, match=said):
            module.allocate(1, window=window, **HEADS)
    with pytest.raises(ArgumentError, match="compensators must be at most 96, found 100"):
        module.allocate(1, compensators=100, **HEADS)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", SPECS)
def test_a_longer_window_or_more_drafts_never_fit_better(name: str, arch: str) -> None:
    """What is cut into slices for one more record is cut for all that its block holds."""
    module = of(name, arch)
    assert module.limits is not None
    for numbers in ((128, 128, 2, 4), (64, 128, 2, 4), (128, 96, 2, 4)):
        for R in (0, 4, 8, 16):
            for sizes in ([(P, 0) for P in range(1, 160)], [(16, D) for D in range(17)]):
                refused = [module.limits(*numbers, P, R, D) is not None for P, D in sizes]
                assert refused == sorted(refused), (numbers, R, sizes[refused.index(True)])


CASES = [
    pytest.param(arch, sizes, marks=() if not index else pytest.mark.slow)
    for index, (arch, sizes) in enumerate(
        (arch, {"K": K, "V": V, "compensators": R})
        for arch in ("sm90", "sm120")
        for K, V, R in ((128, 128, 4), (64, 128, 8), (128, 64, 16))
    )
]


@needs_nvcc
@pytest.mark.compile
@pytest.mark.parametrize(("arch", "sizes"), CASES)
def test_what_is_accepted_fits(arch: str, sizes: dict[str, int]) -> None:
    """The longest window of all: its kernels take no more shared memory than a block has."""
    module, row = of("kda", arch), arch_named(arch)
    shape = longest(module, **sizes)
    assert shape.P >= 48
    numbers = shape.builder_arguments
    kernels = {name: module.kernels[name] for name in ("step", "flush", "materialize")}
    jobs = [(k.build(*numbers, **k.config(*numbers)), row.target) for k in kernels.values()]
    for name, found in zip(kernels, assemble_all(jobs), strict=True):
        assert found.static_shared <= STATIC, name
        assert found.shared <= row.shared_block, (name, shape)
