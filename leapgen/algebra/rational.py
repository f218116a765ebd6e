"""Rational numbers in place of symbols: the ground that exact checks stand on.

A decay is given as a rational number (zero included), not by its logarithm: 2^(later - earlier)
is the product of the decays in between, so an exponent in the wrong order has no value at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import sympy

from leapgen.algebra.symbols import SumK, SumV, exp2, unit_v
from leapgen.diagnostics import LeapgenError
from leapgen.tensors import Axis

Vector = tuple[Fraction, ...]
Number = Fraction | Vector
Matrix = tuple[Vector, ...]  # [key channel][value channel]


@dataclass
class Values:
    """What symbols stand for while an expression is evaluated.

    keys, columns   numbers of key and value channels
    axes     axis by symbol name
    numbers  value by symbol name
    chain    decays in time order since the window start; level n is after the first n of them
    levels   level by symbol name
    powers   exp(g) by the name of g
    """

    keys: int
    columns: int
    axes: dict[str, Axis]
    numbers: dict[str, Number]
    chain: list[Number] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)
    powers: dict[str, Number] = field(default_factory=dict)

    def at(self, expr: sympy.Expr, key: int = -1, value: int = -1) -> Fraction:
        """The entry of `expr` at a key and a value channel."""
        if isinstance(expr, sympy.Rational):
            return Fraction(int(expr.p), int(expr.q))
        if isinstance(expr, unit_v):
            return Fraction(value == self.columns - 1)
        if isinstance(expr, sympy.Symbol):
            return self._pick(self.numbers[expr.name], expr.name, key, value)
        parts = [
            self.at(a, key, value) for a in expr.args if isinstance(expr, sympy.Add | sympy.Mul)
        ]
        if isinstance(expr, sympy.Add):
            return sum(parts, Fraction(0))
        if isinstance(expr, sympy.Mul):
            return product(parts)
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer:
            return self.at(expr.base, key, value) ** int(expr.exp)
        if isinstance(expr, SumK):
            return sum((self.at(expr.args[0], k, value) for k in range(self.keys)), Fraction(0))
        if isinstance(expr, SumV):
            return sum((self.at(expr.args[0], key, v) for v in range(self.columns)), Fraction(0))
        if isinstance(expr, exp2):
            return self._decay(expr.args[0], key)
        if isinstance(expr, sympy.exp) and isinstance(expr.args[0], sympy.Symbol):
            name = expr.args[0].name
            return entry(self.powers[name], key)
        raise LeapgenError(f"{expr} has no exact value")

    def vector(self, expr: sympy.Expr, axis: Axis) -> Number:
        """All entries along an axis; the number itself on no axis."""
        if axis is Axis.KEY:
            return tuple(self.at(expr, key=k) for k in range(self.keys))
        if axis is Axis.VALUE:
            return tuple(self.at(expr, value=v) for v in range(self.columns))
        return self.at(expr)

    def _pick(self, number: Number, name: str, key: int, value: int) -> Fraction:
        return entry(number, key if self.axes.get(name) is Axis.KEY else value)

    def _decay(self, exponent: sympy.Expr, key: int) -> Fraction:
        later = [s for s in exponent.free_symbols if exponent.coeff(s) == 1]
        earlier = [s for s in exponent.free_symbols if exponent.coeff(s) == -1]
        if len(later) != 1 or len(earlier) > 1 or len(exponent.free_symbols) > 2:
            raise LeapgenError(f"{exponent} is not a difference of two cumulative decays")
        start = self.levels[earlier[0].name] if earlier else 0
        end = self.levels[later[0].name]
        if start > end:
            raise LeapgenError(f"the exponent {exponent} is positive")
        return product([entry(d, key) for d in self.chain[start:end]])


def entry(number: Number, index: int) -> Fraction:
    """One entry of a vector, or the scalar."""
    return number[index] if isinstance(number, tuple) else number


def product(parts: Sequence[Fraction]) -> Fraction:
    """The product; one of nothing."""
    result = Fraction(1)
    for part in parts:
        result *= part
    return result
