"""What holds for every exponent of a window by construction, checked on the finished formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import sympy

from leapgen.algebra.symbols import CURSOR_DECAY, RECORD_DECAY, exp2
from leapgen.diagnostics import LeapgenError

if TYPE_CHECKING:
    from leapgen.algebra.window import Window


def check_window(window: Window) -> None:
    """Every exponent is a cumulative decay minus an earlier one, and no decay is divided by.

    Cumulative decays never rise (increments are <= 0), so such exponents are <= 0.
    Raises:
        LeapgenError: with the offending expression.
    """
    order = _order(window)
    for expr in expressions(window):
        for power in sorted(expr.atoms(exp2), key=str):
            if not falls(power.args[0], order):
                raise LeapgenError(f"an exponent that may be positive: {power.args[0]}")
        for factor in _divisors(expr, window):
            raise LeapgenError(f"a division by a decay: {factor} in {expr}")


def expressions(window: Window) -> Iterator[sympy.Expr]:
    """All weights of a window."""
    for read in window.reads:
        yield from (read.vector, read.payload, read.record_inner, read.record_outer)
    yield from (pair.inner for pair in window.pairs)
    yield from (correction.expression for correction in window.corrections)
    yield from (window.rebuild.payload, window.rebuild.record)


def _order(window: Window) -> list[list[sympy.Symbol]]:
    """Chains of symbols, each cumulative decay before the ones that come later in time."""
    levels = [window.previous, *(level.symbol for level in window.levels)]
    return [[RECORD_DECAY, *levels], [RECORD_DECAY, CURSOR_DECAY]]


def falls(exponent: sympy.Expr, chains: list[list[sympy.Symbol]]) -> bool:
    """Whether an exponent is `later - earlier`, or a cumulative decay alone."""
    symbols = exponent.free_symbols
    for chain in chains:
        if not symbols <= set(chain):
            continue
        ups = [s for s in symbols if exponent.coeff(s) == 1]
        downs = [s for s in symbols if exponent.coeff(s) == -1]
        if len(ups) == 1 and len(downs) <= 1 and exponent == sum(ups) - sum(downs):
            return not downs or chain.index(downs[0]) < chain.index(ups[0])
    return False


def _divisors(expr: sympy.Expr, window: Window) -> Iterator[sympy.Expr]:
    """Factors with a decay in the denominator, also those a spec's own formula wrote."""
    marks = {}
    for number, step in enumerate(window.recurrence.steps):
        if step.log_decay is not None and not step.log_decay.is_number:
            marks[sympy.exp(step.log_decay)] = sympy.Symbol(f"decay{number}", positive=True)
    marked = expr
    for decay, mark in marks.items():
        marked = marked.subs(decay, mark)
    for power in sorted(marked.atoms(sympy.Pow), key=str):
        negative = power.exp.could_extract_minus_sign()
        if negative and (power.base.has(exp2) or power.base.free_symbols & set(marks.values())):
            yield power
