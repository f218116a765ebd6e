"""Compile translated kernels with the system's C++ compiler; keep the results by digest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from leapgen.diagnostics import MissingTool
from leapgen.oracle.emulator.errors import BuildFailed

_KEPT = 7 * 24 * 3600  # seconds
SHIM = Path(__file__).parent / "shim"
_FLAGS = (
    "-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fwrapv",
    "-ftrivial-auto-var-init=pattern", "-w",
)  # fmt: skip
# The sanitizers' calls are answered by shim/checker.cpp; their own libraries are not linked.
_CHECK_FLAGS = (
    "-DLG_CHECK", "-g1", "-fsanitize=thread,alignment,bounds",
    "--param=tsan-instrument-func-entry-exit=0",
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
    include = f"-I{SHIM}"
    text = '#include "emulator.h"\n' + code
    if not checked:
        return _made(".so", text, (*_FLAGS, *_machine_flags(), include, "-shared"))
    checker = (SHIM / "checker.cpp").read_text()
    parts = (  # the checker first: of functions that both have, the linker takes the first
        _made(".o", checker, (*_FLAGS, *_machine_flags(), include, "-O2", "-c")),
        _made(".o", text, (*_FLAGS, *_machine_flags(), include, *_CHECK_FLAGS, "-c")),
    )
    return _made(".so", "", ("-shared", *map(str, parts)))


def _made(suffix: str, text: str, flags: tuple[str, ...]) -> Path:
    """What the compiler makes of a text with these flags, from the cache if it is there."""
    path, version = compiler()
    key = "\0".join([text, _shim_digest(), version, *flags])
    directory = cache_dir()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{suffix}"
    if target.exists():
        os.utime(target)
        return target
    _prune(directory)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        source, made = Path(scratch) / "kernel.cpp", Path(scratch) / f"kernel{suffix}"
        source.write_text(text)
        command = [path, *flags, *([str(source)] if text else []), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed("\n".join(done.stderr.splitlines()[:25]))
        os.replace(made, target)  # atomic: another process sees all of it or nothing
    return target


def _prune(directory: Path) -> None:
    """Removes what was not used for a week; another process may do the same."""
    oldest = time.time() - _KEPT
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
