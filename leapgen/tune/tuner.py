"""The autotuner: for each shape and number of rows, the configs with the least time for a token.

The space is pruned by rules, then by compilation; finalists pass a check before their time counts;
races compare them. A token is a step and the flush that closes windows, so that what a config
takes from the other kernel counts. Steps are raced first, with the default flush; then flushes,
with the best step. A step that flushes by itself (`fused`) races against the best pair.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from leapgen.diagnostics import LeapgenError
from leapgen.runtime.host import Shape
from leapgen.schedule.arch import Device
from leapgen.schedule.plan import Plan
from leapgen.schedule.predict import Usage
from leapgen.tune.bench import Bench, Config, Configs, Lost, Point, Unfit
from leapgen.tune.candidates import Candidate, Compiler, Field
from leapgen.tune.journal import Journal
from leapgen.tune.measured import Measured
from leapgen.tune.race import Race

WORTH = 0.01
"""Gain below which the default stays: less is noise, and fewer configs are fewer kernels."""
COMPILING = 0.6
"""Part of the time left that a shape's compilation may take."""


@dataclass(frozen=True)
class Result:
    """The outcome at one point: the best configs, the default's if none is worth a change."""

    point: Point
    configs: Configs
    us: float
    default_us: float
    error: float
    usage: dict[str, Usage | None]
    raced: int
    repeats: int


