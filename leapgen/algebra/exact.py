"""Token programs and recurrences in rational numbers, compared without tolerance.

`difference` runs both on the same data: what it finds is an error of the derivation, not rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import sympy

from leapgen.algebra.program import TokenProgram, token_program
from leapgen.algebra.rational import Matrix, Number, Values, Vector
from leapgen.algebra.recurrence import Recurrence, Step
from leapgen.algebra.symbols import CURSOR_DECAY, READ, RECORD_DECAY, RECORD_KEY, SumK
from leapgen.algebra.window import Read, Window
from leapgen.tensors import Axis


@dataclass(frozen=True)
class Token:
    """One token: raw inputs by symbol name; `decays` has exp(g) for every log decay symbol g."""

    values: Mapping[str, Number]
    decays: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A record in the window: decays up to and including its own; compensators have none."""

    level: int
    key: Vector
    correction: Vector


@dataclass(frozen=True)
class Run:
    """Results of some tokens; corrections by token, then by sub-step."""

    outputs: tuple[Vector, ...]
    corrections: tuple[tuple[Vector, ...], ...]
    state: Matrix


def difference(
    window: Window,
    state: Matrix,
    compensators: Sequence[Stored],
    past: Sequence[Token],
    tokens: Sequence[Token],
) -> str:
    """Where the token program and the recurrence differ, in words; empty if nowhere.

    state         the payload of the boundary state; compensators come on top of it
    past          tokens whose records are in the window already
    tokens        the tokens of the program
    """
    whole = state
    for record in compensators:
        whole = tuple(
            tuple(s + k * u for s, u in zip(row, record.correction, strict=True))
            for row, k in zip(whole, record.key, strict=True)
        )
    before = stepwise(window.recurrence, whole, past)
    stored, chain = records_of(window, before, past, state)
    wanted = stepwise(window.recurrence, before.state, tokens)
    found = windowed(window, state, [*compensators, *stored], chain, tokens)
    for name in ("corrections", "outputs", "state"):
        if getattr(found, name) != getattr(wanted, name):
            return f"{name}: {getattr(found, name)} is not {getattr(wanted, name)}"
    return ""


def records_of(
    window: Window, run: Run, tokens: Sequence[Token], state: Matrix
) -> tuple[list[Stored], list[Number]]:
    """The records that tokens left in a window that was empty before, and their decays."""
    stored: list[Stored] = []
    chain: list[Number] = []
    recurrence = window.recurrence
    for token, corrections in zip(tokens, run.corrections, strict=True):
        values = token_values(recurrence, token, state)
        decays = _decays(window, values)
        levels = recurrence.level_steps
        for step, opens, u in zip(recurrence.steps, levels, corrections, strict=True):
            if opens:
                chain.append(decays.pop(0))
            stored.append(Stored(len(chain), _keys(step.key, values), u))
    return stored, chain


def token_values(recurrence: Recurrence, token: Token, state: Matrix) -> Values:
    """A token's inputs and everything that is assigned from them."""
    values = Values(
        len(state), len(state[0]), recurrence.axes, dict(token.values), powers=dict(token.decays)
    )
    for assignment in recurrence.assignments:
        target = assignment.target
        values.numbers[target.symbol.name] = values.vector(assignment.expression, target.axis)
    return values


def _decays(window: Window, values: Values) -> list[Number]:
    """The decays of one token, one a level."""
    recurrence = window.recurrence
    axis = window.decay_axis or Axis.SCALAR
    opened = zip(recurrence.steps, recurrence.level_steps, strict=True)
    logs = [s.log_decay for s, opens in opened if opens]
    decays = [sympy.S.One if log is None else sympy.exp(log) for log in logs]
    return [values.vector(decay, axis) for decay in decays]


def _keys(expr: sympy.Expr, values: Values) -> Vector:
    return tuple(values.at(expr, k) for k in range(values.keys))


def stepwise(recurrence: Recurrence, state: Matrix, tokens: Sequence[Token]) -> Run:
    """The recurrence as it is defined: u = gain (value - S^T read); S <- D S + key u^T."""
    outputs, corrections = [], []
    for token in tokens:
        values = token_values(recurrence, token, state)
        before = state
        found = []
        for step in recurrence.steps:
            u = _correction(step, state, values)
            found.append(u)
            state = _update(step, state, u, values)
        corrections.append(tuple(found))
        read = state if recurrence.reads_updated else before
        outputs.append(_output(recurrence, read, values))
    return Run(tuple(outputs), tuple(corrections), state)


def _columns(state: Matrix) -> range:
    return range(len(state[0]))


def _correction(step: Step, state: Matrix, values: Values) -> Vector:
    found = []
    for v in _columns(state):
        total = values.at(step.value, value=v) if step.value is not None else Fraction(0)
        if step.read is not None:
            total -= _dot(state, v, lambda k: values.at(step.read, k))
        found.append(total * (values.at(step.gain, value=v) if step.gain is not None else 1))
    return tuple(found)


