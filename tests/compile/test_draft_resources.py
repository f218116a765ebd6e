"""Kernels for drafts as nvcc compiles them: eight drafts at 128 x 128 spill nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leapgen import pipeline
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.report.resources import assemble_all
from leapgen.schedule.arch import arch_named

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


@needs_nvcc
@pytest.mark.compile
@pytest.mark.parametrize(
    ("arch", "spec", "format"),
    [
        pytest.param(arch, spec, format, marks=() if not index else pytest.mark.slow)
        for index, (arch, spec, format) in enumerate(
            (arch, spec, format)
            for format in ("leapquant-int8", "leap8", "leap5", "leap4", "fp8-window")
            for arch in ("sm90", "sm100", "sm120")
            for spec in ("gdn", "kda")
        )
    ],
)
def test_nothing_is_spilled(tmp_path: Path, arch: str, spec: str, format: str) -> None:
    module = pipeline.load(pipeline.compile(spec, arch, format=format).source, tmp_path)
    shape = module.shape(H=16, HV=32, K=128, V=128, drafts=8)
    jobs = [(name, shape, module.config(name, shape)) for name in ("verify", "flush")]
    target = arch_named(arch).target
    built = [
        (module.kernels[name].build(*s.builder_arguments, **config), target)
        for name, s, config in jobs
    ]
    found = assemble_all(built, {**PASS_CONFIGS, **module.kernels["verify"].pass_configs})
    for (name, _, _), needs in zip(jobs, found, strict=True):
        assert needs.spills == 0, (name, needs)
        assert needs.stack == 0, (name, needs)
