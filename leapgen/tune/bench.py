"""What a tuner knows of the world: protocols, so that all of it runs on a CPU or on a fake."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from leapgen.diagnostics import LeapgenError
from leapgen.runtime.host import Shape
from leapgen.schedule.predict import Usage

Config = dict[str, Any]
Configs = Mapping[str, Config]
"""Kernel -> config; kernels that are not named run at their default rule's."""


def launched(configs: Configs) -> dict[str, Config]:
    """Those of a token's launches: a step that closes windows itself has no flush behind it."""
    fused = configs["step"].get("fused")
    return {kernel: c for kernel, c in configs.items() if not (fused and kernel == "flush")}


class Unfit(LeapgenError):
    """A candidate that cannot run or gives wrong results; says why."""


class Unbuilt(Unfit):
    """The machine failed while it compiled, which says nothing of the candidate."""


class Lost(LeapgenError):
    """A candidate broke the device for the rest of the process; it is noted, so the next run goes
    on without it."""

    def __init__(self, configs: Configs, reason: object) -> None:
        self.configs = configs
        self.reason = str(reason).splitlines()[0] if str(reason) else "an error without a text"
        super().__init__(
            f"the device failed at {configs}: {self.reason}; run the same command again: it "
            "resumes without this candidate"
        )


@dataclass(frozen=True)
class Point:
    """What one record is tuned for: a shape and a number of rows."""

    shape: Shape
    rows: int

    def __str__(self) -> str:
        s = self.shape
        return f"{s.K}x{s.V}, H={s.H} HV={s.HV}, {self.rows} rows"


class Timer(Protocol):
    """Times candidates at one point, on its own scratch pool."""

    def lap(self, configs: Configs) -> float:
        """Microseconds of one token, step and flush: one sample. Errors: Unfit, Lost."""


class Bench(Protocol):
    """A module on a device, or something that stands for it."""

    @property
    def identity(self) -> dict[str, Any]:
        """What measurements depend on beyond configs and points: module text, device, versions."""

    def compilation(self, kernel: str) -> dict[str, Any]:
        """What `usage` depends on beyond shapes and configs: the kernel's text, target, compilers.
        No device: what a machine without one has compiled counts on one that has it."""

    @property
    def predicted(self) -> bool:
        """Whether times are predictions."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """What a token launches: step, and flush where there are windows."""

    def knobs(self, kernel: str) -> frozenset[str]:
        """Tuning arguments that the kernel's builder takes."""

    def default(self, kernel: str, shape: Shape) -> Config:
        """The default rule's config."""

    def usage(self, kernel: str, shape: Shape, config: Config) -> Usage | None:
        """Compiles without running: what the kernel needs; None where a target has no such
        figures. Called from several threads. Errors: Unfit."""

    def ready(self, shape: Shape, configs: Configs, thorough: bool) -> None:
        """Compiles what a check and, unless thorough, a timer run, from several threads. Errors:
        Unfit."""

    def check(self, shape: Shape, configs: Configs, thorough: bool) -> float:
        """Largest error over its bound, at most 1, on scratch slots: against the default config,
        or, if thorough, against the oracle. Errors: Unfit, Lost."""

    def timer(self, point: Point) -> AbstractContextManager[Timer]:
        """A timer and its scratch pool, given back at the end."""

    def clock(self) -> float:
        """Seconds, for the budget."""