def _update(step: Step, state: Matrix, u: Vector, values: Values) -> Matrix:
    rows = []
    for k, row in enumerate(state):
        decay = Fraction(1)
        if step.log_decay is not None:
            decay = values.at(sympy.exp(step.log_decay), k)
        key = values.at(step.key, k)
        rows.append(tuple(decay * s + key * c for s, c in zip(row, u, strict=True)))
    return tuple(rows)


def _output(recurrence: Recurrence, state: Matrix, values: Values) -> Vector:
    found = []
    for v in _columns(state):
        add = values.at(recurrence.add, value=v) if recurrence.add is not None else Fraction(0)
        found.append(_dot(state, v, lambda k: values.at(recurrence.query, k)) + add)
    return _result(recurrence.result, tuple(found), values)


def _result(formula: sympy.Expr | None, read: Vector, values: Values) -> Vector:
    """The output from what the query reads."""
    if formula is None:
        return read
    values.numbers[READ.name] = read
    values.axes[READ.name] = Axis.VALUE
    return tuple(values.at(formula, value=v) for v in range(len(read)))


def _dot(state: Matrix, column: int, weight: Callable[[int], Fraction]) -> Fraction:
    return sum((row[column] * weight(k) for k, row in enumerate(state)), Fraction(0))


def windowed(
    window: Window,
    state: Matrix,
    stored: Sequence[Stored],
    chain: Sequence[Number],
    tokens: Sequence[Token],
) -> Run:
    """The token program on a window: boundary state, stored records, then new tokens.

    stored   compensators (level 0) and records, `chain` their decays in time order
    The state of the result is rebuilt from the records, the new ones included.
    """
    program = token_program(window, len(tokens))
    values = _program_values(window, program, state, chain, tokens)
    for base in program.reads:
        values.numbers[base.read.symbol.name] = _base_read(base.read, state, stored, values)
    for weight in program.weights:
        values.numbers[weight.symbol.name] = values.at(SumK(weight.inner))
    for solve in program.solves:
        column = (values.at(solve.expression, value=v) for v in _columns(state))
        values.numbers[solve.symbol.name] = tuple(column)
    new = [
        _stored(record.key, record.correction, record.decay, values) for record in program.records
    ]
    return _collect(program, values, rebuild(window, state, [*stored, *new], values))


def _program_values(
    window: Window,
    program: TokenProgram,
    state: Matrix,
    chain: Sequence[Number],
    tokens: Sequence[Token],
) -> Values:
    axes = dict(window.axes)
    values = Values(len(state), len(state[0]), axes, {}, list(chain))
    for t, token in enumerate(tokens, 1):
        for name in window.axes:
            axes[f"{name}_t{t}"] = window.axes[name]
        plain = token_values(window.recurrence, token, state)
        values.numbers |= {f"{name}_t{t}": number for name, number in plain.numbers.items()}
        values.powers |= {f"{name}_t{t}": number for name, number in token.decays.items()}
        values.chain += _decays(window, plain)
    if window.previous is not None:
        values.levels[window.previous.name] = len(chain)
    for place, (symbol, _) in enumerate(program.levels, len(chain) + 1):
        values.levels[symbol.name] = place
    values.levels[CURSOR_DECAY.name] = len(values.chain)
    return values


def _base_read(read: Read, state: Matrix, stored: Sequence[Stored], values: Values) -> Vector:
    total = [_dot(state, v, lambda k: values.at(read.payload, k)) for v in _columns(state)]
    for record in stored:
        _bind(record, values)
        weight = values.at(read.record_outer) * values.at(SumK(read.record_inner))
        total = [t + weight * u for t, u in zip(total, record.correction, strict=True)]
    return tuple(total)


def _bind(record: Stored, values: Values) -> None:
    values.numbers[RECORD_KEY.name] = record.key
    values.levels[RECORD_DECAY.name] = record.level


def _stored(
    key: sympy.Expr, correction: sympy.Symbol, decay: sympy.Symbol | None, values: Values
) -> Stored:
    u = values.numbers[correction.name]
    assert isinstance(u, tuple)
    return Stored(values.levels[decay.name] if decay is not None else 0, _keys(key, values), u)


def rebuild(window: Window, state: Matrix, stored: Sequence[Stored], values: Values) -> Matrix:
    """The state at the cursor from the boundary state and all records."""
    rows = [[values.at(window.rebuild.payload, k) * s for s in row] for k, row in enumerate(state)]
    for record in stored:
        _bind(record, values)
        for k, row in enumerate(rows):
            weight = values.at(window.rebuild.record, k)
            rows[k] = [s + weight * u for s, u in zip(row, record.correction, strict=True)]
    return tuple(tuple(row) for row in rows)


def _collect(program: TokenProgram, values: Values, state: Matrix) -> Run:
    outputs: list[Vector] = []
    corrections: list[tuple[Vector, ...]] = []
    found: list[Vector] = []
    for solve in program.solves:
        number = values.numbers[solve.symbol.name]
        assert isinstance(number, tuple)
        if solve.symbol.name == f"o_t{solve.token}":
            outputs.append(number)
            corrections.append(tuple(found))
            found = []
        else:
            found.append(number)
    return Run(tuple(outputs), tuple(corrections), state)
