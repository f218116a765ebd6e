"""What a TileLang kernel needs of a GPU: its CUDA text assembled by nvcc for one target, no GPU.

Registers, spills, stack and static shared memory are what ptxas prints; the threads of a block and
the dynamic shared memory come from the lowered kernel's launch attributes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leapgen.diagnostics import LeapgenError, MissingTool
from leapgen.oracle.emulator.lowering import PASS_CONFIGS, Lowered, lower

_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class AssemblyFailed(LeapgenError):
    """nvcc rejected a kernel's text, or printed something that cannot be read."""


@dataclass(frozen=True)
class Resources:
    """Needs of one kernel on one target. All sizes in bytes; spills and stack are a thread's.

    target          nvcc's architecture (``sm_90a``)
    kernel          name of the CUDA kernel
    threads         threads of a block
    registers       32-bit registers of a thread
    static_shared   shared memory of a block that the kernel declares, as ptxas counts it
    dynamic_shared  shared memory of a block that the launch asks for
    digest          first 16 hexadecimal digits of the SHA-256 of the CUDA text
    instructions    machine instructions of the kernel's code, loops counted once
    """

    target: str
    kernel: str
    threads: int
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int
    dynamic_shared: int
    digest: str
    instructions: int = 0

    @property
    def spills(self) -> int:
        """Bytes that a thread stores and loads because registers do not suffice."""
        return self.spill_stores + self.spill_loads

    @property
    def shared(self) -> int:
        """Shared memory of a block, static and dynamic."""
        return self.static_shared + self.dynamic_shared


def find_nvcc() -> str:
    """Path of nvcc. Raises MissingTool, which says what to install."""
    found = shutil.which("nvcc")
    if found is None:
        raise MissingTool(
            "resources need nvcc (CUDA 12.8 or later), which is not on the path; "
            "install the CUDA toolkit, no GPU is needed"
        )
    return found


@cache
def nvcc_version() -> str:
    """Of the nvcc that `find_nvcc` finds, as `13.0.88`. Raises MissingTool."""
    done = subprocess.run([find_nvcc(), "--version"], capture_output=True, text=True)
    found = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else "unknown"


def assemble(
    func: Any, target: str, pass_configs: Mapping[str, object] = PASS_CONFIGS
) -> Resources:
    """Lower a TileLang prim_func for a target such as ``sm_90a`` and assemble it.

    Raises MissingTool without nvcc, AssemblyFailed with nvcc's first errors, ValueError if the
    prim_func is not one kernel.
    """
    nvcc = find_nvcc()
    return _assembled(lower(func, target, pass_configs), target, nvcc)


def assemble_all(
    jobs: Sequence[tuple[Any, str]],
    pass_configs: Mapping[str, object] = PASS_CONFIGS,
    *,
    workers: int = 2,
) -> list[Resources]:
    """As ``assemble`` for pairs of prim_func and target, ``workers`` of nvcc at a time; in order.

    The first error is raised when the jobs before it are done; those not yet begun are dropped.
    """
    nvcc = find_nvcc()
    with ThreadPoolExecutor(workers) as pool:
        running = [
            pool.submit(_assembled, lower(func, target, pass_configs), target, nvcc)
            for func, target in jobs
        ]
        try:
            return [future.result() for future in running]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _assembled(lowered: Lowered, target: str, nvcc: str) -> Resources:
    text, code = _ptxas_report(lowered.source, target, nvcc)
    x, y, z = lowered.threads
    stack, stores, loads = _numbers(_STACK, text)
    found = _SHARED.search(text)
    return Resources(
        target=target,
        kernel=lowered.kernel,
        threads=x * y * z,
        registers=_numbers(_REGISTERS, text)[0],
        spill_stores=stores,
        spill_loads=loads,
        stack=stack,
        static_shared=int(found.group(1)) if found else 0,
        dynamic_shared=lowered.shared_bytes,
        digest=hashlib.sha256(lowered.source.encode()).hexdigest()[:16],
        instructions=instructions(code),
    )


def _ptxas_report(source: str, target: str, nvcc: str) -> tuple[str, bytes]:
    """What ptxas prints, and the binary."""
    with tempfile.TemporaryDirectory() as scratch:
        code = Path(scratch) / "kernel.cu"
        code.write_text(source)
        command = [nvcc, "-cubin", "-O3", "-std=c++20", f"-arch={target}", "-Xptxas", "-v", "-w"]
        command += [f"-I{path}" for path in include_dirs()]
        command += ["-o", str(Path(scratch) / "kernel.cubin"), str(code)]
        done = subprocess.run(command, capture_output=True, text=True)
        binary = Path(scratch) / "kernel.cubin"
        built = binary.read_bytes() if binary.is_file() else b""
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ptxas info" not in line][:20]
        raise AssemblyFailed("nvcc rejects the kernel:\n" + "\n".join(errors))
    return done.stderr, built


def instructions(binary: bytes) -> int:
    """Machine instructions in a CUDA binary (ELF64): 16 bytes each in its `.text.*` sections,
    without the jump to itself and the NOPs that fill the last 128 bytes. 0 without a binary."""
    if binary[:4] != b"\x7fELF":
        return 0
    start, size, count, names = *struct.unpack_from("<Q", binary, 40), *_HEADER(binary, 58)
    rows = [struct.unpack_from("<IIQQQQ", binary, start + i * size) for i in range(count)]
    total = 0
    for name, _, _, _, offset, length in rows:
        at = rows[names][4] + name
        if binary[at : at + 6] == b".text.":
            words = [binary[i : i + 2] for i in range(offset, offset + length, 16)]
            while words and words[-1] == _NOP:
                words.pop()
            total += max(0, len(words) - 1)
    return total


_HEADER = struct.Struct("<HHH").unpack_from
_NOP = b"\x18\x79"


def include_dirs() -> tuple[str, str]:
    """Folders of TileLang's device templates and of CUTLASS, which the CUDA text includes."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return str(TILELANG_TEMPLATE_PATH), str(CUTLASS_INCLUDE_DIR)


def _numbers(pattern: re.Pattern[str], text: str) -> tuple[int, ...]:
    found = pattern.findall(text)
    if len(found) != 1:
        raise AssemblyFailed(f"one kernel expected in the report of ptxas:\n{text[:2000]}")
    groups = found[0] if isinstance(found[0], tuple) else (found[0],)
    return tuple(int(number) for number in groups)
