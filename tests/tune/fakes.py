"""A bench without a device: times are a formula, every call is counted, the clock is a number."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leapgen.runtime.host import Shape, key_of
from leapgen.schedule.plan import Plan
from leapgen.schedule.predict import Usage
from leapgen.tune.bench import Config, Configs, Lost, Point, Timer, Unbuilt, Unfit
from leapgen.tune.journal import Journal
from leapgen.tune.outcome import Outcome, Result
from leapgen.tune.tuner import Tuner

STEP = {"threads": 128, "min_blocks": 7, "staged": True}
FLUSH = {"threads": 256, "slices": 1, "min_blocks": 2}
SHAPE = Shape(128, 128, 4, 4, 16, 4)


def usual(configs: Configs, point: Point) -> float:
    """Few rows like few blocks, many rows like many; a flush likes three blocks."""
    step, flush = configs["step"], configs.get("flush", FLUSH)
    best = 4 if point.rows < 64 else 8
    us = 10.0 + abs(step["min_blocks"] - best) + (0 if step["staged"] else 5)
    us += 2 * (step["threads"] != 128)
    if step.get("fused"):  # 2 has no registers left
        return us + 2 * (step["fused"] == 2)
    odd = (flush["threads"] != 256) + (flush["slices"] != 1)
    return us + 3.0 + odd + abs(flush["min_blocks"] - 3)


@dataclass
class FakeBench:
    """Seconds pass with each compilation, check and lap. standard: changes of the default step."""

    us: Callable[[Configs, Point], float] = usual
    step_knobs: frozenset[str] = frozenset(STEP)
    standard: Config = field(default_factory=dict)
    digest: str = "d"
    driver: str = ""
    wrong: Callable[[Configs], bool] = lambda _: False
    spilling: Callable[[Config], bool] = lambda _: False
    broken: Callable[[Config], bool] = lambda _: False
    full: Callable[[Config], bool] = lambda _: False
    deadly: Callable[[Configs], bool] = lambda _: False
    noise: float = 0.002
    drift: Callable[[float], float] = lambda _: 1.0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"compile": 0.1, "check": 0.1, "lap": 0.01}
    )
    die_after: int | None = None
    now: float = 0.0
    calls: list[tuple[str, str]] = field(default_factory=list)
    predicted: bool = False
    kernels: tuple[str, ...] = ("step", "flush")

    def __post_init__(self) -> None:
        self.random = random.Random(7)
        self.lock = threading.Lock()
        self.built: list[tuple[str, bool]] = []

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "module": self.digest,
            "device": "fake",
            "sms": 1,
            "driver": self.driver,
            "versions": {},
        }

    def compilation(self, kernel: str) -> dict[str, Any]:
        return {"text": f"{self.digest} {kernel}", "target": "fake", "versions": {}}

    def _note(self, what: str, **parts: Any) -> None:
        if self.die_after is not None and len(self.calls) >= self.die_after:
            raise KeyboardInterrupt
        with self.lock:
            self.calls.append((what, key_of(**parts)))
            self.now += self.seconds.get(what, 0.0)

    def knobs(self, kernel: str) -> frozenset[str]:
        return self.step_knobs if kernel == "step" else frozenset(FLUSH)

    def default(self, kernel: str, shape: Shape) -> Config:
        chosen = {**STEP, **self.standard} if kernel == "step" else FLUSH
        return {k: chosen.get(k, 0) for k in self.knobs(kernel)}

    def usage(self, kernel: str, shape: Shape, config: Config) -> Usage | None:
        self._note("compile", kernel=kernel, config=config)
        if self.full(config):
            raise Unbuilt("does not compile here: no space left on device")
        if self.broken(config):
            raise Unfit("does not compile: no")
        spills = 128 if self.spilling(config) else 0
        code = 1000 + len(key_of(config=config))
        return Usage(64, spills, 1024 * config.get("min_blocks", 1), code)

    def ready(self, shape: Shape, configs: Configs, thorough: bool) -> None:
        with self.lock:
            self.built.append((key_of(configs=configs), thorough))
            self.now += self.seconds.get("ready", 0.0)

    def check(self, shape: Shape, configs: Configs, thorough: bool) -> float:
        self._note("check", configs=configs, thorough=thorough)
        if self.wrong(configs):
            raise Unfit("output is off")
        return 0.5

    @contextmanager
    def timer(self, point: Point) -> Iterator[Timer]:
        yield FakeTimer(self, point)

    def clock(self) -> float:
        return self.now

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.calls)


@dataclass
class FakeTimer:
    bench: FakeBench
    point: Point

    def lap(self, configs: Configs) -> float:
        self.bench._note("lap", rows=self.point.rows, configs=configs)
        if self.bench.deadly(configs):
            raise Lost(configs, "illegal access")
        noise = 1 + self.bench.noise * self.bench.random.uniform(-1, 1)
        return self.bench.us(configs, self.point) * noise * self.bench.drift(self.bench.now)


def run(
    bench: FakeBench,
    plan: Plan,
    path: Path | None = None,
    batches: tuple[int, ...] = (8, 512),
    shapes: tuple[Shape, ...] = (SHAPE,),
    budget: float = 1e9,
    saved: list[Result] | None = None,
) -> Outcome:
    results: list[Result] = [] if saved is None else saved
    device = plan.arch.device("H200")
    journal = Journal(path, bench.identity)
    tuner = Tuner(bench, plan, device, journal, budget, lambda *_: None, results.append)
    return tuner.run(shapes, batches)


def best(outcome: Outcome, rows: int) -> dict[str, dict[str, Any]]:
    (found,) = [r for r in outcome.results if r.point.rows == rows]
    return {k: dict(c) for k, c in found.configs.items()}
