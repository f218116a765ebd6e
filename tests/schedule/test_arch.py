"""The feature table: every capability, target and limit that generated code relies on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from leapgen.schedule.arch import ARCHES, ArchError, arch_named, for_capability

CAPABILITIES = {
    (8, 0): ("sm80", "sm_80"),
    (8, 9): ("sm89", "sm_89"),
    (9, 0): ("sm90", "sm_90a"),
    (10, 0): ("sm100", "sm_100a"),
    (10, 3): ("sm103", "sm_103a"),
    (12, 0): ("sm120", "sm_120a"),
    (12, 1): ("sm120", "sm_121a"),
}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_capability_to_row_and_target(capability: tuple[int, int]) -> None:
    arch, target = for_capability(capability)
    assert (arch.name, target) == CAPABILITIES[capability]
    assert arch.gpu


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 1), (10, 1), (11, 0), (12, 2), (13, 0)])
def test_an_unknown_capability_is_refused_with_the_known_ones(capability: tuple[int, int]) -> None:
    with pytest.raises(ArchError, match=r"known: 8\.0, 8\.9, 9\.0, 10\.0, 10\.3, 12\.0, 12\.1"):
        for_capability(capability)


def test_the_table_is_what_the_tests_know() -> None:
    assert list(ARCHES) == ["cpu", "sm80", "sm89", "sm90", "sm100", "sm103", "sm120"]
    known = {c for a in ARCHES.values() for c, _ in a.targets}
    assert known == set(CAPABILITIES)


# KiB of shared memory of a block and an SM, threads and blocks of an SM, bulk copies
LIMITS = {
    "sm80": (163, 164, 2048, 32, False),
    "sm89": (99, 100, 1536, 24, False),
    "sm90": (227, 228, 2048, 32, True),
    "sm100": (227, 228, 2048, 32, True),
    "sm103": (227, 228, 2048, 32, True),
    "sm120": (99, 100, 1536, 24, True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str) -> None:
    a = arch_named(name)
    block, sm, threads, blocks, bulk = LIMITS[name]
    assert (a.shared_block, a.shared_sm) == (block * 1024, sm * 1024)
    assert (a.threads_sm, a.blocks_sm, a.registers) == (threads, blocks, 65536)
    assert a.bulk_copy is bulk
    assert a.int8_mma
    assert a.async_copy


def test_the_cpu_has_no_thread_level_features() -> None:
    cpu = arch_named("cpu")
    assert cpu.target == "c"
    assert not any((cpu.gpu, cpu.int8_mma, cpu.bulk_copy, cpu.async_copy))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArchError, match="'sm75'; known: cpu, sm80"):
        arch_named("sm75")


def test_devices_by_the_drivers_name() -> None:
    assert arch_named("sm90").device("NVIDIA H200").bandwidth == 4.40e12
    assert arch_named("sm90").device("NVIDIA H200").measured
    assert arch_named("sm90").device("NVIDIA GH200 480GB").match == "GH200"
    assert arch_named("sm90").device("NVIDIA H100 80GB HBM3").bandwidth == 3.35e12
    assert arch_named("sm90").device("NVIDIA H100 PCIe").bandwidth == 2.0e12
    assert arch_named("sm80").device("NVIDIA A100-SXM4-80GB").bandwidth == 2.039e12
    assert arch_named("sm80").device("NVIDIA A100-SXM4-40GB").bandwidth == 1.555e12
    assert arch_named("sm89").device("NVIDIA L40S").match == "L40S"
    assert arch_named("sm100").device("NVIDIA GB200").bandwidth == 8.0e12
    assert arch_named("sm120").device("NVIDIA GB10").bandwidth == 2.73e11
    assert arch_named("sm89").device("NVIDIA L4").match == "L4"
    with pytest.raises(ArchError, match="no bandwidth known for 'NVIDIA H20'"):
        arch_named("sm90").device("NVIDIA H20")


@pytest.mark.compile
@pytest.mark.parametrize("target", [target for _, target in CAPABILITIES.values()])
def test_the_compiler_knows_every_target(target: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    assert nvcc, "marked `compile`: needs nvcc on PATH"
    source = tmp_path / "empty.cu"
    source.write_text("__global__ void empty() {}\n")
    command = [nvcc, f"-arch={target}", "-cubin", "-o", str(tmp_path / "empty.cubin"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
