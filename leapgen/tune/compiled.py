"""A module's builders as the tuner sees them: knobs, default rules, and needs by compilation."""

from __future__ import annotations

import inspect
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from leapgen.emit.parts import kernel_digest
from leapgen.pipeline import Chain
from leapgen.report.resources import nvcc_version
from leapgen.report.workers import Killed, Workers, needs
from leapgen.runtime.host import Module, Shape, key_of
from leapgen.schedule.arch import Device
from leapgen.schedule.predict import Usage, kernel_us
from leapgen.tune.bench import Config, Configs, Point, Timer, Unbuilt, Unfit, launched
from leapgen.tune.candidates import as_planned

SHAPE = frozenset(("K", "V", "H", "HV", "P", "R", "D"))


@dataclass
class Compiled:
    """The part of a bench that needs no device: everything but checks and times."""

    chain: Chain
    module: Module
    device: str
    sms: int
    driver: str = ""
    workers: Workers = field(default_factory=Workers)
    _needs: dict[str, Usage | None] = field(default_factory=dict, init=False)

    @property
    def identity(self) -> dict[str, Any]:
        """See Bench."""
        return {
            "module": kernel_digest(self.chain.source.text),
            "device": self.device,
            "sms": self.sms,
            "driver": self.driver,
            "versions": versions() | ({"nvcc": nvcc_version()} if self.chain.plan.arch.gpu else {}),
        }

    def compilation(self, kernel: str) -> dict[str, Any]:
        """See Bench."""
        compilers = ("leapgen", "tilelang", "nvcc")
        return {
            "text": kernel_digest(self.chain.source.text, (kernel,)),
            "target": self.target,
            "versions": {k: v for k, v in self.identity["versions"].items() if k in compilers},
        }

    @property
    def kernels(self) -> tuple[str, ...]:
        """See Bench."""
        return tuple(kernel for kernel in ("step", "flush") if kernel in self.module.kernels)

    def knobs(self, kernel: str) -> frozenset[str]:
        """See Bench."""
        build = self.module.kernels[kernel].build
        return frozenset(inspect.signature(build).parameters) - SHAPE

    def default(self, kernel: str, shape: Shape) -> Config:
        """See Bench."""
        return dict(self.module.kernels[kernel].config(*shape.builder_arguments))

    def usage(self, kernel: str, shape: Shape, config: Config) -> Usage | None:
        """See Bench."""
        key = key_of(kernel=kernel, shape=vars(shape), config=config)
        if key not in self._needs:
            self._needs[key] = self._assembled(kernel, shape, config)
        return self._needs[key]

    def _assembled(self, kernel: str, shape: Shape, config: Config) -> Usage | None:
        arch = self.chain.plan.arch
        if not arch.gpu:
            return None
        path = inspect.getsourcefile(self.module.kernels[kernel].build)
        if path is None:
            raise Unfit("its builder has no file")
        try:
            call = self.workers.call
            found, failure = call(needs, Path(path), kernel, shape, config, self.target)
        except (Killed, OSError) as error:
            raise Unbuilt(f"does not compile here: {error}") from error
        if found is None:
            raise Unfit(f"does not compile: {failure}")
        # A stack frame holds what was spilled; arrays that stayed in memory cost the same.
        spills = max(found.spills, found.stack)
        return Usage(found.registers, spills, found.shared, found.instructions)

    @property
    def target(self) -> str:
        """nvcc's name of the arch."""
        return self.chain.plan.arch.target

    def clock(self) -> float:
        """See Bench."""
        return time.monotonic()


@dataclass
class Predicted(Compiled):
    """A bench for a device that is not here: times by `leapgen.schedule.predict`."""

    product: Device | None = None

    @property
    def predicted(self) -> bool:
        """See Bench."""
        return True

    def ready(self, shape: Shape, configs: Configs, thorough: bool) -> None:
        """See Bench."""

    def check(self, shape: Shape, configs: Configs, thorough: bool) -> float:
        """Nothing runs: `leapgen verify --arch` checks the arch's kernels in the emulator."""
        return 0.0

    @contextmanager
    def timer(self, point: Point) -> Iterator[Timer]:
        """See Bench."""
        yield _Predictor(self, point)


@dataclass
class _Predictor:
    """A timer whose laps are predictions."""

    bench: Predicted
    point: Point
    _found: dict[str, float] = field(default_factory=dict)

    def lap(self, configs: Configs) -> float:
        """See Timer."""
        return sum(self._us(kernel, config) for kernel, config in launched(configs).items())

    def _us(self, kernel: str, config: Config) -> float:
        name = f"{kernel} {sorted(config.items())}"
        if name not in self._found:
            self._found[name] = self._predict(kernel, config)
        return self._found[name]

    def _predict(self, kernel: str, config: Config) -> float:
        product, plan = self.bench.product, self.bench.chain.plan
        usage = self.bench.usage(kernel, self.point.shape, config)
        if usage is None or product is None:
            raise Unfit("no figures to predict from")
        shape = as_planned(self.point.shape)
        return kernel_us(kernel, config, usage, shape, self.point.rows, plan, product)


def driver_version() -> str:
    """The NVIDIA driver's version; empty without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Package -> version, of all that decides what code runs."""
    import torch

    found = {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    for package in ("leapgen", "tilelang"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return dict(sorted(found.items()))
