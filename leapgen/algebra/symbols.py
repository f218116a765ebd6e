"""The alphabet of the algebra: element symbols, key and value sums, and named functions.

An element symbol stands for one entry of a quantity at the current index of its axis: `q` is
q[i] for the current key channel i, `v` is v[j] for the current value channel j, and a scalar is
itself. `SumK(e)` is the sum of e over all key channels, `SumV(e)` over all value channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from leapgen.tensors import Axis

K = sympy.Symbol("K", integer=True, positive=True)
V = sympy.Symbol("V", integer=True, positive=True)

LOG2E = 1 / sympy.log(2)
"""Factor from natural to base-2 logarithms, exact."""

CLAMP = sympy.Integer(-150)
"""Lowest log2 decay of one token: 2^-150 is zero in FP32, and finite sums of it stay finite."""

SOFTPLUS_LINEAR = 20
"""Above this argument softplus(x) is x in FP32 (the rest is below half an ulp)."""


class exp2(sympy.Function):  # type: ignore[misc]
    """2**x, kept as written so that exponents stay visible; exp2(0) is 1."""

    nargs = 1
    is_real = True
    is_positive = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        """SymPy's hook: the value where it is known at once."""
        return sympy.S.One if x.is_zero else None

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return (2 ** self.args[0])._eval_evalf(prec)


class softplus(sympy.Function):  # type: ignore[misc]
    """log(1 + exp(x))."""

    nargs = 1
    is_real = True
    is_positive = True

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return sympy.log(1 + sympy.exp(self.args[0]))._eval_evalf(prec)


class sigmoid(sympy.Function):  # type: ignore[misc]
    """1 / (1 + exp(-x))."""

    nargs = 1
    is_real = True
    is_positive = True

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return (1 / (1 + sympy.exp(-self.args[0])))._eval_evalf(prec)


class unit_v(sympy.Function):  # type: ignore[misc]
    """The element of the vector over value channels that is 1 in the last one, else 0."""

    nargs = 0
    is_real = True
    is_number = False  # SymPy takes a function without arguments for one


class SumK(sympy.Function):  # type: ignore[misc]
    """Sum of an element expression over the key channels."""

    nargs = 1
    is_real = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        """SymPy's hook: the value where it is known at once."""
        return sympy.S.Zero if x.is_zero else None


class SumV(sympy.Function):  # type: ignore[misc]
    """Sum of an element expression over the value channels."""

    nargs = 1
    is_real = True

    @classmethod
    def eval(cls, x: sympy.Expr) -> sympy.Expr | None:
        """SymPy's hook: the value where it is known at once."""
        return sympy.S.Zero if x.is_zero else None


SUMS: dict[type[sympy.Function], Axis] = {SumK: Axis.KEY, SumV: Axis.VALUE}


def element(name: str) -> sympy.Symbol:
    """The element symbol of a quantity; equal names are equal symbols."""
    return sympy.Symbol(name, real=True)


RECORD_DECAY = element("rG")  # a record's cumulative log2 decay
RECORD_KEY = element("rk")  # a record's key
READ = element("o")  # what the query reads, in the formula of the output
CURSOR_DECAY = element("G")  # the cumulative log2 decay at the cursor


def level_symbol(index: int) -> sympy.Symbol:
    """G0 is the cumulative log2 decay before the token, G1, G2, ... after its decays."""
    return element(f"G{index}")


def symbols_of(expr: sympy.Expr) -> list[sympy.Symbol]:
    """Free symbols in order of name: sets have no order that survives a run."""
    return sorted(expr.free_symbols, key=lambda s: str(s.name))


def free_axes(expr: sympy.Basic, axes: Mapping[str, Axis]) -> frozenset[Axis]:
    """The axes that `expr` varies along; a sum hides its own axis.

    axes    axis of every symbol by name; symbols that are absent are scalars
    """
    if isinstance(expr, unit_v):
        return frozenset({Axis.VALUE})
    if isinstance(expr, sympy.Symbol):
        axis = axes.get(expr.name, Axis.SCALAR)
        return frozenset() if axis is Axis.SCALAR else frozenset({axis})
    found: frozenset[Axis] = frozenset()
    for argument in expr.args:
        found |= free_axes(argument, axes)
    return found - {SUMS[type(expr)]} if type(expr) in SUMS else found


def rewrite_bottom_up(expr: sympy.Expr, rule: Callable[[sympy.Expr], sympy.Expr]) -> sympy.Expr:
    """Rebuild `expr` from its leaves, passing every node through `rule`."""
    if expr.args:
        expr = expr.func(*(rewrite_bottom_up(a, rule) for a in expr.args))
    return rule(expr)
