"""Input streams shaped like those of a trained layer, for any spec: seeded, NumPy only.

Every raw input is a projection of one latent that mixes a slow topic and a fast token part. What
becomes a key, a read vector or a query is SiLU(projection + bias) times channel gains, so that keys
share a positive mean direction, and projections share most of their weights, so that queries hit
what was written; values have a few channels far larger than the rest. What becomes a decay is then
shifted head by head until the mean log decay is that of slow to fast heads. The role of an input
follows from the formulas that it reaches, never from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.oracle.evaluate import definitions, evaluate
from leapgen.oracle.roles import Role, reaching, roles
from leapgen.spec.model import Formula, Input, Spec
from leapgen.tensors import Axis, Per

F64 = npt.NDArray[np.float64]

DECAYS = (3e-5, 5e-4, 5e-3, 5e-2)
"""Mean natural-log decay of a token in a typical channel, slow to fast (cycled over the heads)."""


@dataclass(frozen=True)
class Regime:
    """How uneven the inputs are.

    bias      size of the shared (mean) direction against the token-dependent part
    key       sigma of the log-normal gains of key channels
    value     the same of value channels
    outliers  value channels that are larger, and by how much
    latent    dimensions of the latent
    power     exponent of the power law by which values depend on the latent
    noise     part of the values that the latent does not explain
    spread    sigma of the log-normal rates of key channels within a head, for vector decays
    """

    bias: float = 1.0
    key: float = 0.8
    value: float = 0.6
    outliers: tuple[int, float] = (3, 10.0)
    latent: int = 64
    power: float = 0.7
    noise: float = 0.25
    spread: float = 1.5


PAPER = Regime()
"""Spectrum and outliers of the states that LeapQuant reports (figure 6)."""


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


def stream(
    spec: Spec, tokens: int, heads: Heads, seed: int = 0, regime: Regime = PAPER
) -> dict[str, npt.NDArray[np.float32]]:
    """Raw inputs of a spec: [tokens, heads, axis], constants without the first axis.

    Values are what the declared element type can hold, as FP32.
    Errors: ValueError, where no shift of the decay's inputs brings it near its target.
    """
    generator = _Generator(spec, heads, regime, np.random.default_rng(seed), tokens)
    drawn = {x.name: generator.draw(x) for x in spec.inputs}
    drawn = calibrate(spec, drawn, heads)
    return {x.name: _as_declared(x, drawn[x.name]) for x in spec.inputs}


MOST_NORM = 1.01
"""Length of a key up to which it counts as normalised (BF16 inputs are, to within that)."""


def _as_declared(x: Input, drawn: F64) -> npt.NDArray[np.float32]:
    stored = elements.encode(x.dtype, drawn.astype(np.float32))
    return elements.decode(x.dtype, stored)


class _Generator:
    """Draws one input after the other from the same latent."""

    def __init__(
        self, spec: Spec, heads: Heads, regime: Regime, rng: np.random.Generator, tokens: int
    ) -> None:
        self.heads, self.regime, self.rng, self.tokens = heads, regime, rng, tokens
        self.roles = roles(spec)
        n = regime.latent
        self.latent = 0.8 * rng.standard_normal((tokens, n)) + 0.6 * self._topic(n)
        self.shared = rng.standard_normal((heads.HV, n, heads.K)) / np.sqrt(n)
        self.mean = rng.standard_normal((heads.HV, heads.K))
        self.gain = np.exp(regime.key * rng.standard_normal((heads.HV, heads.K)))

    def _topic(self, n: int, memory: float = 0.99) -> F64:
        """A first-order autoregressive process of unit variance."""
        noise = self.rng.standard_normal((self.tokens, n)) * np.sqrt(1 - memory * memory)
        topic = np.empty((self.tokens, n))
        state = self.rng.standard_normal(n)
        for t in range(self.tokens):
            state = memory * state + noise[t]
            topic[t] = state
        return topic

    def draw(self, x: Input) -> F64:
        """One input: [tokens, heads, axis], or without tokens for a constant."""
        role = self.roles[x.name]
        if x.constant and role is not Role.DECAY:  # a scale or a share
            return 1.0 + 0.25 * self.rng.standard_normal(self.heads.of(x))
        if x.constant:
            size = self.regime.spread if x.axis is Axis.KEY else 0.0
            return size * self.rng.standard_normal(self.heads.of(x))
        if role is Role.VECTOR and x.axis is Axis.KEY:
            return self._vector(self.heads.of(x)[0])
        if role is Role.VALUE and x.axis is Axis.VALUE:
            return self._value(self.heads.of(x)[0])
        return self._gate(x, role)

    def _vector(self, heads: int) -> F64:
        """Keys, queries and the like; all share most of their projection and mean."""
        n, K = self.regime.latent, self.heads.K
        own = self.rng.standard_normal((heads, n, K)) / np.sqrt(n)
        weight = 0.9 * self.shared[:heads] + 0.44 * own
        mean = 0.85 * self.mean[:heads] + 0.53 * self.rng.standard_normal((heads, K))
        x = np.einsum("tn,hnk->thk", self.latent, weight, optimize=True) + self.regime.bias * mean
        out: F64 = _silu(x * self.gain[:heads])
        return out

    def _value(self, heads: int) -> F64:
        r, n, V = self.regime, self.regime.latent, self.heads.V
        gain = np.exp(r.value * self.rng.standard_normal((heads, V)))
        count, factor = r.outliers
        for h in range(heads):
            gain[h, self.rng.permutation(V)[:count]] *= factor
        law = (1.0 + np.arange(n)) ** -r.power
        weight = self.rng.standard_normal((heads, n, V)) * (law / np.linalg.norm(law))[:, None]
        x = np.einsum("tn,hnv->thv", self.latent, weight, optimize=True)
        x += r.bias * self.rng.standard_normal((heads, V))
        out: F64 = _silu(x + r.noise * self.rng.standard_normal(x.shape)) * gain
        return out

    def _gate(self, x: Input, role: Role) -> F64:
        """Scalars and gates: 1.5 standard deviations of the latent around a bias of each head."""
        heads, *axis = self.heads.of(x)
        n = self.regime.latent
        weight = self.rng.standard_normal((heads, n, *axis)) * 1.5 / np.sqrt(n)
        gate = np.tensordot(self.latent, weight, axes=(1, 1))
        if role is not Role.DECAY:
            gate = gate + self.rng.standard_normal((heads, *([1] * len(axis))))
        return gate


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


# ---- decays and gains: bring what the formulas make of the draws into their range

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
    if not knobs or not _logs(spec, _sample(spec, out), heads):
        return out
    tries = [(x, *_fit_knob(spec, out, x, heads)) for x in sorted(knobs, key=_constant_first)]
    # Several may do; a miss of a tenth is as good as none, and the first is then the plainest.
    x, shift, scales, miss = min(tries, key=lambda t: max(0.1, float(np.max(t[3]))))
    if float(np.max(miss)) > 1.0:
        raise ValueError(f"no shift of {x.name} brings the log decay of {spec.name} near DECAYS")
    out[x.name] = _moved(x, out[x.name], shift, scales)
    return out


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
    return np.mean(log, axis=0) if np.ndim(log) > 2 else np.asarray(log)


def _in_range(values: list[Any], top: float) -> bool:
    return all(np.min(v) >= 0 and np.max(v) <= top for v in values)


def _largest(values: list[Any]) -> float:
    return max((float(np.max(v)) for v in values), default=-1.0)


def _moved(x: Input, drawn: F64, shift: F64, multiply: bool) -> F64:
    """The draw with every head's knob turned: shifted, or multiplied by its exponential."""
    knob = shift.reshape(-1, *([1] * (x.axis is not Axis.SCALAR)))
    return drawn * np.exp(knob) if multiply else drawn + knob


def _fit_knob(
    spec: Spec, drawn: Mapping[str, F64], x: Input, heads: Heads
) -> tuple[F64, bool, F64]:
    """(shift a head, whether it multiplies, miss a head in natural logs) by bisection.

    A draw whose formula needs it negative is multiplied, all others are shifted.
    """
    inputs = _sample(spec, drawn)
    multiply = not x.constant and float(np.max(drawn[x.name])) <= 0
    count = heads.of(x)[0]
    group = heads.HV // count
    target = np.log(np.resize(DECAYS, heads.HV))[::group]

    def reached(shift: F64) -> F64:
        moved = {**inputs, x.name: _moved(x, inputs[x.name], shift, multiply)}
        total = -sum(_over_tokens(v) for v in _logs(spec, moved, heads))
        typical: F64 = np.log(np.maximum(total, 1e-300)).mean(axis=-1)
        return np.broadcast_to(typical, (heads.HV,))[::group]

    low, high = np.full(count, -25.0), np.full(count, 25.0)
    rising = reached(high) > reached(low)
    for _ in range(50):
        middle = (low + high) / 2
        above = (reached(middle) > target) == rising
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low, multiply, np.abs(reached(low) - target)
