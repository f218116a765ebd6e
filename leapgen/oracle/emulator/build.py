"""Compile translated kernels with the system's C++ compiler; keep the results by digest."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from leapgen.diagnostics import MissingTool
from leapgen.oracle.emulator.errors import BuildFailed

SHIM = Path(__file__).parent / "shim"
_FLAGS = (
    "-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-fno-exceptions", "-fno-rtti", "-fwrapv", "-ftrivial-auto-var-init=pattern", "-w",
)  # fmt: skip
# The sanitizer's calls are answered by shim/checker.cpp; its own library is not linked.
_CHECK_FLAGS = (
    "-DLG_CHECK", "-g1", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0",
)  # fmt: skip


def cache_dir() -> Path:
    """Where compiled kernels are kept: a directory of this user under the temporary directory."""
    return Path(tempfile.gettempdir()) / f"leapgen-emulator-{os.getuid()}"


@functools.cache
def compiler() -> tuple[str, str]:
    """Path of g++ and its version line. Raises MissingTool if there is none."""
    path = shutil.which("g++")
    if path is None:
        raise MissingTool("the emulator needs g++ (12 or later), which is not on the path")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return path, done.stdout.splitlines()[0]


@functools.cache
def _shim_digest() -> str:
    digest = hashlib.sha256()
    for header in sorted(SHIM.iterdir()):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.hexdigest()


def _machine_flags() -> tuple[str, ...]:
    # FP16 conversions and fused multiply-adds in hardware, as on every x86 server of this decade
    return ("-march=x86-64-v3",) if platform.machine() == "x86_64" else ()


def build(code: str, checked: bool = False) -> Path:
    """The shared library of a translated source, compiled unless the cache holds it.

    checked adds a call before every access to memory, which the checker answers.
    Raises BuildFailed with the first lines of the compiler's errors.
    """
    _, version = compiler()
    flags = (*_FLAGS, *_machine_flags())
    extra = _CHECK_FLAGS if checked else ()
    key = "\0".join([code, _shim_digest(), version, *flags, *extra])
    directory = cache_dir()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    library = directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        _compile(flags, extra, code, library)
    return library


def _compile(flags: tuple[str, ...], extra: tuple[str, ...], code: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        text, made = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
        text.write_text('#include "emulator.h"\n' + code)
        if extra:
            parts = [Path(scratch) / "checker.o", Path(scratch) / "kernel.o"]  # checker first
            _run(*flags, "-O2", "-c", str(SHIM / "checker.cpp"), "-o", str(parts[0]))
            _run(*flags, *extra, f"-I{SHIM}", "-c", str(text), "-o", str(parts[1]))
            _run("-shared", *map(str, parts), "-o", str(made))
        else:
            _run(*flags, f"-I{SHIM}", "-shared", str(text), "-o", str(made))
        os.replace(made, library)  # atomic: another process sees all of it or nothing


def _run(*arguments: str) -> None:
    done = subprocess.run([compiler()[0], *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed("\n".join(done.stderr.splitlines()[:25]))
