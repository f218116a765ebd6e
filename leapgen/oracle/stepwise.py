"""The float64 reference: one token of a spec exactly as the spec states it.

It reads the parsed spec and nothing of the algebra, so that a fault there cannot hide here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leapgen.oracle.evaluate import Array, definitions, evaluate, value_heads
from leapgen.spec.expression import READ, names
from leapgen.spec.model import Formula, Spec


@dataclass(frozen=True)
class SubStepValues:
    """Coefficients of one sub-step, each [..., HV, n].

    log      natural log decay, n = 1 or K (None: no decay)
    key      n = K
    read     n = K (None: reads nothing)
    decayed  whether the read sees the state after this sub-step's decay
    value    n = V (None: zero)
    gain     n = 1 or V
    """

    log: Array | None
    key: Array
    read: Array | None
    decayed: bool
    value: Array | None
    gain: Array | float


@dataclass(frozen=True)
class Token:
    """Coefficients of one token, or of many along the leading axes."""

    substeps: tuple[SubStepValues, ...]
    query: Array
    add: Array | None
    result: Formula | None = None
    names: Mapping[str, Any] = field(default_factory=dict)  # what `result` uses beside `o`

    def output(self, read: Array) -> Array:
        """The output [..., HV, V] from what the query reads."""
        o = read if self.add is None else read + self.add
        if self.result is None:
            return o
        return np.asarray(evaluate(self.result.node, {**self.names, READ: o}))

    def at(self, index: Any) -> Token:
        """One entry of the leading axis (constants have none and stay)."""
        steps = tuple(
            SubStepValues(
                _at(s.log, index),
                _at(s.key, index),
                _at(s.read, index),
                s.decayed,
                _at(s.value, index),
                _at(s.gain, index),
            )
            for s in self.substeps
        )
        values = {name: _at(x, index) for name, x in self.names.items()}
        return Token(steps, _at(self.query, index), _at(self.add, index), self.result, values)


def _at(x: Any, index: Any) -> Any:
    return x[index] if isinstance(x, np.ndarray) and x.ndim > 2 else x


@dataclass(frozen=True)
class Stepwise:
    """Interprets a spec token by token in float64."""

    spec: Spec

    def coefficients(self, inputs: Mapping[str, Array], HV: int | None = None) -> dict[str, Any]:
        """Every name after the `let` block, each [..., HV, n] with n = 1, K or V.

        HV   value heads; those of the inputs when absent, which then must have some
        """
        heads = value_heads(self.spec, inputs) if HV is None else HV
        return definitions(self.spec, inputs, heads, np.float64)

    def token(self, inputs: Mapping[str, Array], HV: int | None = None) -> Token:
        """Coefficients of the sub-steps and of the output."""
        return token_of(self.spec, self.coefficients(inputs, HV))

    def step(self, S: Array, inputs: Mapping[str, Array]) -> tuple[Array, Array, list[Array]]:
        """One token: state [..., HV, K, V] to (state, output [..., HV, V], corrections).

        inputs   as the spec declares them, [..., heads, axis] or [..., heads]
        """
        return self.advance(np.asarray(S, np.float64), self.token(inputs, S.shape[-3]))

    def advance(self, S: Array, token: Token) -> tuple[Array, Array, list[Array]]:
        """The same from ready coefficients."""
        after, us = S, []
        for after, u in _substeps(S, token):  # noqa: B007 the last one is wanted
            us.append(u)
        o = read(S if self.spec.output.of == "previous" else after, token.query)
        return after, token.output(o), us

    def peak(self, S: Array, inputs: Mapping[str, Array]) -> Array:
        """Largest magnitude [..., HV] that an element of the state has after any sub-step of a
        token: one may erase what another writes. Arguments as of `step`."""
        token = self.token(inputs, S.shape[-3])
        states = [after for after, _ in _substeps(np.asarray(S, np.float64), token)]
        found: Array = np.abs(np.stack(states)).max(axis=(0, -2, -1))
        return found

    def kept(self, inputs: Mapping[str, Array], HV: int) -> Array:
        """Largest share [..., HV] of a channel of the state that a token's decays leave."""
        logs = [s.log for s in self.token(inputs, HV).substeps if s.log is not None]
        found: Array = np.exp(sum((x.max(axis=-1) for x in logs), np.zeros(HV)))
        return found


def read(S: Array, x: Array) -> Array:
    """S^T x for [..., K, V] and [..., K]."""
    out: Array = (x[..., None, :] @ S)[..., 0, :]
    return out


def _substeps(S: Array, token: Token) -> Iterator[tuple[Array, Array]]:
    """(state, correction) after each sub-step."""
    for s in token.substeps:
        decayed = S if s.log is None else S * np.exp(s.log)[..., None]
        u = _correction(s, decayed if s.decayed else S)
        S = decayed + s.key[..., None] * u[..., None, :]
        yield S, u


def _correction(s: SubStepValues, S: Array) -> Array:
    V = S.shape[-1]
    y = np.zeros((*S.shape[:-2], V), S.dtype) if s.read is None else read(S, s.read)
    u: Array = s.gain * ((0 if s.value is None else s.value) - y)
    return u


def token_of(spec: Spec, scope: Mapping[str, Any]) -> Token:
    """Coefficients of a token from evaluated names; key, read, query are widened to K channels."""
    K, V = int(scope["K"]), int(scope["V"])

    def get(formula: Formula | None, n: int | None = None) -> Any:
        if formula is None:
            return None
        x = np.asarray(evaluate(formula.node, scope))
        x = x.reshape(*x.shape, 1, 1) if x.ndim == 0 else x
        return x if n is None else np.broadcast_to(x, (*x.shape[:-1], n))

    steps = tuple(
        SubStepValues(
            log=get(s.decay.log) if s.decay.kind != "none" else None,
            key=get(s.key, K),
            read=get(s.read, K),
            decayed=s.reads_decayed,
            value=get(s.value, V),
            gain=1.0 if s.gain is None else get(s.gain),
        )
        for s in spec.substeps
    )
    result = spec.output.result
    used = set(names(result.node)) - {READ} if result is not None else set()
    values = {name: scope[name] for name in used}
    return Token(steps, get(spec.output.query, K), get(spec.output.add, V), result, values)
