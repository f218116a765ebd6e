"""`leapgen verify`: one spec on one arch against its oracles, each check with error and bound."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.formats.table import NAMED
from leapgen.report import derivation, verified
from leapgen.report.agreement import agreement
from leapgen.report.drift_section import DRIFT_TOKENS, drift_section
from leapgen.report.explain import model_of, shape_of
from leapgen.report.ledger import ROW, Check
from leapgen.report.operations import random_operations
from leapgen.report.progress import Step
from leapgen.report.sections import Section, reported
from leapgen.report.subjects import Subject, one_thread, subject
from leapgen.report.text import table
from leapgen.report.trial import Trial
from leapgen.report.verified import Evidence
from leapgen.schedule.arch import arch_named
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import PublishedModel

GEOMETRIES = ((16, 24), (64, 32))
"""K, V with two key heads and four value heads: neither square, nor one head, nor one order."""


@dataclass
class Result:
    """A verification: what ran, where, and every check.

    path, digest   of the module, and of what its CHECKED kernels need
    """

    name: str
    arch: str
    how: str
    format: str
    window: int
    picks: dict[str, str]
    model: str
    path: str
    digest: str
    sections: list[Section] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def checks(self) -> list[Check]:
        """All checks, section by section."""
        return [c for s in self.sections for c in s.ledger.checks.values()]

    @property
    def ok(self) -> bool:
        """Whether every section ran and nothing failed."""
        return bool(self.sections) and all(s.ledger.ok for s in self.sections)

    def data(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "spec": self.name,
            "arch": self.arch,
            "how": self.how,
            "format": self.format,
            "window": self.window,
            "picks": self.picks,
            "model": self.model or None,
            "module": self.path,
            "digest": self.digest,
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "sections": [{"title": s.title, "checks": s.ledger.data()} for s in self.sections],
        }


def require_whole(requests: Iterable[Request]) -> None:
    """Errors: LeapgenError for picks and for less than a whole verification, of which no evidence
    is recorded: it is of defaults."""
    for r in requests:
        if r.picks or r.rounds is not None or r.tokens < DRIFT_TOKENS:
            raise LeapgenError(f"{r.spec}: evidence is of a spec's default picks and of all checks")


def record(path: Path, results: Iterable[Result]) -> None:
    """Notes what passed in a file of evidence, and takes back what is there of what failed."""
    passed: list[Evidence] = []
    failed: list[Evidence] = []
    for r in results:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        found = (r.name, r.format, r.arch, r.how)
        entry = Evidence(*found, r.digest, day, len(r.checks))
        (passed if r.ok else failed).append(entry)
    verified.note(path, passed, [r.key for r in failed])


@dataclass(frozen=True)
class Request:
    """What to verify, and on what; see the command's options."""

    spec: str
    arch: str = "cpu"
    format: str | None = None
    picks: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    tokens: int = DRIFT_TOKENS
    rounds: int | None = None
    seed: int = 0


def formats(word: str | None, arch: str) -> tuple[str | None, ...]:
    """The formats that an option names; `all`: those that have kernels for the arch."""
    if word != "all":
        return (word,)
    return tuple(n for n, f in NAMED.items() if f.kernels_on(arch_named(arch).gpu))


def verify(request: Request, step: Step) -> Result:
    """Runs all checks. Errors: Diagnostics, LeapgenError, MissingTool."""
    with one_thread():
        return _verify(request, step)


