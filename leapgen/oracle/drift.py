"""How far a stored state drifts from the exact one over many tokens, against simpler storages.

The same tokens are given to every method (teacher forcing), so ratios between methods are what to
read, not a model's accuracy. Methods differ in what is stored and how often; between two stores the
state is advanced in FP32 with records rounded as the kernels round them, which equals a windowed
read to FP32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.base import F32, Format
from leapgen.formats.philox import uniforms
from leapgen.oracle.evaluate import Array, definitions
from leapgen.oracle.stepwise import Token, read, token_of
from leapgen.oracle.streams import Heads, stream
from leapgen.spec.model import Spec

EVERY = 256
"""Tokens between two comparisons of the state."""


@dataclass(frozen=True)
class Method:
    """One way of keeping the state: `format` applied every `window` tokens.

    records      element type of keys and corrections between two stores; fp32 rounds nothing
    independent  every element's rounding error gets a sign of its own, by chance: as large as the
                 format's, and without any relation between elements or stores
    """

    name: str
    format: Format
    window: int
    records: str
    compensators: int
    independent: bool = False


@dataclass(frozen=True)
class Line:
    """Errors of one method: squared error over squared magnitude, one entry a value head.

    state   over the states of the last half of the tokens (every EVERY-th)
    output  over the outputs of the last half
    """

    method: Method
    state: tuple[float, ...]
    output: tuple[float, ...]

    @property
    def state_mean(self) -> float:
        """Geometric mean over heads."""
        return _mean(self.state)

    @property
    def output_mean(self) -> float:
        """Geometric mean over heads."""
        return _mean(self.output)


@dataclass(frozen=True)
class Drift:
    """Errors of all methods on one stream."""

    spec: str
    tokens: int
    lines: tuple[Line, ...]

    def line(self, name: str) -> Line:
        """The line of a method's name."""
        return next(x for x in self.lines if x.method.name == name)

    def ratio(self, worse: str, better: str) -> float:
        """How many times lower the state error of `better` is than that of `worse`."""
        return self.line(worse).state_mean / self.line(better).state_mean

    def text(self) -> str:
        """A table for people."""
        head = f"{self.spec}, {self.tokens} tokens: squared error over squared size (mean of heads)"
        rows = (
            f"  {x.method.name:<12} state {x.state_mean:.2e}  output {x.output_mean:.2e}"
            for x in self.lines
        )
        return "\n".join((head, *rows)) + "\n"


def standard_methods(spec: Spec, format: Format) -> tuple[Method, ...]:
    """Four ways: codes alone after every token, codes alone once a window, the same with errors
    that are independent of one another, and the whole method.

    format   the spec's row with its choices applied; one that stores at every step is the whole
             method, and there are no others
    """
    plain = format.with_state("none", 0) if format.key_scale else format
    window, records = spec.state.window, spec.state.records
    per_step = Method("per step", plain, 1, "fp32", 0)
    if not format.windowed:
        return (per_step,)
    return (
        per_step,
        Method("per window", plain, window, records, 0),
        Method("independent", plain, window, records, 0, independent=True),
        Method("full", format, window, records, format.compensators),
    )


def drift(
    spec: Spec,
    methods: tuple[Method, ...],
    tokens: int = 4096,
    heads: Heads | None = None,
    seed: int = 0,
) -> Drift:
    """Drift of every method on one stream of tokens.

    heads   8 key and value heads of the spec's dimensions, unless told otherwise
    Errors: ValueError, for fewer tokens than two comparisons.
    """
    if tokens < 2 * EVERY:
        raise ValueError(f"at least {2 * EVERY} tokens, found {tokens}")
    heads = heads or Heads(8, 8, spec.K, spec.V)
    inputs = stream(spec, tokens, heads, seed)
    exact = _tokens(spec, inputs, heads, np.float64)
    rounded = _tokens(spec, inputs, heads, np.float32)
    size = (heads.HV, heads.K, heads.V)
    truth = Direct(size, np.float64, spec, "fp32")
    states = [Direct(size, np.float32, spec, m.records) for m in methods]
    stores = [_Store(m, heads) for m in methods]
    meters = [_Meter(heads.HV) for _ in methods]
    for t in range(tokens):
        output, token = truth.advance(exact.at(t)), rounded.at(t)
        for i, (m, state) in enumerate(zip(methods, states, strict=True)):
            out = state.advance(token)
            if (t + 1) % m.window == 0:
                state.S = stores[i](state.S)
            if t >= tokens // 2:
                meters[i].output(out, output)
                if (t + 1) % EVERY == 0:
                    meters[i].state(state.S, truth.S)
    lines = (m.line(method) for m, method in zip(meters, methods, strict=True))
    return Drift(spec.name, tokens, tuple(lines))


