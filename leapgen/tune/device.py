"""A bench on a device at hand: checks on scratch slots, times by graphs (or a CPU's clock)."""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from leapgen.files import locked
from leapgen.report.subjects import Subject, one_thread
from leapgen.report.workers import Killed, build
from leapgen.runtime.host import ArgumentError, CompileError, Module, Once, Shape, key_of
from leapgen.tune import check, workload
from leapgen.tune.bench import Configs, Lost, Point, Timer, Unfit
from leapgen.tune.compiled import Compiled
from leapgen.tune.timers import GraphTimer, WorkloadTimer, survives

CHECKED = ("step", "flush", "load_state", "materialize")
"""Kernels that every check and workload runs; the oracle's takes all."""


@dataclass
class DeviceBench(Compiled):
    """The module of `subject`, which runs here. Nothing of a caller's is touched: pools are its
    own, and are gone when a check or a timer ends.

    Several tuners may share a device: they compile side by side and take turns on it, so that none
    runs in another's laps. Waiting costs nothing of a budget.
    """

    subject: Subject | None = None
    _built: Once = field(default_factory=Once, init=False)
    _inputs: dict[Shape, workload.Inputs] = field(default_factory=dict, init=False)
    _waited: float = field(default=0.0, init=False)
    _since: float | None = field(default=None, init=False)

    def clock(self) -> float:
        """See Bench."""
        since = self._since  # threads that compile ask while another waits for its turn
        return (time.monotonic() if since is None else since) - self._waited

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Holds the device against other tuners of this machine."""
        self._since = time.monotonic()
        with locked(Path(tempfile.gettempdir()) / f"leapgen-tunes-{_identity(self._place)}"):
            self._waited += time.monotonic() - self._since
            self._since = None
            yield

    @property
    def predicted(self) -> bool:
        """See Bench."""
        return False

    @property
    def _place(self) -> str:
        return self.subject.device if self.subject else "cpu"

    def ready(self, shape: Shape, configs: Configs, thorough: bool) -> None:
        """See Bench."""
        if thorough:
            self._compile(_few(shape), configs, self.module.plain_kernels)
        else:
            kernels = tuple(k for k in CHECKED if k in self.module.kernels)
            self._compile(shape, configs, kernels)

    def check(self, shape: Shape, configs: Configs, thorough: bool) -> float:
        """See Bench."""
        plan, spec = self.chain.plan, self.chain.spec
        candidate = self.module.with_configs(**configs)
        try:
            if not thorough or self.subject is None:
                self.ready(shape, configs, thorough)
                with self._turn():
                    given = self._given(shape)
                    return check.against_default(spec, plan, self.module, candidate, given, shape)
            self.ready(shape, configs, thorough)
            subject = Subject(candidate, self.subject.arch, self.subject.how, self.subject.device)
            with one_thread(), self._turn():
                return check.against_oracle(spec, plan, subject, shape)
        except (RuntimeError, ArgumentError) as error:
            if not survives(self._place):
                raise Lost(configs, error) from error
            raise Unfit(f"does not run: {error}") from error

    @contextmanager
    def timer(self, point: Point) -> Iterator[Timer]:
        """See Bench."""
        with self._turn(), self._timer(point) as timer:
            yield timer

    @contextmanager
    def _timer(self, point: Point) -> Iterator[Timer]:
        gpu = self._place.startswith("cuda")
        cache = torch.cuda.get_device_properties(self._place).L2_cache_size if gpu else 0
        timer: WorkloadTimer | None = None
        try:
            given, shape = self._given(point.shape), point.shape
            work = workload.Workload(self.module, given, shape, point.rows, cache, self._place)
            timer = GraphTimer(work) if gpu else WorkloadTimer(work)
            yield timer
        except torch.OutOfMemoryError as error:
            raise Unfit(f"{point}: no room for its pool") from error
        finally:
            if timer is not None:
                timer.close()
            if gpu:
                torch.cuda.empty_cache()

    def _given(self, shape: Shape) -> workload.Inputs:
        if shape not in self._inputs:
            self._inputs[shape] = workload.inputs(self.chain.spec, shape, self._place)
        return self._inputs[shape]

    def _compile(self, shape: Shape, configs: Configs, kernels: tuple[str, ...]) -> None:
        """The module's kernels and the candidate's, several at a time. Errors: Unfit."""
        candidate = self.module.with_configs(**configs)
        s = shape
        pool = self.module.allocate(1, s.H, s.HV, s.K, s.V, s.P, s.R, self._place)

        def one(job: tuple[Module, str]) -> None:
            module, kernel = job
            path = inspect.getsourcefile(module.kernels[kernel].build)
            if self._place.startswith("cuda") and path is not None:
                config = dict(module.config(kernel, pool.shape))
                self._built.get(
                    key_of(kernel=kernel, shape=vars(shape), config=config),
                    lambda: self.workers.call(
                        build, Path(path), kernel, shape, config, self.target
                    ),
                )
            module.kernel(kernel, pool)

        jobs = [(module, kernel) for module in (candidate, self.module) for kernel in kernels]
        try:
            with ThreadPoolExecutor() as workers:
                list(workers.map(one, jobs))
        except (CompileError, Killed) as error:
            raise Unfit(str(error)) from error


def _identity(place: str) -> str:
    """A name of the device that all processes of this machine give it."""
    if not place.startswith("cuda"):
        return place
    return str(torch.cuda.get_device_properties(place).uuid)


def _few(shape: Shape) -> Shape:
    """One key head of a shape: what the oracle, which is slow, is asked for."""
    return Shape(shape.K, shape.V, 1, shape.HV // shape.H, shape.P, shape.R)
