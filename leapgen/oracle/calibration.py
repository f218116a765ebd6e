"""Draws of raw inputs moved until what the formulas make of them lies where trained layers have it.

Keys have unit length, step sizes lie in [0, 2], and the mean log decay of a token is that of slow
to fast heads. Which inputs are moved follows from the formulas that they reach, never from names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.oracle.evaluate import definitions, evaluate
from leapgen.oracle.roles import Role, reaching, roles
from leapgen.spec.model import Formula, Input, Spec, SubStep
from leapgen.tensors import Axis, Per

F64 = npt.NDArray[np.float64]

DECAYS = (3e-5, 5e-4, 5e-3, 5e-2)
"""Mean natural-log decay of a token in a typical channel, slow to fast (cycled over the heads)."""


@dataclass(frozen=True)
class Heads:
    """Heads and dimensions of a stream."""

    H: int
    HV: int
    K: int
    V: int

    def of(self, x: Input) -> tuple[int, ...]:
        """Shape of one token of an input: heads, and the axis if it has one."""
        heads = self.H if x.per is Per.KEY else self.HV
        sizes = {Axis.SCALAR: (), Axis.KEY: (self.K,), Axis.VALUE: (self.V,)}
        return (heads, *sizes[x.axis])


MOST_NORM = 1.01
"""Length of a key up to which it counts as normalised (BF16 inputs are, to within that)."""


SAMPLE = 128
"""Tokens that a calibration looks at."""


def calibrate(spec: Spec, drawn: Mapping[str, F64], heads: Heads) -> dict[str, F64]:
    """Draws changed until keys have unit length where the spec does not see to it, step sizes lie
    in [0, 2] and decays have the means of DECAYS."""
    out = _tied(spec, drawn, heads)
    kind = roles(spec)
    if not _in_range(_key_norms(spec, _sample(spec, out), heads), MOST_NORM):
        for x in spec.inputs:  # a correction of a longer key overshoots, and the state runs away
            if kind[x.name] is Role.VECTOR and x.axis is Axis.KEY and not x.constant:
                out[x.name] = out[x.name] / np.linalg.norm(out[x.name], axis=-1, keepdims=True)
    for x in spec.inputs:  # what arrives activated: a step size, a log decay
        if kind[x.name] is Role.GAIN and not _in_range(_gains(spec, _sample(spec, out), heads), 2):
            out[x.name] = 1 / (1 + np.exp(-out[x.name]))
        if kind[x.name] is Role.DECAY and _largest(_logs(spec, _sample(spec, out), heads)) > 0:
            out[x.name] = -np.log1p(np.exp(out[x.name]))
    knobs = [x for x in spec.inputs if kind[x.name] is Role.DECAY]
    steps = [s for s in spec.substeps if s.decay.log is not None]
    if not knobs or not steps:
        return out
    turned = _turned(spec, out, knobs, heads, steps)
    if turned is None:  # one knob does not reach every sub-step: each gets its share by its own
        turned = out
        for step in steps:
            own = [x for x in knobs if x.name in reaching(spec, [step.decay.log])]
            shared = _turned(spec, turned, own, heads, [step], 1 / len(steps))
            turned = turned if shared is None else shared
    # A sub-step of key heads cannot give each value head its share.
    if _miss(spec, turned, heads, knobs) > 1.0 + np.log(len(steps)):
        names = ", ".join(x.name for x in knobs)
        raise ValueError(f"no shift of {names} brings the log decay of {spec.name} near DECAYS")
    return turned


def _turned(
    spec: Spec,
    drawn: dict[str, F64],
    knobs: list[Input],
    heads: Heads,
    steps: list[SubStep],
    share: float = 1.0,
) -> dict[str, F64] | None:
    """Draws with the knob turned that brings the decay of these sub-steps to its share of DECAYS;
    None where none does."""
    tries = [
        (x, *_fit_knob(spec, drawn, x, heads, steps, share))
        for x in sorted(knobs, key=_constant_first)
    ]
    # Several may do; a miss of a tenth is as good as none, and the first is then the plainest.
    x, shift, scales, miss = min(tries, key=lambda t: max(0.1, float(np.max(t[3]))))
    if float(np.max(miss)) > 1.0:
        return None
    return {**drawn, x.name: _moved(x, drawn[x.name], shift, scales)}


def _tied(spec: Spec, drawn: Mapping[str, F64], heads: Heads) -> dict[str, F64]:
    """Draws in which a sub-step reads along what it writes, with the sign that shrinks the state.

    Where two inputs of their own make a sub-step's key and its read vector, a model that works
    gives them nearly one direction: independent ones let the state grow without end.
    """
    out = dict(drawn)
    for step in spec.substeps:
        sides = [_vectors(spec, f) for f in (step.key, step.read)]
        own = [sorted(side - other) for side, other in zip(sides, sides[::-1], strict=True)]
        if not (own[0] and own[1]):
            continue
        key, read = own[0][0], own[1][0]
        out[read] = _per_head(out[key], heads.of(spec.input(read))[0])
        scope = definitions(spec, _sample(spec, out), heads.HV, np.float64)
        vectors = [evaluate(f.node, scope) for f in (step.key, step.read) if f is not None]
        along = float(np.mean((vectors[0] * vectors[-1]).sum(axis=-1)))
        out[read] = out[read] * np.sign(along)
    return out


def _vectors(spec: Spec, formula: Formula | None) -> set[str]:
    """Inputs over the key channels that a formula depends on, constants left out."""
    found = [spec.input(name) for name in reaching(spec, [formula])]
    return {x.name for x in found if x.axis is Axis.KEY and not x.constant}


def _per_head(x: F64, count: int) -> F64:
    """[tokens, heads, K] for another number of heads: repeated, or the first of each group."""
    have = x.shape[1]
    return np.repeat(x, count // have, axis=1) if count >= have else x[:, :: have // count]


def _constant_first(x: Input) -> tuple[bool, bool]:
    return (not x.constant, x.axis is not Axis.SCALAR)


def _sample(spec: Spec, drawn: Mapping[str, F64]) -> dict[str, F64]:
    """Tokens spread over the whole stream: the topic is slow."""
    out = {}
    for x in spec.inputs:
        stride = 1 if x.constant else max(1, len(drawn[x.name]) // SAMPLE)
        out[x.name] = drawn[x.name][::stride]
    return out


def _key_norms(spec: Spec, inputs: Mapping[str, F64], heads: Heads) -> list[Any]:
    scope = definitions(spec, inputs, heads.HV, np.float64)
    keys = (evaluate(s.key.node, scope) for s in spec.substeps if s.read is not None)
    return [np.linalg.norm(key, axis=-1) for key in keys]


def _gains(spec: Spec, inputs: Mapping[str, F64], heads: Heads) -> list[Any]:
    scope = definitions(spec, inputs, heads.HV, np.float64)
    return [evaluate(s.gain.node, scope) for s in spec.substeps if s.gain is not None]


def _logs(spec: Spec, inputs: Mapping[str, F64], heads: Heads) -> list[Any]:
    scope = definitions(spec, inputs, heads.HV, np.float64)
    return [evaluate(s.decay.log.node, scope) for s in spec.substeps if s.decay.log is not None]


def _over_tokens(log: Any) -> Any:
    """Mean over the tokens; a log decay of constants alone has none."""
    log = np.atleast_2d(log)  # a number has no heads either
    return np.mean(log, axis=0) if log.ndim > 2 else log


def _in_range(values: list[Any], top: float) -> bool:
    return all(np.min(v) >= 0 and np.max(v) <= top for v in values)


def _largest(values: list[Any]) -> float:
    return max((float(np.max(v)) for v in values), default=-1.0)


def _moved(x: Input, drawn: F64, shift: F64, multiply: bool) -> F64:
    """The draw with every head's knob turned: shifted, or multiplied by its exponential."""
    knob = shift.reshape(-1, *([1] * (x.axis is not Axis.SCALAR)))
    return drawn * np.exp(knob) if multiply else drawn + knob


