"""Kernels that keep the state in registers: no spills, and a step moves the state once each way."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from leapgen import pipeline
from leapgen.report.resources import assemble
from leapgen.report.tir_traffic import Traffic, count
from leapgen.runtime.host import Module
from leapgen.schedule import traffic
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import Plan

H = HV = 32
K = V = 128
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
each_format = pytest.mark.parametrize("format", ["fp32-step", "bf16-step", "int8-step"])


def made(spec: str, arch: str, format: str, place: Path) -> tuple[Plan, Module]:
    chain = pipeline.compile(spec, arch, {}, format)
    return chain.plan, pipeline.load(chain.source, place)


@needs_nvcc
@pytest.mark.compile
@pytest.mark.slow
@each_format
@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_nothing_spills(spec: str, arch: str, format: str, tmp_path: Path) -> None:
    _, module = made(spec, arch, format, tmp_path)
    for name, kernel in module.kernels.items():
        func = kernel.build(K, V, H, HV, 1, 0, **kernel.config(K, V, H, HV, 1, 0))
        found = assemble(func, arch_named(arch).target)
        assert (found.spills, found.stack) == (0, 0), (name, found)


def counted(module: Module, plan: Plan) -> tuple[Traffic, int]:
    """Traffic of one block of the step, and the blocks of a value head."""
    kernel = module.kernels["step"]
    config = kernel.config(K, V, H, HV, 1, 0)
    func = kernel.build(K, V, H, HV, 1, 0, **config)
    named = {p.name: p.name.rpartition("_")[2] for p in func.params if p not in func.buffer_map}
    words = {"slot": 2**20, "head": K * V // 4, "row": 4096, "axis": 1}
    scalars = {name: words.get(word, 1) for name, word in named.items()}
    scalars |= {"num_rows": 1, "num_slots": 4, "first_slot": 0, "slots_row": 1}
    ints = {"slots": np.array([1], np.int32)}
    block = {"x": 3 * config["slices"]}
    return count(func, "sm_90a", scalars=scalars, ints=ints, block=block), config["slices"]


@each_format
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_a_step_moves_the_state_once_each_way(spec: str, format: str, tmp_path: Path) -> None:
    """The code's accesses of the pool, thread by thread, are the plan's bytes; no byte twice but
    the scales, which the lanes of a value channel share."""
    plan, module = made(spec, "sm90", format, tmp_path)
    found, slices = counted(module, plan)
    planned = traffic.launch(plan, plan.shape(K, V, H, HV), "step")
    for line in planned.lines:
        if line.kind == "state":
            amount = found[line.name, line.way]
            assert amount.distinct * slices == line.amount.distinct, line
            assert amount.sectors * traffic.SECTOR * slices == line.amount.sectors, line
            if line.name == "payload":
                assert amount.bytes == amount.distinct, line
    assert found["out", "write"].distinct * slices == planned.total("output").distinct
    assert sorted(n for n, w in found.entries if w == "write") == sorted(
        {"out", *(b.name for b in plan.buffers)}
    )
