"""The autotuner: for each shape and number of rows, the configs with the least time for a token.

The space is pruned by rules, then by compilation; finalists pass a check before their time counts;
races compare them. A token is a step and the flush that closes windows, so that what a config
takes from the other kernel counts. Steps are raced first, with the default flush; then flushes,
with the best step. A step that flushes by itself (`fused`) races against the best pair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from leapgen.diagnostics import LeapgenError
from leapgen.report.workers import cores
from leapgen.runtime.host import Shape
from leapgen.schedule.arch import Device
from leapgen.schedule.plan import Plan
from leapgen.schedule.predict import Usage
from leapgen.tune.bench import Bench, Config, Configs, Point, Unfit, launched
from leapgen.tune.candidates import Candidate, Compiler, Field
from leapgen.tune.journal import Journal
from leapgen.tune.measured import Measured
from leapgen.tune.outcome import Outcome, Result
from leapgen.tune.race import Race
from leapgen.tune.ranking import field_configs, ranking, rule_ratio
from leapgen.tune.times import Times
from leapgen.tune.verdicts import Verdicts

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

    def __post_init__(self) -> None:
        self._verdicts = Verdicts(self.bench, self.journal)

    def run(self, shapes: Sequence[Shape], batches: Sequence[int]) -> Outcome:
        """Tunes every shape at every number of rows, the largest first.

        Errors: LeapgenError, if the default config does not compile or fails its check.
        """
        self._times = Times(self.bench, self.budget)
        points = [Point(s, rows) for s in shapes for rows in sorted(set(batches), reverse=True)]
        survivors: dict[str, list[Config]] = {}
        pending = [p for p in points if not self._known(p)]
        todo = [s for s in shapes if any(p.shape == s for p in pending)]
        if todo and todo[0] != shapes[0]:  # which says what the others try
            todo.insert(0, shapes[0])
        whole = True
        for index, shape in enumerate(todo):
            self._times.shape(index == 0, len(todo) - index)
            fields = self._fields(shape, batches, survivors)
            whole = whole and not any(f.left for f in fields.values())
            here = [p for p in pending if p.shape == shape]
            measured = {point: self._contest(point, fields) for point in here}
            self._settle(measured, fields, whole)
            survivors = survivors or self._survivors(shape, batches, fields)
        return self._ended()

    def compile(self, shapes: Sequence[Shape], batches: Sequence[int]) -> Outcome:
        """Compiles the candidates and no more: what a run on a device then finds in its journal.

        Errors: LeapgenError, if a default config does not compile.
        """
        self._times = Times(self.bench, self.budget)
        for index, shape in enumerate(shapes):
            self._times.shape(index == 0, len(shapes) - index)
            for kernel, end in self._times.kernels():
                found = self._compiler(batches, end).field(kernel, shape)
                self.outcome.fields.append((shape, found))
        return self._ended()

    def _ended(self) -> Outcome:
        self.outcome.resumed = self.journal.found
        self.outcome.seconds = self._times.spent()
        return self.outcome

    def _say(self, text: str) -> None:
        finished = len(self.outcome.results) + len(self.outcome.unreached)
        self.notice(text, finished)

    # -- a shape

    def _fields(
        self, shape: Shape, batches: Sequence[int], survivors: dict[str, list[Config]]
    ) -> dict[str, Field]:
        fields = {}
        for kernel, end in self._times.kernels():
            found = self._field(kernel, shape, batches, survivors.get(kernel, ()), end)
            fields[kernel] = found
            self.outcome.fields.append((shape, found))
        return fields

    def _field(
        self, kernel: str, shape: Shape, batches: Sequence[int], only: Sequence[Config], end: float
    ) -> Field:
        """Candidates that compute what they should. If others have compiled plenty, these are built
        and checked first, and more are compiled if there is time."""
        until = self._times.compiled(end)
        ready = self._compiler(batches, 0.0).field(kernel, shape, only)
        if ready.plenty:
            left, ready.candidates = ready.left, self._sound(shape, ready, end)
            if not left or self._times.past(end):
                return ready
            until = self._times.compiled(end)
        found = self._compiler(batches, until).field(kernel, shape, only)
        found.candidates = self._sound(shape, found, end)
        if ready.plenty:
            found.candidates += [c for c in ready.candidates if c not in found.candidates]
        return found

    def _compiler(self, batches: Sequence[int], until: float) -> Compiler:
        def enough() -> bool:
            return self._times.spent() >= until

        bench, plan, device, journal = self.bench, self.plan, self.device, self.journal
        return Compiler(bench, plan, device, journal, batches, enough, self._say)

    def _sound(self, shape: Shape, found: Field, end: float) -> list[Candidate]:
        """The finalists that compute what they should. Several are built at a time, and each is
        checked as soon as those before it are; what the time does not suffice for is left."""
        pool = ThreadPoolExecutor(cores())
        try:
            built = [(c, pool.submit(self._build, shape, found, c, end)) for c in found.candidates]
            return [c for c, b in built if self._passes(shape, found, c, b.result())]
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, what has not begun is dropped

    def _build(self, shape: Shape, found: Field, candidate: Candidate, end: float) -> bool:
        """Compiles what a check and a race of a finalist run; False if there is no time for it."""
        configs, standard = self._verdicts.wanted(shape, found.kernel, candidate)
        known = self._verdicts.known(shape, configs, standard)
        if known and known["failure"]:
            return True
        # Everything is measured against the default, and what has passed a check may be raced.
        if self._times.past(self.budget if standard or known else end):
            return False
        self._say(f"building {found.kernel}")
        # Its check says what is wrong with a candidate that does not compile.
        with contextlib.suppress(Unfit, RuntimeError):
            self.bench.ready(shape, configs, False)
            if standard:
                self.bench.ready(shape, configs, True)
        return True

    def _passes(self, shape: Shape, found: Field, candidate: Candidate, built: bool) -> bool:
        """Whether a finalist computes what it should; False too if there is no time to see."""
        configs, standard = self._verdicts.wanted(shape, found.kernel, candidate)
        known = self._verdicts.known(shape, configs, standard)
        late = self._times.past(self.budget if standard else self._times.ready)
        if not built or (known is None and late):
            found.left += 1
            return False
        self._say(f"checking {found.kernel}")
        verdict = self._verdicts.make(shape, configs, standard)
        if verdict["failure"] and standard:
            raise LeapgenError(f"{found.kernel} at its default config: {verdict['failure']}")
        if verdict["failure"]:
            found.drop("failed its check")
            failure = f"{found.kernel} {candidate.config}: {verdict['failure']}"
            if failure not in self.outcome.failures:  # of those that were ready first
                self.outcome.failures.append(failure)
        return not verdict["failure"]

    # -- a point

    def _known(self, point: Point) -> bool:
        """Whether an earlier run has finished a point; its result counts as this run's."""
        found = self.journal.get(what="point", **self._place(point))
        if found is not None:
            usage = {k: Usage(**u) if u else None for k, u in found.pop("usage").items()}
            self._finish(Result(point, usage=usage, **found))
        return found is not None

    def _place(self, point: Point) -> dict[str, Any]:
        canary = self._verdicts.canary(point.shape)
        return {"shape": vars(point.shape), "rows": point.rows, "canary": canary}

    def _finish(self, result: Result) -> None:
        self.outcome.results.append(result)
        self.save(result)

    def _contest(self, point: Point, fields: dict[str, Field]) -> Measured | None:
        """Times at a point; None if time was up before all candidates had run."""

        def over() -> bool:
            return self._times.past(self._times.until)

        if over():
            return None
        canary = self._verdicts.canary(point.shape)
        steps, flushes = field_configs(fields)
        measured = Measured(self.journal, point, canary)
        try:
            with self.bench.timer(point) as timer:
                self._say(f"{point}: {len(steps)} steps, {len(flushes)} flushes")
                race = Race(timer, canary, over)
                return measured if measured.pairs(race, steps, flushes) else None
        except Unfit as error:  # no room for its pool
            self.outcome.failures.append(str(error))
            return None

    def _settle(
        self, found: dict[Point, Measured | None], fields: dict[str, Field], whole: bool
    ) -> None:
        """Holds the winners against the oracle, and saves the results. whole: no candidate of this
        shape, or of the one that says what this one tries, was left."""
        raced = {point: measured for point, measured in found.items() if measured is not None}

        def build(point: Point) -> None:
            with contextlib.suppress(Unfit):
                first = self._ranking(point, raced[point])[0]
                self.bench.ready(point.shape, first, thorough=True)

        self._say("building winners")
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(build, raced))
        for point, measured in found.items():
            winner = None if measured is None else self._winner(point, measured, fields)
            if winner is None:
                self.outcome.unreached.append(point)
                continue
            data = {k: v for k, v in vars(winner).items() if k not in ("point", "usage")}
            usage = {k: vars(u) if u else None for k, u in winner.usage.items()}
            if whole:  # otherwise a later run tries the rest
                self.journal.put({**data, "usage": usage}, what="point", **self._place(point))
            self._finish(winner)

    def _ranking(self, point: Point, measured: Measured) -> list[Configs]:
        return ranking(measured, self._verdicts.canary(point.shape), self.bench.predicted)

    def _winner(self, point: Point, measured: Measured, fields: dict[str, Field]) -> Result | None:
        for configs in self._ranking(point, measured):
            self._say(f"{point}: the winner against the oracle")
            verdict = self._verdicts.make(point.shape, configs, thorough=True)
            if not verdict["failure"]:
                return self._result(point, configs, measured, verdict["error"], fields)
            self.outcome.failures.append(f"{configs}: {verdict['failure']}")
        return None

    def _survivors(
        self, shape: Shape, batches: Sequence[int], fields: dict[str, Field]
    ) -> dict[str, list[Config]]:
        """What was good at one shape: needs hardly depend on the number of heads, so that other
        shapes need not try the rest."""
        canary = self._verdicts.canary(shape)
        kept = {kernel: [config] for kernel, config in canary.items()}
        steps, flushes = field_configs(fields)
        for rows in batches:
            measured = Measured(self.journal, Point(shape, rows), canary)
            if not steps or not measured.pairs(None, steps, flushes):
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
        canary = self._verdicts.canary(point.shape)
        rule = rule_ratio(measured, canary, fields, self.plan, self.device)
        base = measured.canary_us / measured.ratio(canary)
        us, rule_us = base * measured.ratio(configs), base * rule
        raced, repeats = len(measured.ratios), measured.repeats
        return Result(point, kept, us, measured.canary_us, error, usage, rule_us, raced, repeats)