def _fit_knob(
    spec: Spec,
    drawn: Mapping[str, F64],
    x: Input,
    heads: Heads,
    steps: list[SubStep],
    share: float = 1.0,
) -> tuple[F64, bool, F64]:
    """(shift a head, whether it multiplies, miss a head in natural logs) by bisection.

    A draw whose formula needs it negative is multiplied, all others are shifted.
    """
    inputs = _sample(spec, drawn)
    multiply = not x.constant and float(np.max(drawn[x.name])) <= 0
    count = heads.of(x)[0]
    target = np.log(share * np.resize(DECAYS, heads.HV))[:: heads.HV // count]

    def reached(shift: F64) -> F64:
        moved = {**inputs, x.name: _moved(x, inputs[x.name], shift, multiply)}
        return _typical(spec, moved, heads, steps)[:: heads.HV // count]

    low, high = np.full(count, -25.0), np.full(count, 25.0)
    rising = reached(high) > reached(low)
    for _ in range(50):
        middle = (low + high) / 2
        above = (reached(middle) > target) == rising
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low, multiply, np.abs(reached(low) - target)


def _typical(spec: Spec, inputs: Mapping[str, F64], heads: Heads, steps: list[SubStep]) -> F64:
    """[HV] log of the mean decay a token that these sub-steps have in a typical channel."""
    scope = definitions(spec, inputs, heads.HV, np.float64)
    logs = (evaluate(s.decay.log.node, scope) for s in steps if s.decay.log is not None)
    total = -sum(_over_tokens(v) for v in logs)
    typical: F64 = np.log(np.maximum(total, 1e-300)).mean(axis=-1)
    return np.broadcast_to(typical, (heads.HV,))


def _miss(spec: Spec, drawn: Mapping[str, F64], heads: Heads, knobs: list[Input]) -> float:
    """How far the decay of a token is from DECAYS, in natural logs, in the worst head. Where all
    knobs are of key heads, only the first value head of each can be right."""
    steps = [s for s in spec.substeps if s.decay.log is not None]
    group = heads.HV // max(heads.of(x)[0] for x in knobs)
    found = _typical(spec, _sample(spec, drawn), heads, steps)
    return float(np.abs(found - np.log(np.resize(DECAYS, heads.HV)))[::group].max())
