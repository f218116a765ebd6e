"""One spec of a benchmark: the subject and its opponents, configuration by configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from leapgen.bench import cases, check, counts, measure
from leapgen.bench.contender import KERNELS, Contender, contender
from leapgen.bench.ours import Ours
from leapgen.bench.results import Absent, Module, Record, Report
from leapgen.bench.timing import Timer
from leapgen.diagnostics import LeapgenError
from leapgen.integrations.peers import Case, Peer, failures
from leapgen.report.workers import cores
from leapgen.schedule.arch import Arch

Say = Callable[[str], None]
Note = Callable[[Record, Report], None]

NEEDED = ("step", "flush", "load_state")
"""Kernels of a module whose rarer calls are not timed."""
LONGEST = 500
"""Characters of a reason that are kept."""
FEWEST = 3
"""Least samples of what is timed with a quarter of the repeats."""


@dataclass(frozen=True)
class Scope:
    """Configurations and effort. details: also places in a window, and the rarer calls."""

    batches: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    repeats: int
    details: bool


@dataclass(frozen=True)
class Opponents:
    """Names of formats, and peers."""

    formats: tuple[str, ...]
    peers: tuple[Peer, ...]


@dataclass
class Contest:
    """One spec on one device; adds to the report what it finds.

    say   told what is being done
    note  given each record as it is found, and the report
    """

    scope: Scope
    spec: str
    arch: Arch
    device: torch.device
    timer: Timer
    report: Report
    say: Say
    note: Note

    def run(
        self, format: str | None, picks: Mapping[str, str], opponents: Opponents
    ) -> Iterator[None]:
        """Yields after each configuration."""
        self.say(f"{self.spec}: deriving")
        subject = contender(self.spec, self.arch.name, picks, format)
        others = [
            contender(self.spec, self.arch.name, picks, name)
            for name in opponents.formats
            if name != subject.name
        ]
        peers = [peer for peer in opponents.peers if self._present(peer, subject)]
        others = self._compile(subject, others)
        draws = cases.Draws(subject.spec, self.device)
        for H, HV in self.scope.heads:
            for rows in self.scope.batches:
                self._say(rows, H, HV, "drawing inputs")
                case = self._case(draws, subject, H, HV, rows)
                self._ours(subject, case, "subject")
                for other in others:
                    self._other(other, case)
                for peer in peers:
                    self._peer(peer, case, subject)
                yield

    def _say(self, rows: int, H: int, HV: int, text: str) -> None:
        self.say(f"{self.spec}: {H}, {HV} heads, {rows} rows: {text}")

    def _present(self, peer: Peer, subject: Contender) -> bool:
        reason = peer.lacks(subject.spec.name, subject.spec.nondefault_picks)
        if not reason and self.device.type != "cuda":
            reason = "needs a GPU"
        if reason:
            self._drop(subject.spec.name, peer.name, reason)
        else:
            package, _, version = peer.version().rpartition(" ")
            self.report.environment["versions"][package] = version
        return not reason

    def _compile(self, subject: Contender, others: list[Contender]) -> list[Contender]:
        """All kernels that will run, side by side; the others that could be compiled.

        Errors: LeapgenError, where the subject cannot.
        """
        self.say(f"{self.spec}: compiling")
        wanted = [(subject, KERNELS if self.scope.details else NEEDED)]
        wanted += [(other, NEEDED) for other in others]
        jobs = [
            (who, kernel, heads, rows)
            for who, kernels in wanted
            for kernel in kernels
            if kernel in who.module.kernels
            for heads in self.scope.heads
            for rows in self.scope.batches
        ]
        with ThreadPoolExecutor(cores()) as workers:
            done = [
                (who, workers.submit(who.compile, kernel, *heads, rows))
                for who, kernel, heads, rows in jobs
            ]
        failed = {who.name: str(e) for who, job in done if (e := job.exception()) is not None}
        if subject.name in failed:
            raise LeapgenError(failed[subject.name])
        for name, reason in failed.items():
            self._drop(subject.spec.name, name, reason)
        return [other for other in others if other.name not in failed]

    def _drop(self, spec: str, name: str, reason: str) -> None:
        self.report.absent.append(Absent(spec, name, reason[:LONGEST]))

    def _case(self, draws: cases.Draws, subject: Contender, H: int, HV: int, rows: int) -> Case:
        sizes = subject.sizes(H, HV)
        slot = subject.module.bytes_per_slot(**sizes)
        sets = cases.set_count(rows, slot, cases.cache_bytes(self.device))
        return draws.case(subject.module.shape(**sizes), rows, sets)

    def _add(self, record: Record) -> None:
        self.report.records.append(record)
        self.note(record, self.report)

    def _ours(self, ours: Contender, case: Case, role: str) -> None:
        shape, repeats = case.shape, self.scope.repeats
        few = max(FEWEST, repeats // 4)
        self._say(case.rows, shape.H, shape.HV, ours.name)
        details = self.scope.details and role == "subject"
        session = Ours(ours, case, spare=details)
        error, bound = check.ours(session)
        counted = ours.shape(shape.H, shape.HV)
        fused = bool(ours.config("step", shape.H, shape.HV, case.rows).get("fused"))
        token = counts.token(ours.plan, counted, case.rows, fused)
        self._add(
            Record(
                **_where(case, ours),
                contender=ours.name,
                title=ours.name,
                role=role,
                window=counted.P,
                compensators=counted.R,
                token=measure.tokens(self.timer, session, case, repeats),
                read=token.read,
                write=token.write,
                step=measure.step_alone(self.timer, session, repeats),
                flush=measure.flush_alone(self.timer, session, repeats),
                step_bytes=counts.step_mean(ours.plan, counted, case.rows, fused).total,
                positions=measure.positions(self.timer, session, few) if details else (),
                error=error,
                bound=bound,
                module=_module(ours, case),
            )
        )
        if details:
            self._say(case.rows, shape.H, shape.HV, "load_state, copy, materialize, reset")
            self.report.operations += measure.operations(self.timer, session, few)

    def _other(self, other: Contender, case: Case) -> None:
        """A format beside the subject's: if it fails, the run goes on."""
        try:
            self._ours(other, case, "format")
        except RuntimeError as failure:
            where = f"{case.shape.H}, {case.shape.HV} heads, {case.rows} rows"
            self._drop(other.spec.name, other.name, f"{where}: {failure}")

    def _peer(self, peer: Peer, case: Case, subject: Contender) -> None:
        shape, name = case.shape, subject.spec.name
        self._say(case.rows, shape.H, shape.HV, peer.name)
        try:
            session = peer.open(case)
            error, bound = check.peer(session, case, subject.spec, peer.state_bytes)
            time = measure.tokens(self.timer, session, case, self.scope.repeats)
        except failures() as failure:
            reason = f"{shape.H}, {shape.HV} heads, {case.rows} rows: {failure}"
            self._drop(name, peer.name, reason)
            return
        counted = subject.shape(shape.H, shape.HV)
        token = counts.others_token(subject.plan, counted, case.rows, peer.state_bytes)
        self._add(
            Record(
                **_where(case, subject),
                contender=peer.name,
                title=peer.title,
                role="peer",
                window=1,
                compensators=0,
                token=time,
                read=token.read,
                write=token.write,
                error=error,
                bound=bound,
            )
        )


def _where(case: Case, ours: Contender) -> dict[str, Any]:
    """The fields of a record that say what was measured where."""
    s = case.shape
    names = {"rows": case.rows, "H": s.H, "HV": s.HV, "K": s.K, "V": s.V}
    return {"spec": ours.spec.name, **names, "sets": case.sets, "tokens": case.tokens}


def _module(ours: Contender, case: Case) -> Module:
    kernels = [k for k in ("step", "flush") if k in ours.module.kernels]
    return Module(
        path=ours.path,
        digest=ours.digest,
        plan=ours.module.digest,
        configs={k: ours.config(k, case.shape.H, case.shape.HV, case.rows) for k in kernels},
    )
