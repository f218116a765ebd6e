"""Maps of the state that are affine: S -> A S + B, entry by entry in index notation.

A is a diagonal plus rank-one terms, A[i, m] = delta(i, m) d[i] + sum of x[i] y[m]; products of such
maps contract to sums over the key channels. Value channels never mix, so everything is written
for one value channel j: value symbols stand for their entry j, and B for the entry B[i, j].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy

from leapgen.algebra.normal import equal, normal
from leapgen.algebra.symbols import SUMS, SumK, symbols_of
from leapgen.tensors import Axis

Terms = tuple[tuple[sympy.Expr, sympy.Expr], ...]


@dataclass(frozen=True)
class Operator:
    """A matrix over key channels: diagonal plus rank-one terms (x, y) for x y^T."""

    diagonal: sympy.Expr = sympy.S.Zero
    terms: Terms = ()

    def __add__(self, other: Operator) -> Operator:
        return Operator(self.diagonal + other.diagonal, self.terms + other.terms)

    def scaled(self, factor: sympy.Expr) -> Operator:
        """factor * A for a factor that does not vary along the key channels."""
        return Operator(factor * self.diagonal, tuple((factor * x, y) for x, y in self.terms))

    def transposed(self) -> Operator:
        """The transpose."""
        return Operator(self.diagonal, tuple((y, x) for x, y in self.terms))

    def apply(self, vector: sympy.Expr) -> sympy.Expr:
        """A x for a K-element expression x."""
        return self.diagonal * vector + sum(
            (x * SumK(y * vector) for x, y in self.terms), sympy.S.Zero
        )

    def __matmul__(self, other: Operator) -> Operator:
        left = tuple((x, other.diagonal * y) for x, y in self.terms)
        right = tuple((self.apply(x), y) for x, y in other.terms)
        return Operator(self.diagonal * other.diagonal, left + right)

    def map(self, change: Callable[[sympy.Expr], sympy.Expr]) -> Operator:
        """The same matrix with every expression passed through `change`."""
        return Operator(change(self.diagonal), tuple((change(x), change(y)) for x, y in self.terms))


IDENTITY = Operator(sympy.S.One)
NOTHING = Operator()


@dataclass(frozen=True)
class StateMap:
    """S -> operator S + constant; `constant` is the entry (i, j), a product of both kinds."""

    operator: Operator
    constant: sympy.Expr = sympy.S.Zero

    def then(self, later: StateMap) -> StateMap:
        """The map that applies this one first."""
        return StateMap(
            later.operator @ self.operator,
            later.operator.apply(self.constant) + later.constant,
        )

    def map(self, change: Callable[[sympy.Expr], sympy.Expr]) -> StateMap:
        """The same map with every expression passed through `change`."""
        return StateMap(self.operator.map(change), change(self.constant))


@dataclass(frozen=True)
class Mismatch:
    """Where two maps differ: the place, and the entry of each in normal form."""

    place: str
    left: sympy.Expr
    right: sympy.Expr


def indexed(expr: sympy.Expr, key: str, axes: Mapping[str, Axis]) -> sympy.Expr:
    """Mark free element symbols with an index: k -> k[key], v -> v[j].

    Symbols that a sum binds stay bare. Indexed symbols are numbers: they leave sums.
    """
    index = {Axis.KEY: key, Axis.VALUE: "j"}

    def mark(node: sympy.Expr, bound: Axis | None) -> sympy.Expr:
        if isinstance(node, sympy.Symbol):
            axis = axes.get(node.name, Axis.SCALAR)
            if axis is Axis.SCALAR or axis is bound:
                return node
            return sympy.Symbol(f"{node.name}[{index[axis]}]", real=True)
        inner = SUMS.get(type(node), bound)
        return node.func(*(mark(a, inner) for a in node.args)) if node.args else node

    return mark(normal(expr, axes), None)


def entries(state_map: StateMap, axes: Mapping[str, Axis]) -> tuple[tuple[str, sympy.Expr], ...]:
    """(factor, coefficient) of S'[i, j] with indices written out; m is another channel than i.

    For i and m distinct the entry of the matrix is its rank-one part alone, which fixes that
    part; what is left of the entry (i, i) is the diagonal part. So equal entries, equal maps.
    """
    operator = state_map.operator
    rank_one = sum(
        (indexed(x, "i", axes) * indexed(y, "m", axes) for x, y in operator.terms), sympy.S.Zero
    )
    return (
        ("S[i, j]", indexed(operator.diagonal, "i", axes)),
        ("S[m, j], summed over m", rank_one),
        ("1", indexed(state_map.constant, "i", axes)),
    )


def mismatches(left: StateMap, right: StateMap, axes: Mapping[str, Axis]) -> tuple[Mismatch, ...]:
    """All places where two maps differ; none means that they are equal."""
    pairs = zip(entries(left, axes), entries(right, axes), strict=True)
    return tuple(
        Mismatch(place, normal(a, axes), normal(b, axes))
        for (place, a), (_, b) in pairs
        if not equal(a, b, axes)
    )


def substitute(expr: sympy.Expr, definitions: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """Replace symbols by their definitions until none is left."""
    while True:
        found = {s: definitions[s] for s in symbols_of(expr) if s in definitions}
        if not found:
            return expr
        expr = expr.xreplace(found)
