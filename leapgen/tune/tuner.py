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
from leapgen.tune.bench import Bench, Config, Configs, Lost, Point, Unfit, launched
from leapgen.tune.candidates import Candidate, Compiler, Field
from leapgen.tune.journal import Journal
from leapgen.tune.measured import Measured
from leapgen.tune.outcome import Outcome, Result
from leapgen.tune.race import Race
from leapgen.tune.ranking import field_configs, ranking, rule_ratio

COMPILING = 0.5
"""Part of the budget that the first shape's compilation may take, and of their own share later
shapes', which try the survivors only."""
STEPS = 0.6
"""Part of that for steps; the rest is for flushes."""
RACING = 0.3
"""Part of the budget that is kept for races: past it no finalist but the default is built or
checked, so that a short run gives records of a few candidates rather than none of many."""
NEAR = 0.1
"""How far behind the best a config may be, at its best batch, to survive for other shapes."""


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
            part = 1.0 if self.bench.predicted else COMPILING  # predictions take no time
            share = part * (self.budget - self._spent())
            share /= len(shapes) - index if index else 1
            fields = self._fields(shape, batches, share, survivors)
            measured = {point: self._contest(point, fields) for point in here}
            self._settle(measured, fields)
            survivors = survivors or self._survivors(shape, batches, fields)
        self.outcome.resumed = self.journal.found
        self.outcome.seconds = self._spent()
        return self.outcome

    # -- time

    def _spent(self) -> float:
        return self.bench.clock() - self._start

    def _over(self) -> bool:
        """Whether time is up for what runs on a device."""
        return not self.bench.predicted and self._spent() >= self.budget

    def _late(self) -> bool:
        """Whether what is left of the time is for races."""
        return not self.bench.predicted and self._spent() >= (1 - RACING) * self.budget

    def _say(self, text: str) -> None:
        finished = len(self.outcome.results) + len(self.outcome.unreached)
        self.notice(text, finished)

    # -- a shape

    def _fields(
        self,
        shape: Shape,
        batches: Sequence[int],
        share: float,
        survivors: dict[str, list[Config]],
    ) -> dict[str, Field]:
        until = self._spent() + STEPS * share

        def enough() -> bool:
            return self._spent() >= until

        compiler = Compiler(
            self.bench, self.plan, self.device, self.journal, batches, enough, self._say
        )
        fields = {}
        for kernel in self.bench.kernels:
            found = compiler.field(kernel, shape, survivors.get(kernel, ()))
            self._ready(shape, found)
            found.candidates = [c for c in found.candidates if self._sound(shape, found, c)]
            fields[kernel] = found
            self.outcome.fields.append((shape, found))
            until = self._spent() + (1 - STEPS) * share
        return fields

    def _ready(self, shape: Shape, found: Field) -> None:
        """Compiles finalists for running, several at a time."""

        def one(candidate: Candidate) -> None:
            standard = self._standard(shape, found, candidate)
            if self._over() if standard else self._late():
                return
            self._say(f"building {found.kernel}")
            # Its check says what is wrong with a candidate that does not compile.
            with contextlib.suppress(Unfit):
                self.bench.ready(shape, self._tried(shape, found.kernel, candidate.config), False)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, found.candidates))

    def _sound(self, shape: Shape, found: Field, candidate: Candidate) -> bool:
        """Whether a finalist computes what it should. The default is the yardstick of all others,
        and is itself held against the oracle."""
        standard = self._standard(shape, found, candidate)
        configs = self._tried(shape, found.kernel, candidate.config)
        configs = {**self._canary(shape), **configs} if standard else configs
        late = self._over() if standard else self._late()
        if late and self._checked(shape, configs, standard) is None:
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

    def _standard(self, shape: Shape, found: Field, candidate: Candidate) -> bool:
        return candidate.config == self.bench.default(found.kernel, shape)

    def _tried(self, shape: Shape, kernel: str, config: Config) -> Configs:
        """Configs under which a kernel runs at `config`: a flush behind a step that leaves windows
        open."""
        step = self.bench.default("step", shape)
        if kernel == "flush" and step.get("fused"):
            return {"step": {**step, "fused": 0}, kernel: config}
        return {kernel: config}

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

    def _canary(self, shape: Shape) -> Configs:
        """The default configs: what candidates are compared with."""
        return {kernel: self.bench.default(kernel, shape) for kernel in self.bench.kernels}

    def _contest(self, point: Point, fields: dict[str, Field]) -> Measured | None:
        """Times at a point; None if time was up before all candidates had run."""
        if self._over():
            return None
        canary = self._canary(point.shape)
        steps, flushes = field_configs(fields)
        measured = Measured(self.journal, point)
        try:
            with self.bench.timer(point) as timer:
                self._say(f"{point}: {len(steps)} steps, {len(flushes)} flushes")
                race = Race(timer, canary, self._over)
                return measured if measured.pairs(race, canary, steps, flushes) else None
        except Unfit as error:  # no room for its pool
            self.outcome.failures.append(str(error))
            return None

    def _settle(self, found: dict[Point, Measured | None], fields: dict[str, Field]) -> None:
        """Holds the winners against the oracle, and saves the results."""
        raced = {point: measured for point, measured in found.items() if measured is not None}

        def build(point: Point) -> None:
            with contextlib.suppress(Unfit):
                first = self._ranking(point, raced[point])[0]
                self.bench.ready(point.shape, first, thorough=True)

        self._say("building winners")
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(build, raced))
        for point, measured in found.items():
            winner = None if measured is None else self._winner(point, measured, fields)
            if winner is None:
                self.outcome.unreached.append(point)
                continue
            data = {k: v for k, v in vars(winner).items() if k not in ("point", "usage")}
            usage = {k: vars(u) if u else None for k, u in winner.usage.items()}
            place = {"shape": vars(point.shape), "rows": point.rows}
            if not any(f.left for f in fields.values()):  # otherwise a later run tries the rest
                self.journal.put({**data, "usage": usage}, what="point", **place)
            self._finish(winner)

    def _ranking(self, point: Point, measured: Measured) -> list[Configs]:
        return ranking(measured, self._canary(point.shape), self.bench.predicted)

    def _winner(self, point: Point, measured: Measured, fields: dict[str, Field]) -> Result | None:
        for configs in self._ranking(point, measured):
            self._say(f"{point}: the winner against the oracle")
            verdict = self._check(point.shape, configs, thorough=True)
            if not verdict["failure"]:
                return self._result(point, configs, measured, verdict["error"], fields)
            self.outcome.failures.append(f"{configs}: {verdict['failure']}")
        return None

    def _survivors(
        self, shape: Shape, batches: Sequence[int], fields: dict[str, Field]
    ) -> dict[str, list[Config]]:
        """What was good at one shape: needs hardly depend on the number of heads, so that other
        shapes need not try the rest."""
        canary = self._canary(shape)
        kept = {kernel: [config] for kernel, config in canary.items()}
        steps, flushes = field_configs(fields)
        for rows in batches:
            measured = Measured(self.journal, Point(shape, rows))
            if not steps or not measured.pairs(None, canary, steps, flushes):
                # Time was up: try them all.
                return {"step": steps, "flush": flushes} if flushes else {"step": steps}
            best = measured.ratio(measured.ranking()[0])
            for configs in measured.ranking():
                for kernel, known in kept.items():
                    near = measured.ratio(configs) <= (1 + NEAR) * best
                    if near and configs[kernel] not in known:
                        known.append(configs[kernel])
        return kept

    def _result(
        self,
        point: Point,
        configs: Configs,
        measured: Measured,
        error: float,
        fields: dict[str, Field],
    ) -> Result:
        kept = launched(configs)
        usage = {
            kernel: next((c.usage for c in fields[kernel].candidates if c.config == config), None)
            for kernel, config in kept.items()
        }
        canary = self._canary(point.shape)
        rule = rule_ratio(measured, canary, fields, self.plan, self.device)
        base = measured.canary_us / measured.ratio(canary)
        us, rule_us = base * measured.ratio(configs), base * rule
        raced, repeats = len(measured.ratios), measured.repeats
        return Result(point, kept, us, measured.canary_us, error, usage, rule_us, raced, repeats)
