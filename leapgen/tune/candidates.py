"""From the space to a few finalists of a kernel, before any run: by compilation, by prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from leapgen.diagnostics import LeapgenError
from leapgen.report.workers import cores
from leapgen.runtime.host import Shape
from leapgen.schedule import buffers, predict, space
from leapgen.schedule.arch import Arch, Device
from leapgen.schedule.plan import Plan
from leapgen.schedule.predict import Usage
from leapgen.tune.bench import Bench, Config, Unbuilt, Unfit
from leapgen.tune.journal import Journal

SPILLS, CLOSING = 64, 512
"""Spilled bytes of a thread beyond which a candidate is not tried; below, they only rank it. More
where the state is held in words: closing a window is what spills there, one token in P."""
FINALISTS = {"step": 12, "flush": 8}
"""Candidates of a kernel that are run, the default included; of steps that flush by themselves and
of those that do not, two thirds of that each, as predictions do not compare the two."""

MIDDLE, CLOSED = {"step": 896, "flush": 512}, 640
"""Resident threads of an SM in the middle of a kernel's space, and of steps that close windows."""


@dataclass(frozen=True)
class Candidate:
    """A config that compiles, and what it needs (None on targets without such figures)."""

    config: Config
    usage: Usage | None


@dataclass
class Field:
    """The candidates of one kernel at one shape, best predicted first behind the default.

    considered   configs that the predicate lets pass
    dropped      reason -> number of those that compilation ruled out
    left         configs that were not compiled or not checked, as time was up
    """

    kernel: str
    considered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    left: int = 0
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def plenty(self) -> bool:
        """Whether so many compile that finalists may be picked from them."""
        good = self.considered - self.left - sum(self.dropped.values())
        return good >= FINALISTS.get(self.kernel, 4)

    def drop(self, reason: str) -> None:
        """Counts a candidate that is out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@dataclass
class Compiler:
    """Compiles candidates in parallel, within a time, and picks finalists.

    batches   numbers of rows that finalists are picked for
    enough    says that the time for compilation is up
    notice    hears of every compiled candidate
    """

    bench: Bench
    plan: Plan
    device: Device | None
    journal: Journal
    batches: Sequence[int]
    enough: Callable[[], bool]
    notice: Callable[[str], None]

    def field(self, kernel: str, shape: Shape, only: Sequence[Config] = ()) -> Field:
        """The candidates of a kernel; `only` names configs in place of the whole space.

        Errors: LeapgenError, if the default config does not compile.
        """
        default = self.bench.default(kernel, shape)
        if only:
            configs = [default, *(c for c in only if c != default)]
        else:
            planned = as_planned(shape)
            knobs = self.bench.knobs(kernel)
            found = space.configs(kernel, planned, self.plan, knobs, default)
            configs = [default, *self._likely(kernel, [dict(c) for c in found[1:]])]
        out = Field(kernel, considered=len(configs))
        compiled = self._compile(out, shape, configs)
        out.candidates = self._finalists(out, shape, default, compiled)
        return out

    def _likely(self, kernel: str, configs: list[Config]) -> list[Config]:
        """The order in which to compile: near the middle of the space first, since time may end.
        Steps that close windows hold more in registers, so fewer of their threads are resident."""
        return sorted(
            configs, key=lambda c: _far(c, CLOSED if c.get("fused") else MIDDLE.get(kernel, 512))
        )

    def _compile(
        self, out: Field, shape: Shape, configs: Sequence[Config]
    ) -> list[tuple[Config, Usage | None]]:
        """Configs that compile, with their needs; several at a time, in order."""
        of = self.bench.compilation(out.kernel)

        def one(config: Config) -> tuple[Usage | None, str] | None:
            key = {"what": "usage", "kernel": out.kernel, "shape": vars(shape), "config": config}
            found = self.journal.get(of, **key)
            if found is None:
                # The default is compiled whatever the time: everything is measured against it.
                if self.enough() and config is not configs[0]:
                    return None
                try:
                    found = self.journal.put(self._need(out.kernel, shape, config), of, **key)
                except Unbuilt as error:  # not noted: it is left for a machine that can
                    return (None, str(error)) if config is configs[0] else None
            self.notice(f"compiling {out.kernel}")
            return (Usage(**found["usage"]) if found["usage"] else None), found["failure"]

        with ThreadPoolExecutor(cores()) as pool:
            results = list(pool.map(one, configs))
        compiled = []
        for config, result in zip(configs, results, strict=True):
            if result is None:
                out.left += 1
            elif result[1]:
                if config is configs[0]:  # without a yardstick there is nothing to tune
                    raise LeapgenError(f"{out.kernel} at its default config: {result[1]}")
                out.drop(result[1])
            else:
                compiled.append((config, result[0]))
        return compiled

    def _need(self, kernel: str, shape: Shape, config: Config) -> dict[str, Any]:
        try:
            usage = self.bench.usage(kernel, shape, config)
        except Unbuilt:
            raise
        except Unfit as error:
            return {"usage": None, "failure": str(error).splitlines()[0][:200]}
        return {"usage": asdict(usage) if usage else None, "failure": ""}

    def _finalists(
        self,
        out: Field,
        shape: Shape,
        default: Config,
        compiled: Sequence[tuple[Config, Usage | None]],
    ) -> list[Candidate]:
        kept, seen = [], set()
        for config, usage in compiled:
            if usage is None:
                kept.append(Candidate(config, usage))
                continue
            first = config == default
            # Equal needs and knobs beyond the register bound: the same machine code.
            shown = {k: v for k, v in config.items() if k != "min_blocks"}
            alike = (usage, tuple(sorted(shown.items())))
            if not first and usage.shared > self.plan.arch.shared_block:
                out.drop("too much shared memory")
            elif not first and usage.spills > (most := _spills(config)):
                out.drop(f"spills more than {most} bytes")
            elif alike in seen:
                out.drop("same code as another")
            else:
                seen.add(alike)
                kept.append(Candidate(config, usage))
        limit = FINALISTS.get(out.kernel, 4)
        kinds = [[c for c in kept if bool(c.config.get("fused")) is x] for x in (False, True)]
        if all(kinds):
            limit = limit * 2 // 3
        standard = [c for c in kept if c.config == default]
        chosen = [c for kind in kinds for c in self._ranked(out.kernel, shape, kind)[:limit]]
        return [*standard, *(c for c in chosen if c not in standard)]

    def _ranked(self, kernel: str, shape: Shape, kept: list[Candidate]) -> list[Candidate]:
        """Alternately the next best predicted for the largest and for the smallest batch."""
        device = self.device
        if device is None or any(c.usage is None for c in kept):
            return kept
        planned, orders = as_planned(shape), []
        for rows in sorted({max(self.batches), min(self.batches)}, reverse=True):

            def us(c: Candidate, rows: int = rows) -> tuple[float, float]:
                assert c.usage is not None
                us = predict.kernel_us(kernel, c.config, c.usage, planned, rows, self.plan, device)
                return us, _far(c.config, MIDDLE.get(kernel, 512))  # whatever came first

            orders.append(sorted(kept, key=us))
        mixed = [c for pair in zip(*orders, strict=True) for c in pair]
        return [c for i, c in enumerate(mixed) if c not in mixed[:i]]


def _far(config: Config, middle: int) -> int:
    """How many more or fewer threads are resident."""
    return abs(int(config.get("threads", 128) * config.get("min_blocks", 1)) - middle)


def _spills(config: Config) -> int:
    return CLOSING if config.get("fused") or config.get("tiles") else SPILLS


def as_planned(shape: Shape) -> buffers.Shape:
    """The same numbers as the pure half's shape."""
    return buffers.Shape(**vars(shape))


def known_device(arch: Arch, name: str) -> Device | None:
    """The row of a device, if its figures allow predictions."""
    try:
        device = arch.device(name)
    except LeapgenError:
        return None
    return device if device.sms and device.clock else None
