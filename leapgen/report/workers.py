"""Compilation in processes: TileLang lowers a kernel under the interpreter's lock, so that threads
alone would take one core. Threads wait for these processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from leapgen.diagnostics import LeapgenError
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.report import resources
from leapgen.report.subjects import prepare
from leapgen.runtime import assemble
from leapgen.runtime.host import Shape, TileLang

Result = TypeVar("Result")


class Killed(LeapgenError):
    """The system ended a process that compiled a kernel, and the next one too."""


# What building, lowering and assembling a kernel can raise.
ERRORS = (
    resources.AssemblyFailed,
    RuntimeError,
    ValueError,
    TypeError,
    NameError,
    AttributeError,
    AssertionError,
    OSError,
)


def cores() -> int:
    """CPUs that this process may use: in a container, or under `taskset`, fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """A pool of processes, started when it is first used. They end with this process, however it
    ends."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or cores()
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def call(self, job: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function of a module in one of the processes; once more, in new ones, if the
        system killed one. Errors: the function's, Killed."""
        for _ in range(2):
            pool = self._started()
            try:
                return pool.submit(job, *arguments).result()
            except BrokenExecutor:
                with self._lock:
                    self._pool = None if self._pool is pool else self._pool
        raise Killed("does not compile: its process was killed")

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                context = get_context("spawn")
                self._pool = ProcessPoolExecutor(
                    self.count, context, initializer=_start, initargs=(os.getpid(),)
                )
            return self._pool

    def close(self) -> None:
        """Ends the processes; what has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _start(parent: int) -> None:
    """A killed parent cannot end its workers: they look for it."""
    prepare()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def needs(
    path: Path, kernel: str, shape: Shape, config: Mapping[str, Any], target: str
) -> tuple[resources.Resources | None, str]:
    """What a kernel of the module at `path` needs on a target, or why it does not compile."""
    made = assemble.import_module(path).kernels[kernel]
    try:
        func = made.build(*shape.builder_arguments, **config)
        found = resources.assemble(func, target, {**PASS_CONFIGS, **made.pass_configs})
    except OSError:  # of this machine, not of the kernel
        raise
    except ERRORS as error:
        return None, f"{type(error).__name__}: {str(error).strip()[:2000]}"
    return found, ""


def build(path: Path, kernel: str, shape: Shape, config: Mapping[str, Any], target: str) -> None:
    """Compiles a kernel into TileLang's cache on disk, where this machine's other processes find
    it. A failure is left to them: they say which candidate it was."""
    made = assemble.import_module(path).kernels[kernel]
    try:
        func = made.build(*shape.builder_arguments, **config)
        TileLang("cuda").compile(func, {"kind": "cuda", "arch": target}, made.pass_configs)
    except ERRORS:
        return
