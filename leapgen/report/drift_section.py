"""How far a format's own model drifts from float64, and what is asked of it."""

from __future__ import annotations

from leapgen import pipeline
from leapgen.formats.base import Format
from leapgen.oracle import tolerance
from leapgen.oracle.drift import drift, standard_methods
from leapgen.report.sections import Section
from leapgen.schedule.plan import Plan

GAIN = 10.0
"""How many times lower the squared error of the state must be: a window against every token, and
the whole method against a window alone, where the format has what that needs. Compensators are as
many whatever a token writes: with n records a token the method has to give an nth of it."""
UNCORRECTED_GAIN = 0.25
"""The same for a window against every token, in tokens of the window, where no sub-step reads the
state: nothing corrects what is lost, and updates below half a code vanish at every token alike, so
that the roundings that a window saves are not independent."""
INDEPENDENT = 2.0
"""How many times the squared error of a window's codes may be what errors of the same sizes, each
with a sign of its own, make of the same state. Where no sub-step reads the state: the inverse of
UNCORRECTED_GAIN."""
DRIFT_TOKENS = 4096
"""Tokens from which gains are required: errors of the slow heads need that long to build up."""


def drift_section(chain: pipeline.Chain, tokens: int, seed: int) -> Section:
    """Relative squared error of the state, averaged over heads, and the gains of each measure.

    These are properties of the format's model, which kernels are held against.
    """
    format = chain.plan.format
    methods = standard_methods(chain.spec, format)
    found = drift(chain.spec, methods, tokens, seed=seed)
    heads = len(found.lines[0].state)
    section = Section(f"drift of the state over {tokens:,} tokens, {heads} heads, against float64")
    if not format.windowed:
        error = found.line("per step").state_mean ** 0.5
        limit = min(1.0, tolerance.CREST * _drift_bound(chain, tokens))
        section.ledger.compare("error of the state over its size, mean of heads", error, limit)
        return section
    enough = tokens >= DRIFT_TOKENS
    required = required_gains(chain.plan)
    for worse, better in (("per step", "per window"), ("per window", "full")):
        bound = required[better] if enough and _expected(format, better) else 0.0
        errors = [f"{found.line(name).state_mean:.1e}" for name in (worse, better)]
        name = f"squared error {worse} over {better}: {errors[0]} / {errors[1]}"
        section.ledger.at_least(name, found.ratio(worse, better), bound)
    if enough and _expected(format, "per window"):
        name = "squared error per window over that of independent errors"
        bound = INDEPENDENT if _corrected(chain.plan) else 1 / UNCORRECTED_GAIN
        section.ledger.compare(name, found.ratio("per window", "independent"), bound)
    return section


def required_gains(plan: Plan) -> dict[str, float]:
    """How many times lower the squared error must be, by the better measure's name."""
    required = {"per window": GAIN, "full": GAIN / plan.records_per_token}
    if not _corrected(plan):
        required["per window"] = UNCORRECTED_GAIN * plan.default_window
    return required


def _corrected(plan: Plan) -> bool:
    """Whether sub-steps read the state: there are more reads than the output's."""
    return len(plan.window.reads) > 1


def _drift_bound(chain: pipeline.Chain, tokens: int) -> float:
    """Bound on the state's error over its peak after so many stores."""
    plan, K = chain.plan, chain.spec.K
    return tolerance.bounds(plan.format, plan.records, 1, "fp32", K=K, flushes=tokens)["state"]


def _expected(format: Format, better: str) -> bool:
    """Whether the format rounds at all, and whether it has more than codes."""
    return format.bits < 32 if better == "per window" else format.compensators > 0