def _verify(request: Request, step: Step) -> Result:
    start = time.perf_counter()
    model = model_of(request.spec, request.model) if request.model else None
    picks = {**(dict(model.picks) if model else {}), **request.picks}
    step(f"{request.spec}: deriving")
    chain = pipeline.compile(request.spec, request.arch, picks, request.format)
    subject_ = subject(chain.source, request.arch)
    result = Result(
        chain.spec.name,
        subject_.arch.name,
        subject_.how,
        chain.plan.format.name,
        chain.plan.default_window,
        dict(chain.spec.picks),
        model.name if model else "",
        chain.source.path,
        verified.digest(chain.source.text),
    )
    result.sections.append(Section("derivation", derivation.checks(chain.window, request.seed)))
    for shape, rounds in _shapes(chain, subject_, model):
        step(f"{request.spec}: {shape.K} x {shape.V}, {shape.HV} heads")
        rounds = request.rounds or rounds
        result.sections.append(operate(chain, subject_, shape, rounds, request.seed))
    if subject_.arch.gpu:
        step(f"{request.spec}: against the cpu module")
        result.sections.append(_agree(request, picks, chain, subject_))
    step(f"{request.spec}: drift over {request.tokens:,} tokens")
    result.sections.append(drift_section(chain, request.tokens, request.seed))
    result.seconds = time.perf_counter() - start
    return result


def text(result: Result) -> str:
    """A table a section, and the count."""
    picks = ", ".join(f"{c}={a}" for c, a in result.picks.items())
    lines = [
        f"{result.name} on {result.arch} ({result.how}), {result.format}, "
        f"window {result.window}" + (f", {picks}" if picks else ""),
        *([f"heads and dimensions of {result.model} included"] if result.model else ()),
    ]
    rows = [[c.row for c in s.ledger.checks.values()] for s in result.sections]
    whole = table(ROW, [row for part in rows for row in part]).splitlines()
    header, body = whole[0], iter(whole[1:])
    for section, part in zip(result.sections, rows, strict=True):
        lines += ["", section.title, header, *(next(body) for _ in part)]
    failed = [c for c in result.checks if not c.ok]
    lines += ["", *(f"FAILED {c.name}: {c.where}" for c in failed if c.where)]
    passed = len(result.checks) - len(failed)
    lines.append(f"{passed} checks passed, {len(failed)} failed, {result.seconds:.0f} s")
    return "\n".join(lines)


def _shapes(
    chain: pipeline.Chain, subject_: Subject, model: PublishedModel | None
) -> list[tuple[Shape, int]]:
    """Shapes and operations each: a model's own shape costs more, an emulated one far more."""
    rounds = 40 if subject_.emulated else 200
    shapes = [(chain.plan.shape(K, V, 2, 4), rounds) for K, V in GEOMETRIES]
    if model is not None:
        shapes.append((shape_of(chain.plan, chain.spec, model), 6 if subject_.emulated else 90))
    return shapes


def operate(
    chain: pipeline.Chain, subject_: Subject, shape: Shape, rounds: int, seed: int = 0
) -> Section:
    """Random operations of one shape on a module, against its oracles."""
    section = Section(_title(chain.plan, shape, rounds))
    with reported(section.ledger):
        trial = Trial(chain.spec, chain.plan, subject_, shape, section.ledger, seed=seed)
        random_operations(trial, rounds)
        what = "windows that closed" if chain.plan.windowed else "states that steps stored"
        section.ledger.at_least(f"{what}, of a head", trial.flushed, 1)
    return section


def _title(plan: Plan, shape: Shape, rounds: int) -> str:
    order = plan.layout(shape).name
    heads = f"{shape.H} key and {shape.HV} value heads"
    return f"{shape.K} x {shape.V}, {heads}, {order} order, {rounds} random operations"


def _agree(
    request: Request, picks: dict[str, str], chain: pipeline.Chain, subject_: Subject
) -> Section:
    cpu = pipeline.compile(request.spec, "cpu", picks, request.format)
    K, V = GEOMETRIES[-1]
    shape = chain.plan.shape(K, V, 2, 4)
    section = Section(f"cpu and {subject_.arch.name} from one export, {K} x {V}")
    sides = ((cpu.plan, subject(cpu.source, "cpu")), (chain.plan, subject_))
    with reported(section.ledger):
        agreement(chain.spec, sides, shape, section.ledger, request.seed)
    return section
