"""Checks of the algebra: its proofs, and the token program in exact rational numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import sympy

from leapgen.algebra.exact import Stored, Token, difference
from leapgen.algebra.rational import Number
from leapgen.algebra.recurrence import Recurrence
from leapgen.algebra.symbols import SUMS, unit_v
from leapgen.algebra.window import Window
from leapgen.report.ledger import Ledger
from leapgen.tensors import Axis

KEYS, COLUMNS = 3, 2
CASES = ((0, 1, 0), (1, 1, 1), (3, 1, 2), (2, 3, 1))
"""Tokens in the window, new tokens, compensators."""


def checks(window: Window, seed: int) -> Ledger:
    """Every proof that `derive` made (it raises where one fails), and CASES in exact rationals."""
    ledger = Ledger()
    for proof in window.proofs:
        ledger.equal(f"proved: {proof.title}", 0)
    ready = coefficients_only(window)
    if ready is None:
        ledger.equal(
            "token program in exact rationals: not possible, a log decay or the output is no name",
            0,
            0,
        )
        return ledger
    rng = random.Random(seed)
    for past, new, compensators in CASES:
        found = _case(ready, rng, past, new, compensators)
        ledger.equal("token program in exact rationals", int(bool(found)), 1, found)
    return ledger


def coefficients_only(window: Window) -> Window | None:
    """The window of the same recurrence whose coefficients are its inputs.

    How raw inputs become coefficients is no part of the derivation, and softplus(1/2) is not
    rational. None where a log decay is a formula, or the output has a function of what is read:
    then it has no exact value.
    """
    logs = [s.log_decay for s in window.recurrence.steps if s.log_decay is not None]
    if not all(log.is_Symbol for log in logs):
        return None
    result = window.recurrence.result
    if result is not None and result.atoms(sympy.Function) - result.atoms(*SUMS, unit_v):
        return None
    return replace(window, recurrence=replace(window.recurrence, assignments=()))


def _case(window: Window, rng: random.Random, past: int, new: int, compensators: int) -> str:
    state = tuple(_vector(rng, COLUMNS) for _ in range(KEYS))
    extra = [Stored(0, _vector(rng, KEYS), _vector(rng, COLUMNS)) for _ in range(compensators)]
    tokens = _tokens(window.recurrence, rng, past + new)
    return difference(window, state, extra, tokens[:past], tokens[past:])


def _tokens(recurrence: Recurrence, rng: random.Random, count: int) -> list[Token]:
    """Random coefficients; decays between 0 and 1, zero included."""
    logs = {s.log_decay.name for s in recurrence.steps if s.log_decay is not None}
    sizes = {Axis.KEY: KEYS, Axis.VALUE: COLUMNS}
    tokens = []
    for _ in range(count):
        values: dict[str, Number] = {}
        decays: dict[str, Number] = {}
        for name, quantity in recurrence.quantities.items():
            draw = _decay if name in logs else _number
            size = sizes.get(quantity.axis)
            number: Number = draw(rng) if size is None else tuple(draw(rng) for _ in range(size))
            (decays if name in logs else values)[name] = number
        tokens.append(Token(values, decays))
    return tokens


def _number(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(-6, 6), rng.randint(1, 4))


def _vector(rng: random.Random, size: int) -> tuple[Fraction, ...]:
    return tuple(_number(rng) for _ in range(size))


def _decay(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(0, 8), 8)
