"""Resources of kernels: reading ptxas' report, and real runs of nvcc."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import resource_kernels as kernels

from leapgen.diagnostics import MissingTool
from leapgen.oracle.emulator import Lowered, lower
from leapgen.report import resources
from leapgen.report.resources import AssemblyFailed, Resources, assemble, assemble_all

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'main_kernel' for 'sm_90a'
ptxas info    : Function properties for main_kernel
    64 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 64 bytes cumulative stack size, 528 bytes smem
"""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def reporting(monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    monkeypatch.setattr(resources, "find_nvcc", lambda: "nvcc")
    done = subprocess.CompletedProcess([], code, "", text)
    monkeypatch.setattr(resources.subprocess, "run", lambda *args, **options: done)


def test_the_report_of_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, 0, REPORT)
    found = assemble(kernels.doubled(), "sm_90a")
    expected = Resources(
        target="sm_90a", kernel="main_kernel", threads=96, registers=40, spill_stores=12,
        spill_loads=16, stack=64, static_shared=528, dynamic_shared=96 * 4, digest=found.digest,
    )  # fmt: skip
    assert found == expected
    assert (found.spills, found.shared) == (28, 528 + 96 * 4)
    assert len(found.digest) == 16


def test_a_kernel_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, 0, REPORT.replace(", 528 bytes smem", ""))
    assert assemble(kernels.doubled(), "sm_90a").static_shared == 0


def test_an_unreadable_report(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, 0, "ptxas info : nothing to say")
    with pytest.raises(AssemblyFailed, match="one kernel expected"):
        assemble(kernels.doubled(), "sm_90a")


def test_errors_of_nvcc_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, 1, "kernel.cu(3): error: no\n" * 500)
    with pytest.raises(AssemblyFailed, match="nvcc rejects the kernel") as caught:
        assemble(kernels.doubled(), "sm_90a")
    assert len(str(caught.value).splitlines()) < 25


def test_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources.shutil, "which", lambda name: None)
    for call in (lambda: assemble(None, "sm_90a"), lambda: assemble_all([(None, "sm_90a")])):
        with pytest.raises(MissingTool, match="nvcc"):
            call()


@needs_nvcc
@pytest.mark.compile
def test_real_kernels() -> None:
    jobs: list[tuple[Any, str]] = [(kernels.doubled(), "sm_90a"), (kernels.doubled(), "sm_120a"),
                                   (kernels.crowded(), "sm_90a")]  # fmt: skip
    plain, other, crowded = assemble_all(jobs)
    assert 8 <= plain.registers <= 64
    assert (plain.spills, plain.stack) == (0, 0)
    assert (plain.threads, plain.dynamic_shared) == (96, 384)
    assert plain.target == "sm_90a"
    assert other.target == "sm_120a"
    assert plain.digest == other.digest  # the text is the same, only ptxas differs
    assert crowded.registers <= 32  # eight blocks of 256 threads on one multiprocessor
    assert crowded.spill_stores > 0
    assert crowded.spill_loads > 0
    assert crowded.static_shared >= 1024


@needs_nvcc
@pytest.mark.compile
def test_a_kernel_that_nvcc_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    good = lower(kernels.doubled(), "sm_90a")
    bad = good.source.replace("blockIdx.x", "no_such_name")
    broken = Lowered(bad, good.kernel, good.threads, good.shared_bytes, good.device)
    monkeypatch.setattr(resources, "lower", lambda *arguments: broken)
    with pytest.raises(AssemblyFailed, match="no_such_name"):
        assemble(kernels.doubled(), "sm_90a")