@dataclass
class Outcome:
    """All results, what became of the candidates, and the points that time did not allow."""

    results: list[Result] = field(default_factory=list)
    fields: list[tuple[Shape, Field]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unreached: list[Point] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0


@dataclass
class Tuner:
    """One run over shapes and batches.

    budget   seconds; what is not reached is left for the next run, which resumes
    notice   hears what is being done, and how many points are finished
    save     called with every result at once
    """

    bench: Bench
    plan: Plan
    device: Device | None
    journal: Journal
    budget: float
    notice: Callable[[str, int], None]
    save: Callable[[Result], None]
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, shapes: Sequence[Shape], batches: Sequence[int]) -> Outcome:
        """Tunes every shape at every number of rows, the largest first.

        Errors: LeapgenError, if the default config does not compile or fails its check.
        """
        self._start = self.bench.clock()
        points = [Point(s, rows) for s in shapes for rows in sorted(set(batches), reverse=True)]
        survivors: dict[str, list[Config]] = {}
        pending = [p for p in points if not self._known(p)]
        for index, shape in enumerate(shapes):
            here = [p for p in pending if p.shape == shape]
            if not here and (index or not pending):
                continue
            share = COMPILING * (self.budget - self._spent()) / (len(shapes) - index)
            fields = self._fields(shape, batches, self._spent() + share, survivors)
            # Needs hardly depend on the number of heads: later shapes try the finalists only.
            survivors = {f.kernel: [c.config for c in f.candidates] for f in fields.values()}
            for point in here:
                self._point(point, fields)
        self.outcome.resumed = self.journal.found
        self.outcome.seconds = self._spent()
        return self.outcome

    # -- time

    def _spent(self) -> float:
        return self.bench.clock() - self._start

    def _over(self) -> bool:
        return self._spent() >= self.budget

    def _say(self, text: str) -> None:
        finished = len(self.outcome.results) + len(self.outcome.unreached)
        self.notice(text, finished)

    # -- a shape

    def _fields(
        self,
        shape: Shape,
        batches: Sequence[int],
        until: float,
        survivors: dict[str, list[Config]],
    ) -> dict[str, Field]:
        def enough() -> bool:
            return self._spent() >= until

        compiler = Compiler(
            self.bench, self.plan, self.device, self.journal, batches, enough, self._say
        )
        fields = {}
        for kernel in ("step", "flush"):
            found = compiler.field(kernel, shape, survivors.get(kernel, ()))
            self._ready(shape, found)
            found.candidates = [c for c in found.candidates if self._sound(shape, found, c)]
            fields[kernel] = found
            self.outcome.fields.append((shape, found))
        return fields

    def _ready(self, shape: Shape, found: Field) -> None:
        """Compiles finalists for running, several at a time."""

        def one(candidate: Candidate) -> None:
            if self._over():
                return
            self._say(f"building {found.kernel}")
            # Its check says what is wrong with a candidate that does not compile.
            with contextlib.suppress(Unfit):
                self.bench.ready(shape, self._alone(found, candidate))

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, found.candidates))

    def _alone(self, found: Field, candidate: Candidate) -> Configs:
        return {found.kernel: candidate.config}

    def _sound(self, shape: Shape, found: Field, candidate: Candidate) -> bool:
        """Whether a finalist computes what it should. The default is the yardstick of all others,
        and is itself held against the oracle."""
        standard = candidate.config == self.bench.default(found.kernel, shape)
        configs = self._alone(found, candidate)
        if self._over() and self._checked(shape, configs, standard) is None:
            found.left += 1
            return False
        self._say(f"checking {found.kernel}")
        verdict = self._check(shape, configs, thorough=standard)
        if verdict["failure"] and standard:
            raise LeapgenError(f"{found.kernel} at its default config: {verdict['failure']}")
        if verdict["failure"]:
            found.drop("failed its check")
            self.outcome.failures.append(f"{found.kernel} {candidate.config}: {verdict['failure']}")
        return not verdict["failure"]

    def _checked(self, shape: Shape, configs: Configs, thorough: bool = False) -> Any:
        parts = {"shape": vars(shape), "configs": configs, "thorough": thorough}
        return self.journal.get(what="check", **parts)

    def _check(self, shape: Shape, configs: Configs, thorough: bool) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            try:
                return {"error": self.bench.check(shape, configs, thorough), "failure": ""}
            except Unfit as error:
                return {"error": 0.0, "failure": str(error)[:400]}

        parts = {"shape": vars(shape), "configs": configs, "thorough": thorough}
        try:
            verdict: dict[str, Any] = self.journal.once(make, what="check", **parts)
        except Lost as error:
            self.journal.put({"error": 0.0, "failure": error.reason}, what="check", **parts)
            raise
        return verdict

    # -- a point

    def _known(self, point: Point) -> bool:
        """Whether an earlier run has finished a point; its result counts as this run's."""
        found = self.journal.get(what="point", shape=vars(point.shape), rows=point.rows)
        if found is not None:
            usage = {k: Usage(**u) if u else None for k, u in found.pop("usage").items()}
            self._finish(Result(point, usage=usage, **found))
        return found is not None

    def _finish(self, result: Result) -> None:
        self.outcome.results.append(result)
        self.save(result)

    def _point(self, point: Point, fields: dict[str, Field]) -> None:
        self._say(str(point))
        try:
            winner = None if self._over() else self._contest(point, fields)
        except Unfit as error:  # no room for its pool
            self.outcome.failures.append(f"{point}: {error}")
            winner = None
        if winner is None:
            self.outcome.unreached.append(point)
            return
        data = {k: v for k, v in vars(winner).items() if k not in ("point", "usage")}
        usage = {k: vars(u) if u else None for k, u in winner.usage.items()}
        noted = {**data, "usage": usage}
        self.journal.put(noted, what="point", shape=vars(point.shape), rows=point.rows)
        self._finish(winner)

    def _contest(self, point: Point, fields: dict[str, Field]) -> Result | None:
        """The winner at a point; None if time was up before it was found."""
        canary = {kernel: self.bench.default(kernel, point.shape) for kernel in fields}
        steps = [c.config for c in fields["step"].candidates]
        flushes = [c.config for c in fields["flush"].candidates]
        measured = Measured(self.journal, point)
        with self.bench.timer(point) as timer:
            race = Race(timer, canary, self._over)
            self._say(f"{point}: {len(steps)} steps")
            if not measured.all(race, [{**canary, "step": s} for s in steps]):
                return None
            pairs = [c for c in measured.ranking() if not c["step"].get("fused")]
            if pairs:
                self._say(f"{point}: {len(flushes)} flushes")
                if not measured.all(race, [{**pairs[0], "flush": f} for f in flushes]):
                    return None
        for configs in measured.ranking():
            gain = 1 - measured.ratio(configs) / measured.ratio(canary)
            if configs != canary and gain < WORTH:
                configs = canary
            verdict = self._check(point.shape, configs, thorough=True)
            if not verdict["failure"]:
                return self._result(point, configs, canary, measured, verdict["error"], fields)
            self.outcome.failures.append(f"{configs}: {verdict['failure']}")
        return None

    def _result(
        self,
        point: Point,
        configs: Configs,
        canary: Configs,
        measured: Measured,
        error: float,
        fields: dict[str, Field],
    ) -> Result:
        fused = configs["step"].get("fused", False)
        kept = {k: c for k, c in configs.items() if not (fused and k == "flush")}
        usage = {
            kernel: next((c.usage for c in fields[kernel].candidates if c.config == config), None)
            for kernel, config in kept.items()
        }
        base = measured.canary_us
        us = base * measured.ratio(configs) / measured.ratio(canary)
        raced, repeats = len(measured.ratios), measured.repeats
        return Result(point, kept, us, base, error, usage, raced, repeats)
