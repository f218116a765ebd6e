"""A format as a composition of orthogonal choices, and the one predicate of what makes sense."""

from __future__ import annotations

from dataclasses import dataclass

from leapgen.diagnostics import listing
from leapgen.formats.base import CADENCES, FormatError
from leapgen.formats.factors import FACTORS
from leapgen.formats.grids import GRIDS, Levels, Symmetric
from leapgen.formats.scales import SCALES
from leapgen.formats.transforms import TRANSFORMS

ROUNDINGS = ("nearest", "stochastic")
FEEDBACKS = ("none", "two-level")
MOST_COMPENSATORS = 16
MOST_OUTLIERS = 2


@dataclass(frozen=True)
class Choices:
    """What a format is made of; each name is a key of a spec's state block, or stays in the table.

    cadence       when the state is stored: once a window of records, or at every step
    payload       grid of the codes (GRIDS)
    scale         what shares a scale, and how that is stored (SCALES)
    transform     what happens to the residual before (TRANSFORMS)
    compensators  rank-one terms taken out first
    factors       element type of their factors (FACTORS), or none: there are never any
    rounding      nearest (ties to even), or stochastic
    outliers      numbers of a channel that are kept apart in FP16; reference model only
    feedback      two-level: an INT4 code of what the INT8 code leaves; reference model only
    """

    cadence: str = "window"
    payload: str = "fp32"
    scale: str = "none"
    transform: str = "none"
    compensators: int = 0
    factors: str = "none"
    rounding: str = "nearest"
    outliers: int = 0
    feedback: str = "none"


@dataclass(frozen=True)
class Refusal:
    """Why a composition makes no sense: the choice at fault, and a sentence."""

    choice: str
    message: str


def refusals(c: Choices) -> tuple[Refusal, ...]:
    """Everything that is wrong with a composition; empty: it can be stored and restored.

    Unknown words are reported alone: nothing else can be said about them.
    """
    unknown = tuple(_unknown(c))
    if unknown:
        return unknown
    found = (_scale(c), _transform(c), _compensators(c), _rounding(c), _outliers(c), _feedback(c))
    return tuple(r for r in found if r is not None)


def check(c: Choices) -> None:
    """Errors: FormatError with every refusal."""
    found = refusals(c)
    if found:
        raise FormatError("; ".join(f"{r.choice}: {r.message}" for r in found))


def in_words(c: Choices) -> bool:
    """Whether a window of this composition can be closed with the state as words of two FP16
    numbers, which carry 11 bits: integers of at most 8, or 16 levels, with one scale a value
    channel or E4M3 scales of blocks of 32 keys, and factors that are exact operands."""
    grid, scale = GRIDS[c.payload], SCALES[c.scale]
    blocks = scale.block == 32 and scale.kind == "e4m3" and not grid.scaled_by_rms
    scaled = scale.per == "value" and (blocks or not scale.block)
    codes = isinstance(grid, Symmetric) or (grid.scaled_by_rms and grid.bits == 4)
    plain = c.rounding == "nearest" and not c.outliers and c.feedback == "none"
    return scaled and codes and plain and c.factors in ("none", "fp16", "int8")


def words() -> dict[str, tuple[str, ...]]:
    """The known words of every choice that is a word."""
    return {
        "cadence": CADENCES,
        "payload": tuple(GRIDS),
        "scale": tuple(SCALES),
        "transform": tuple(TRANSFORMS),
        "factors": ("none", *FACTORS),
        "rounding": ROUNDINGS,
        "feedback": FEEDBACKS,
    }


def _unknown(c: Choices) -> list[Refusal]:
    return [
        Refusal(name, f"unknown {name} {getattr(c, name)!r}; known: {listing(known)}")
        for name, known in words().items()
        if getattr(c, name) not in known
    ]


def _scale(c: Choices) -> Refusal | None:
    grid, scale = GRIDS[c.payload], SCALES[c.scale]
    if grid.wide and scale.per != "none":
        return Refusal("scale", f"payload {c.payload} has a range of its own: use scale none")
    if scale.per == "none" and not grid.wide and c.payload != "e4m3":
        return Refusal("scale", f"payload {c.payload} cannot do without a scale")
    if grid.scaled_by_rms and scale.kind == "e8m0":
        return Refusal("scale", f"{c.scale} rounds a largest magnitude; {c.payload} needs the RMS")
    return None


def _transform(c: Choices) -> Refusal | None:
    grid, scale, transform = GRIDS[c.payload], SCALES[c.scale], TRANSFORMS[c.transform]
    if transform.name != "none" and grid.wide:
        return Refusal("transform", f"rounding to {c.payload} is relative: there is no gain in it")
    if transform.smooths and scale.per in ("none", "key") and not grid.wide:
        return Refusal("transform", f"smoothing evens out what shares a scale; {c.scale} does not")
    return None


def _compensators(c: Choices) -> Refusal | None:
    if not 0 <= c.compensators <= MOST_COMPENSATORS:
        message = f"from 0 to {MOST_COMPENSATORS}, found {c.compensators}"
        return Refusal("compensators", message)
    if c.compensators and c.factors == "none":
        return Refusal("factors", "compensators need factors of some type")
    if c.factors != "none" and c.cadence == "step":
        return Refusal("factors", "compensators stand before records: cadence step has none")
    if c.factors != "none" and c.payload == "fp32":
        return Refusal("factors", "an FP32 state leaves nothing for compensators")
    return None


def _rounding(c: Choices) -> Refusal | None:
    if c.rounding == "stochastic" and c.payload == "fp32":
        return Refusal("rounding", "FP32 is stored as it is")
    if c.rounding == "stochastic" and isinstance(GRIDS[c.payload], Levels):
        return Refusal("rounding", "levels are rounded to the nearest only")
    return None


def _outliers(c: Choices) -> Refusal | None:
    grid = GRIDS[c.payload]
    ranged = isinstance(grid, Levels) and not grid.scaled_by_rms
    if ranged != bool(c.outliers):
        return Refusal("outliers", "go with fitted levels, and those with them")
    if not ranged:
        return None
    if not 0 < c.outliers <= MOST_OUTLIERS:
        return Refusal("outliers", f"from 1 to {MOST_OUTLIERS}, found {c.outliers}")
    if c.scale != "value" or c.transform != "none" or c.factors != "none":
        return Refusal("outliers", "are those of a value channel's own numbers: scale value alone")
    return None


def _feedback(c: Choices) -> Refusal | None:
    plain = Choices("step", "int8", "value", feedback=c.feedback)
    if c.feedback != "none" and c != plain:
        return Refusal("feedback", "goes with cadence step, payload int8 and scale value alone")
    return None
