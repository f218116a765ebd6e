"""Cumulative decays within a token, and the decay factor hidden in a read vector."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from leapgen.algebra.affine import substitute
from leapgen.algebra.normal import expand
from leapgen.algebra.recurrence import Recurrence, Step
from leapgen.algebra.symbols import (
    CLAMP,
    LOG2E,
    RECORD_KEY,
    SumK,
    SumV,
    level_symbol,
    symbols_of,
)
from leapgen.algebra.window import DecayLevel
from leapgen.tensors import Axis, Per


@dataclass(frozen=True)
class Ladder:
    """The levels of one token: 0 before it, then one more after each sub-step that opens one.

    before, after   level index around each sub-step
    steps           the sub-step that leads to level 1, 2, ...
    """

    levels: tuple[DecayLevel, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def top(self) -> int:
        """The level after the token."""
        return len(self.levels)

    @property
    def decaying(self) -> bool:
        """Whether any sub-step decays."""
        return bool(self.levels)

    def symbol(self, level: int) -> sympy.Symbol:
        """G0, G1, ..."""
        return level_symbol(level)


def ladder(recurrence: Recurrence) -> Ladder:
    """Levels with log2 increments, clamped per sub-step at -150 (2^-150 is zero in FP32)."""
    opens = recurrence.level_steps
    steps = tuple(s for s, opened in zip(recurrence.steps, opens, strict=True) if opened)
    # One axis for the whole sum: a scalar decay beside a vector one acts on every channel.
    axis = Axis.KEY if any(s.decay_axis is Axis.KEY for s in steps) else Axis.SCALAR
    pers = [recurrence.per_of(s.log_decay) for s in steps if s.log_decay is not None]
    per = Per.VALUE if Per.VALUE in pers else Per.KEY
    levels = tuple(
        DecayLevel(level_symbol(i), increment(s.log_decay), axis, per, s.constant)
        for i, s in enumerate(steps, 1)
    )
    after = [sum(opens[: j + 1]) for j in range(len(opens))]
    return Ladder(levels, (0, *after[:-1]), tuple(after), steps)


def increment(log_decay: sympy.Expr | None) -> sympy.Expr:
    """log2 of a decay given by its natural logarithm, clamped from below; zero for none."""
    if log_decay is None:
        return sympy.S.Zero
    return sympy.Max(LOG2E * log_decay, CLAMP)


def told_by_key(recurrence: Recurrence, rungs: Ladder) -> sympy.Expr | None:
    """The log2 decay of a token as a formula of its record's key `rk`, where it is one.

    That the key has a name which the decay's formula uses, and nothing else, decides it; a record's
    key is rounded, so that later tokens see the decay that the rounded key tells. Only for one
    sub-step a token: a sum over records is then a sum over tokens.
    """
    if len(recurrence.steps) > 1 or not rungs.decaying:
        return None
    (step,) = recurrence.steps
    if not step.key.is_Symbol or step.constant or step.decay_axis is not Axis.KEY:
        return None
    others = {s: e for s, e in recurrence.definitions.items() if s != step.key}
    log = substitute(step.log_decay, others)
    if log.free_symbols != {step.key} or log.has(SumK, SumV):
        return None
    return increment(log).xreplace({step.key: RECORD_KEY})


def absorb(
    vector: sympy.Expr, level: int, rungs: Ladder, recurrence: Recurrence
) -> tuple[sympy.Expr, int]:
    """Move decay factors of a read vector into its level: 2^G0 e^g x = 2^G1 x.

    vector   K-element expression, read at `level`
    Returns the rest of the vector and the level it is read at. Reads that end at one level
    share their payload weights' cumulative decay.
    """
    for next_level, step in enumerate(rungs.steps[level:], level + 1):
        if step.log_decay is None:
            continue  # 2^0: the level above it is worth trying
        rest = divide_by_decay(vector, step.log_decay, recurrence)
        if rest is None:
            break
        vector, level = rest, next_level
    return vector, level


def divide_by_decay(
    vector: sympy.Expr, log_decay: sympy.Expr, recurrence: Recurrence
) -> sympy.Expr | None:
    """x with vector = exp(log_decay) * x, or None if the factor is not there.

    Definitions are looked into only as far as they hide the decay, so that x keeps its names.
    """
    if log_decay.is_number:
        return None  # a number cannot be told from other numbers in the vector
    rest = _quotient(vector, sympy.exp(log_decay))
    if rest is not None:
        return rest
    definitions = recurrence.definitions
    plain = sympy.exp(recurrence.inline(log_decay))
    candidates = [s for s in symbols_of(vector) if s in definitions]
    for symbol in candidates:
        inner = _quotient(recurrence.inline(definitions[symbol]), plain)
        if inner is not None and vector.coeff(symbol) * symbol == vector:
            return vector.coeff(symbol) * _named(inner, recurrence)
    return None


def _quotient(vector: sympy.Expr, decay: sympy.Expr) -> sympy.Expr | None:
    """vector / decay as a formal division: no term may keep a negative power of the decay."""
    mark = sympy.Dummy("decay", positive=True)
    marked = vector.subs(decay, mark)
    terms = sympy.Add.make_args(expand(marked))
    if any(_power(term, mark) < 1 for term in terms):
        return None
    rest = marked / mark
    if rest.has(1 / mark):  # the factor stands in every term but not in front of them
        rest = expand(rest)
    return rest.subs(mark, decay)


def _power(term: sympy.Expr, mark: sympy.Symbol) -> sympy.Expr:
    coefficient, power = term.as_coeff_exponent(mark)
    return power if not coefficient.has(mark) else sympy.S.Zero


def _named(expr: sympy.Expr, recurrence: Recurrence) -> sympy.Expr:
    """Put names of definitions back where their raw form occurs in full."""
    for assignment in reversed(recurrence.assignments):
        raw = recurrence.inline(assignment.expression)
        expr = expr.subs(raw, assignment.target.symbol)
    return expr
