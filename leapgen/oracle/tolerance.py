"""How far a kernel may be from a reference: bounds from format, records, window and output type.

All bounds of `bounds` are relative to the peak (largest magnitude) of the compared tensor in one
head. Parts, with eps = 2^-24 (FP32), rho the rounding of a record element, eta that of a code
(Format.noise), omega that of the output's type:

arithmetic   A = 4 L eps with L = K + R + records: a sum of L terms in any order is off by at most
             L eps times the sum of magnitudes; 4 allows for that sum being larger than the peak.
records      4 rho: key and correction are rounded (2 rho), and two sides may round a tie apart.
boundary     one flush leaves each element of the residual within half a step of the truth. Without
             smoothing that is eta times the peak of its column. With it, the step of (i, j) is
             c_i max_l(|R_lj| / c_l), at most sqrt(V) times the residual's peak, and below STRETCH
             times the state's peak on anything but built examples, since compensators take the
             peaks out first. Rotated back, errors of a channel are sums of independent ones, and a
             rotated channel's peak is not the state's: CREST for both. f flushes add up like a
             random walk: min(f, 2.4 sqrt(f)), that is four standard deviations of a sum of f
             uniform errors.
reads        an output or a correction is a sum over K channels whose errors are independent: its
             error over its peak is the boundary's error over the state's RMS, hence CREST times it.
output       omega, once.
walked       where the two sides have gone their own ways for some tokens, the rounding of earlier
             records is an error of the state too, and reads meet it as they meet the boundary's: a
             query that nearly cancels the state's channels (keys that are 1 - decay are all
             positive) leaves a small output, but not the errors, which differ by channel. So it is
             of a reference that rounds no records, whoever computes the other side.

peak         of the state when it was rounded. Tokens erase what they read of it, so who compares a
             state that has shrunk since stretches its bound by as much (report/trial.py).

Where both sides hold the same slot, no flush separates them: flushes = 0 leaves FP32 noise, which
finds wrong indices that looser bounds would pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.base import F32, Codes, Format
from leapgen.formats.composed import Composed
from leapgen.oracle import rounding
from leapgen.spec.expression import READ, REDUCTIONS, Call, names, walk
from leapgen.spec.model import Spec

STRETCH = 2.0
"""Step of an element over 2 eta times the state's peak, with smoothing."""
CREST = 6.0
"""Peak of a state over its RMS that the bounds allow for."""


def bounds(
    format: Format,
    records: str,
    window: int,
    output: str,
    *,
    K: int = 128,
    compensators: int | None = None,
    substeps: int = 1,
    flushes: int = 0,
    walked: bool = False,
    combined: int = 1,
    tighter: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Bounds for `output`, `correction` and `state`, relative to the peak of each in one head.

    records    element type of record keys and corrections
    window     tokens of a window
    output     element type of the output; `fp32` where it is compared before rounding
    substeps   records that a token appends
    flushes    boundary roundings since the two sides held the same state (load_state is one)
    walked     the two sides have not held the same records since then
    combined   numbers with errors of their own that an output combines; see combined_in
    tighter    a spec's own bounds; a larger one than the derived is ignored
    """
    R = format.compensators if compensators is None else compensators
    arithmetic = 4 * (K + R + substeps * window) * elements.ROUNDING["fp32"]
    rounding = 4 * elements.ROUNDING[records]
    stretch = STRETCH if format.key_scale else 1.0
    if isinstance(format, Composed) and format.transform.name == "rotation":
        stretch = CREST
    boundary = format.noise() * stretch * min(float(flushes), 2.4 * flushes**0.5)
    state = boundary + (rounding if walked else 0.0)
    derived = {
        "output": combined * (arithmetic + rounding + CREST * state) + elements.ROUNDING[output],
        "correction": arithmetic + rounding + CREST * state,
        "state": arithmetic + rounding + boundary,
    }
    return {name: min(value, (tighter or {}).get(name, value)) for name, value in derived.items()}


def combined_in(spec: Spec) -> int:
    """One for what the query reads, and one for each sum that the output's formula takes of it: a
    quotient is off by as much as both of its sides are."""
    result = spec.output.result
    if result is None:
        return 1
    sums = (n for n in walk(result.node) if isinstance(n, Call) and n.function in REDUCTIONS)
    return 1 + sum(READ in names(n) for n in sums)


def half_steps(format: Format, codes: Codes) -> F32:
    """Elementwise bound [..., K, V] of the rounding of these codes: no estimate, always true.

    A kernel's own slot after a flush must stand for its own state before it within this, plus
    arithmetic.
    """
    if isinstance(format, Composed):
        return rounding.half_steps(format, codes)
    if codes.value_scale is None:
        return (format.noise() * np.abs(format.decode(codes))).astype(np.float32)
    half = np.float32(0.5) * codes.value_scale[..., None, :]
    out: F32 = half if codes.key_scale is None else half * codes.key_scale[..., :, None]
    return out


SMALLEST = {"fp16": 2.0**-24}
"""Distance of an element type's numbers near zero, where it is not far below all that is compared:
what is stored there is off by as much, however small it is itself."""


def distance(
    found: npt.NDArray[Any], expected: npt.NDArray[Any], axes: int = 1, floor: float = 0.0
) -> Any:
    """Largest difference over the largest magnitude expected, over the last `axes` axes.

    0 where both are zero, or no further apart than `floor`; infinite where something found is not
    finite.
    """
    over = tuple(range(-axes, 0))
    wide = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.abs(wide[0] - wide[1])
    gap = np.where(gap <= floor, 0.0, gap)
    worst = np.where(np.isfinite(gap), gap, np.inf).max(axis=over)
    peak = np.abs(wide[1]).max(axis=over)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(worst == 0, 0.0, worst / peak)
