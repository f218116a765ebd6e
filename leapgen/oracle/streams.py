"""Input streams shaped like those of a trained layer, for any spec: seeded, NumPy only.

Every raw input is a projection of one latent that mixes a slow topic and a fast token part. What
becomes a key, a read vector or a query is SiLU(projection + bias) times channel gains, so that keys
share a positive mean direction, and projections share most of their weights, so that queries hit
what was written; values have a few channels far larger than the rest. What becomes a decay is then
shifted head by head until the mean log decay is that of slow to fast heads (see
calibration). The role of an input follows from the formulas that it reaches, never from its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.oracle.calibration import DECAYS, F64, Heads, calibrate
from leapgen.oracle.roles import Role, roles
from leapgen.spec.model import Input, Spec
from leapgen.tensors import Axis

__all__ = ["DECAYS", "PAPER", "Heads", "Regime", "calibrate", "stream"]


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
        group = np.arange(heads) // (heads // self.heads.H)  # a value head's is its key head's
        own = self.rng.standard_normal((heads, n, K)) / np.sqrt(n)
        weight = 0.9 * self.shared[group] + 0.44 * own
        mean = 0.85 * self.mean[group] + 0.53 * self.rng.standard_normal((heads, K))
        x = np.einsum("tn,hnk->thk", self.latent, weight, optimize=True) + self.regime.bias * mean
        out: F64 = _silu(x * self.gain[group])
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