class _Store:
    """What a slot keeps from one store of its state to the next: factors, and a count for draws."""

    def __init__(self, method: Method, heads: Heads) -> None:
        self.format, self.count, self.heads = method.format, 0, np.arange(heads.HV)
        self.signs = np.random.default_rng(0) if method.independent else None
        self.old = self.format.no_factors(heads.HV, method.compensators, heads.V)

    def __call__(self, S: F32) -> F32:
        """The state as it comes back from storage."""
        draws = None
        if self.format.stochastic:
            counts = np.full(len(self.heads), self.count)
            draws = uniforms(counts, self.heads, S.shape[-2], S.shape[-1])
        stored = self.format.store(S, self.old, draws)
        self.old, self.count = stored.comp_u, self.count + 1
        back = self.format.restore(stored)
        if self.signs is None:
            return back
        signs: F32 = self.signs.choice(np.array([-1, 1], np.float32), S.shape)
        return S + (back - S) * signs


def _tokens(spec: Spec, inputs: Mapping[str, Array], heads: Heads, dtype: Any) -> Token:
    return token_of(spec, definitions(spec, inputs, heads.HV, dtype))


class Direct:
    """A state [HV, K, V] that is advanced in place, with records rounded: no window, no codes.

    In place, since new arrays of this size cost more than the sums that fill them.
    """

    def __init__(self, size: tuple[int, ...], dtype: Any, spec: Spec, records: str) -> None:
        self.S, self.scratch = np.zeros(size, dtype), np.empty(size, dtype)
        self.spec, self.records = spec, records

    def advance(self, token: Token) -> Any:
        """One token; returns its output [HV, V].

        The token's own records enter its later reads and its output unrounded, as in the kernels.
        """
        own: list[tuple[Any, Any, Any]] = []  # key, key as rounded, correction
        previous = self.spec.output.of == "previous"
        out = self._read(token.query, own) if previous else None
        for s in token.substeps:
            y = None if s.read is None or s.decayed else self._read(s.read, own)
            if s.log is not None:
                decay = np.exp(s.log)
                self.S *= decay[..., None]
                own = [(key * decay, rounded * decay, u) for key, rounded, u in own]
            if s.read is not None and s.decayed:
                y = self._read(s.read, own)
            u = s.gain * ((0.0 if s.value is None else s.value) - (0.0 if y is None else y))
            u = np.broadcast_to(u, (*self.S.shape[:-2], self.S.shape[-1]))
            own.append((s.key, self._rounded(s.key), u))
        out = self._read(token.query, own) if out is None else out
        for _, key, u in own:
            np.multiply(key[..., None], self._rounded(u)[..., None, :], out=self.scratch)
            self.S += self.scratch
        return token.output(out)

    def _read(self, x: Any, own: list[tuple[Any, Any, Any]]) -> Any:
        y = read(self.S, x)
        return sum(((key * x).sum(axis=-1, keepdims=True) * u for key, _, u in own), start=y)

    def _rounded(self, x: Any) -> Any:
        if self.records == "fp32":
            return x
        return elements.decode(self.records, elements.encode(self.records, x))


class _Meter:
    """Sums of squared errors and magnitudes, a head."""

    def __init__(self, heads: int) -> None:
        self.sums = np.zeros((2, 2, heads))

    def state(self, found: F32, exact: npt.NDArray[np.float64]) -> None:
        self.sums[0] += _squares(found, exact, (-2, -1))

    def output(self, found: F32, exact: npt.NDArray[np.float64]) -> None:
        self.sums[1] += _squares(found, exact, (-1,))

    def line(self, method: Method) -> Line:
        (state, size), (output, power) = self.sums
        return Line(method, tuple(state / size), tuple(output / power))


def _squares(found: Any, exact: Any, axes: tuple[int, ...]) -> Any:
    return np.stack([((found - exact) ** 2).sum(axis=axes), (exact**2).sum(axis=axes)])


def _mean(values: tuple[float, ...]) -> float:
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.log(np.asarray(values, np.float64)))))
