"""The order of computing a token's coefficients: element expressions and sums, alternating.

Within a stage: scalars, then vectors, then the reductions over what is known by then. No element
expression contains a sum; a sum is a reduction with a name, and a scalar for later stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import sympy

from leapgen.algebra.recurrence import Assignment, Quantity
from leapgen.algebra.symbols import SUMS, SumK, element, rewrite_bottom_up, symbols_of
from leapgen.algebra.window import Window
from leapgen.tensors import Axis, Per


@dataclass(frozen=True)
class Reduction:
    """target (a scalar) = sum of `inner` over the channels of `axis`; `inner` has no sums."""

    target: Quantity
    axis: Axis
    inner: sympy.Expr


@dataclass(frozen=True)
class Stage:
    """One round; the tuples are in an order in which every symbol is known before its use.

    Scalars do not depend on vectors of their own stage, vectors may depend on its scalars, and
    reductions on everything before.
    """

    scalars: tuple[Assignment, ...]
    vectors_k: tuple[Assignment, ...]
    vectors_v: tuple[Assignment, ...]
    reductions: tuple[Reduction, ...]


def split_reductions(window: Window, *, pairs: bool = True) -> tuple[Stage, ...]:
    """All coefficients of a token, its decay levels and (unless `pairs` is off) its pair weights.

    Inputs and `window.previous` are known at the start. Reductions are called n1, n2, ... in order
    of first use; one that is a pair's weight as it stands has the pair's symbol. Scalar factors of
    vectors, such as a norm, are taken out of a pair's sum where it can then be formed earlier.
    """
    splitter = _Splitter(window)
    for assignment in window.recurrence.assignments:
        splitter.assign(assignment)
    below = window.previous
    for level in window.levels:
        target = Quantity(level.symbol, level.axis, level.per)
        splitter.assign(Assignment(target, below + level.increment))
        below = level.symbol
    for pair in window.pairs if pairs else ():
        splitter.pair(pair.inner, window.quantities[pair.symbol.name])
    return splitter.stages()


@dataclass
class _Splitter:
    """Puts every item into the earliest stage in which its operands are known."""

    window: Window
    ready: dict[sympy.Symbol, int] = field(default_factory=dict)  # first stage that may use it
    assignments: list[tuple[int, Assignment]] = field(default_factory=list)
    reductions: list[tuple[int, Reduction]] = field(default_factory=list)
    sums: dict[sympy.Expr, sympy.Symbol] = field(default_factory=dict)

    def assign(self, assignment: Assignment) -> None:
        expr = rewrite_bottom_up(assignment.expression, self._take)
        stage = self._stage(expr)
        self.ready[assignment.target.symbol] = stage
        self.assignments.append((stage, Assignment(assignment.target, expr)))

    def reduce(self, axis: Axis, inner: sympy.Expr, target: Quantity) -> None:
        stage = self._stage(inner)
        self.ready[target.symbol] = stage + 1
        self.reductions.append((stage, Reduction(target, axis, inner)))

    def pair(self, inner: sympy.Expr, target: Quantity) -> None:
        """The weight of a pair; from an earlier sum times a scalar if there is one."""
        factor, rest = self._scalars_out(inner)
        if self._stage(rest) < self._stage(inner):
            self.assign(Assignment(target, factor * SumK(rest)))
        else:
            self.reduce(Axis.KEY, inner, target)

    def _scalars_out(self, inner: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """(factor, rest): `inner` with vectors that are a scalar times another one written so."""
        longer = {}
        for _, a in self.assignments:
            if a.target.axis is Axis.KEY:
                scalar, vector = self._split(a.expression)
                if scalar != 1 and vector.is_Symbol:
                    longer[a.target.symbol] = a.expression
        return self._split(inner.xreplace(longer))

    def _split(self, expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """The factors without, and with, symbols that range over the keys."""
        known = {a.target.symbol: a.target.axis for _, a in self.assignments}
        axes = {s: known.get(s) or self.window.axes.get(s.name) for s in expr.free_symbols}
        keys = [s for s, axis in axes.items() if axis is Axis.KEY]
        scalar, vector = expr.as_independent(*keys, as_Add=False)
        return scalar, vector

    def _take(self, node: sympy.Expr) -> sympy.Expr:
        """Replace a sum by the name of its reduction; equal sums share one."""
        if type(node) not in SUMS:
            return node
        if node not in self.sums:
            symbol = element(f"n{len(self.sums) + 1}")
            self.sums[node] = symbol
            inner = node.args[0]
            target = Quantity(symbol, Axis.SCALAR, self._per(inner))
            self.reduce(SUMS[type(node)], inner, target)
        return self.sums[node]

    def _stage(self, expr: sympy.Expr) -> int:
        return max((self.ready.get(s, 0) for s in expr.free_symbols), default=0)

    def _per(self, expr: sympy.Expr) -> Per:
        known = self.window.quantities
        pers = {known[s.name].per for s in symbols_of(expr) if s.name in known}
        pers |= {r.target.per for _, r in self.reductions if r.target.symbol in expr.free_symbols}
        return Per.VALUE if Per.VALUE in pers else Per.KEY

    def stages(self) -> tuple[Stage, ...]:
        numbers = [n for n, _ in self.assignments] + [n for n, _ in self.reductions]
        return tuple(self._one(number) for number in range(max(numbers, default=-1) + 1))

    def _one(self, number: int) -> Stage:
        def of(axis: Axis) -> tuple[Assignment, ...]:
            return _on(axis, (a for n, a in self.assignments if n == number))

        reductions = tuple(r for n, r in self.reductions if n == number)
        return Stage(of(Axis.SCALAR), of(Axis.KEY), of(Axis.VALUE), reductions)


def _on(axis: Axis, assignments: Iterable[Assignment]) -> tuple[Assignment, ...]:
    return tuple(a for a in assignments if a.target.axis is axis)
