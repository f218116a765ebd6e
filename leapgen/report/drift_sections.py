"""How far a format's own model drifts, and what is asked of kernels whose model loses the state."""

from __future__ import annotations

from leapgen import pipeline
from leapgen.formats.base import Format
from leapgen.oracle import tolerance
from leapgen.oracle.drift import drift, growth, standard_methods
from leapgen.report.operations import tokens
from leapgen.report.sections import Section, reported
from leapgen.report.subjects import Subject
from leapgen.report.trial import Trial
from leapgen.schedule.plan import Plan

GAIN = 10.0
"""How many times lower the squared error of the state must be: a window against every token, and
the whole method against a window alone, where the format has what that needs. Compensators are as
many whatever a token writes: with n records a token the method has to give an nth of it."""
SAVED = 0.75
"""The same in tokens of a window, as far as a token's store loses what a window's does. Stores of
independent errors of one size would gain sum_j R(j) / sum_j R(16 j) with windows of 16 tokens, R(j)
being what a head remembers of a squared error after j tokens: 14.0 and 14.1 for the heads of gdn's
and kda's streams, or 0.88 a token. Coarse grids gain less: a store of a state that one token has
hardly moved finds most of its own codes again, and loses a part of what a window's store does. That
part is measured; where it does not matter, GAIN has to be reached."""
UNCORRECTED_GAIN = 0.25
"""The same for a window against every token, in tokens of the window, where no sub-step reads the
state: nothing corrects what is lost, and updates below half a code vanish at every token alike, so
that the roundings that a window saves are not independent."""
LOCKSTEP_TOKENS = 512
"""Tokens of a slot's life beside a model that diverges; an eighth of them if emulated."""
DRIFT_TOKENS = 4096
"""Tokens from which gains are required: errors of the slow heads need that long to build up."""


def drift_sections(
    chain: pipeline.Chain, subject_: Subject, count: int, seed: int
) -> tuple[float, list[Section]]:
    """Relative squared error of the state after `count` tokens, averaged over heads, and the gains
    of each measure.

    These are properties of the format's model, which kernels are held against. Where that loses the
    state, its error is the first result.
    """
    format = chain.plan.format
    methods = standard_methods(chain.spec, format)
    found = drift(chain.spec, methods, count, seed=seed)
    heads = len(found.lines[0].state)
    title = f"drift of the state over {count:,} tokens, {heads} heads, against float64"
    section = Section(title)
    if not format.windowed:
        error = found.line("per step").state_mean ** 0.5
        if error > 1.0 and (most := max(growth(chain.spec, format, count))) >= 1.0:
            return error, _diverged(chain, subject_, error, most, count, seed)
        limit = min(1.0, tolerance.CREST * _drift_bound(chain, count))
        section.ledger.compare("error of the state over its size, mean of heads", error, limit)
        return 0.0, [section]
    enough = count >= DRIFT_TOKENS
    required = required_gains(chain.plan)
    for worse, better in (("per step", "per window"), ("per window", "full")):
        bound = required[better] if enough and _expected(format, better) else 0.0
        errors = [f"{found.line(name).state_mean:.1e}" for name in (worse, better)]
        name = f"squared error {worse} over {better}: {errors[0]} / {errors[1]}"
        if bound and better == "per window":
            loss = found.loss(worse, better)
            bound = min(bound, SAVED * loss * chain.plan.default_window)
            name += f" (one store: {loss:.2f})"
        section.ledger.at_least(name, found.ratio(worse, better), bound)
    return 0.0, [section]


def _diverged(
    chain: pipeline.Chain, subject_: Subject, error: float, most: float, after: int, seed: int
) -> list[Section]:
    """What can be asked of a format whose own noise makes its errors grow without end: that this is
    so, and that its kernels do what its model does for as long."""
    spec = chain.spec
    title = f"the format itself diverges: model drift {error:.1e} times the state's size"
    section = Section(f"{title} after {after:,} tokens, mean of heads")
    name = "squared error of a store, times stores that a head remembers (1: errors grow)"
    section.ledger.at_least(name, most, 1.0)
    count = LOCKSTEP_TOKENS // (8 if subject_.emulated else 1)
    shape = chain.plan.shape(spec.K, spec.V, 1, 2)
    beside = Section(
        f"kernels beside that model, {count} tokens without a load, {spec.K} x {spec.V}"
    )
    with reported(beside.ledger):
        tokens(Trial(spec, chain.plan, subject_, shape, beside.ledger, 3, seed), count)
    return [section, beside]


def required_gains(plan: Plan) -> dict[str, float]:
    """How many times lower the squared error must be, by the better measure's name."""
    required = {"per window": GAIN, "full": GAIN / plan.records_per_token}
    if len(plan.window.reads) == 1:  # the output's alone
        required["per window"] = UNCORRECTED_GAIN * plan.default_window
    return required


def _drift_bound(chain: pipeline.Chain, tokens: int) -> float:
    """Bound on the state's error over its peak after so many stores."""
    plan, K, V = chain.plan, chain.spec.K, chain.spec.V
    return tolerance.bounds(plan.format, plan.records, 1, "fp32", K=K, V=V, flushes=tokens)["state"]


def _expected(format: Format, better: str) -> bool:
    """Whether the format rounds at all, and whether it has more than codes."""
    return format.bits < 32 if better == "per window" else format.compensators > 0
