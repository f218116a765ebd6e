"""Reading and translating emitted sources; keeping what was compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leapgen.diagnostics import MissingTool
from leapgen.oracle.emulator import (
    BuildFailed,
    EmulatedKernel,
    Parameter,
    UnsupportedSource,
    build,
    ptx,
    read_signature,
)

KERNEL = """
extern "C" __global__ void one(const half_t* __restrict__ a, int64_t n);
extern "C" __global__ void __launch_bounds__(96, 2) one(const half_t* __restrict__ a, int64_t n) {}
"""


def test_signature() -> None:
    signature = read_signature(KERNEL)
    assert signature.name == "one"
    assert signature.threads == 96
    assert signature.parameters == (
        Parameter("a", "half_t", pointer=True, constant=True),
        Parameter("n", "int64_t", pointer=False, constant=False),
    )
    assert [p.itemsize for p in signature.parameters] == [2, 8]


def test_several_kernels_need_a_name() -> None:
    two = KERNEL + KERNEL.replace("one", "two")
    with pytest.raises(UnsupportedSource, match=r"one kernel expected, found .*one.*two"):
        read_signature(two)
    assert read_signature(two, "two").name == "two"
    with pytest.raises(UnsupportedSource, match="no kernel 'three'"):
        read_signature(two, "three")


def test_a_tensor_map_is_refused() -> None:
    with pytest.raises(UnsupportedSource, match="'a' has type 'CUtensorMap'"):
        read_signature(KERNEL.replace("const half_t* __restrict__", "const CUtensorMap"))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));',
         "{ ptx::ex2_approx_ftz_f32(y, x); } ((void)0);"),
        ('asm volatile ("prmt.b32 %0,%1," "%2,0x5150;\\n" : "=r"(d[f(1)]) : "r"(a), "r"(b));',
         "{ ptx::prmt_b32(d[f(1)], a, b, 0x5150); } ((void)0);"),
        ('asm("{.reg .pred p; setp.ne.b32 p, %1, 0; @p mov.u32 %0, %1;}" : "+r"(d) : "r"(a));',
         "{ bool p{};  ptx::setp_ne_b32(p, a, 0); if (p) ptx::mov_u32(d, a); } ((void)0);"),
        ('asm volatile("" ::: "memory");', "((void)0);"),
    ],
)  # fmt: skip
def test_inline_assembly(statement: str, expected: str) -> None:
    assert ptx.rewrite(statement) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("frobnicate.b32 %0, %1;", "instruction frobnicate.b32"),
        ("LAB: bra LAB;", "not emulated: LAB: bra LAB"),
        ("mov.b32 %0, %laneid;", "operand .* %laneid"),
    ],
)
def test_unknown_assembly_is_refused(template: str, message: str) -> None:
    with pytest.raises(UnsupportedSource, match=message):
        ptx.rewrite(f'asm("{template}" : "=r"(d) : "r"(a));')


def test_compiler_errors_are_short() -> None:
    with pytest.raises(BuildFailed, match="unknown_function") as caught:
        EmulatedKernel(KERNEL.replace("{}", "{ unknown_function(); }"))
    assert len(str(caught.value).splitlines()) <= 25


def test_a_second_build_takes_the_first_ones_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "cache_dir", lambda: tmp_path)
    (tmp_path / "forgotten.so").touch()
    os.utime(tmp_path / "forgotten.so", (0, 0))
    EmulatedKernel(KERNEL)
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    monkeypatch.setattr(build.subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    EmulatedKernel(KERNEL).launch(2, {"a": memoryless(), "n": 3})


def memoryless() -> object:
    import numpy as np

    return np.zeros(4, np.float16)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    build.compiler.cache_clear()
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(MissingTool, match=r"g\+\+"):
        build.compiler()
    build.compiler.cache_clear()
