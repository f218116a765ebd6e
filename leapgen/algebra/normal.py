"""A normal form in which equal element expressions become equal trees.

Sums are linear: factors without the summed index come out, sums of terms are split, the sum of
one is the dimension. Products of exponentials become one exponential of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from leapgen.algebra.symbols import (
    SUMS,
    K,
    V,
    exp2,
    free_axes,
    rewrite_bottom_up,
    sigmoid,
    softplus,
)
from leapgen.tensors import Axis

DIMENSIONS: dict[Axis, sympy.Symbol] = {Axis.KEY: K, Axis.VALUE: V}


def expand(expr: sympy.Expr) -> sympy.Expr:
    """Multiply out; exponentials and powers of products stay whole."""
    return sympy.expand(expr, power_exp=False, power_base=False, log=False)


def normal(expr: sympy.Expr, axes: Mapping[str, Axis]) -> sympy.Expr:
    """The normal form of `expr`; `axes` gives the axis of every symbol by name."""

    def rule(node: sympy.Expr) -> sympy.Expr:
        return _distribute(node, axes) if type(node) in SUMS else node

    return merge_exponentials(rewrite_bottom_up(expr, rule))


def merge_exponentials(expr: sympy.Expr) -> sympy.Expr:
    """Expand, and write every product of exponentials of one kind as a single exponential."""
    terms = sympy.Add.make_args(expand(expr))
    return sympy.Add(*(_merge_term(term) for term in terms))


def _merge_term(term: sympy.Expr) -> sympy.Expr:
    exponents: dict[type[sympy.Function], sympy.Expr] = {
        exp2: sympy.S.Zero,
        sympy.exp: sympy.S.Zero,
    }
    rest: list[sympy.Expr] = []
    for factor in sympy.Mul.make_args(term):
        # `as_base_exp` of exp(x) is (E, x); the named functions have no such convention.
        base, power = (factor, sympy.S.One)
        if isinstance(factor, sympy.Pow):
            base, power = factor.base, factor.exp
        if type(base) in exponents:
            exponents[type(base)] += power * base.args[0]
        else:
            rest.append(factor)
    merged = [kind(expand(exponent)) for kind, exponent in exponents.items()]
    return sympy.Mul(*rest, *merged)


def _distribute(node: sympy.Expr, axes: Mapping[str, Axis]) -> sympy.Expr:
    """A sum of products as products of sums that vary along the summed axis only."""
    kind = type(node)
    axis = SUMS[kind]
    total = sympy.S.Zero
    for term in sympy.Add.make_args(merge_exponentials(node.args[0])):
        outside: list[sympy.Expr] = []
        inside: list[sympy.Expr] = []
        for factor in sympy.Mul.make_args(_split_exponential(term, axis, axes)):
            (inside if axis in free_axes(factor, axes) else outside).append(factor)
        summed = kind(merge_exponentials(sympy.Mul(*inside))) if inside else DIMENSIONS[axis]
        total += sympy.Mul(*outside) * summed
    return total


def _split_exponential(term: sympy.Expr, axis: Axis, axes: Mapping[str, Axis]) -> sympy.Expr:
    """Take the part of an exponent that does not vary along `axis` into a factor of its own."""
    factors = []
    for factor in sympy.Mul.make_args(term):
        if not isinstance(factor, exp2 | sympy.exp):
            factors.append(factor)
            continue
        for moving in (True, False):
            parts = [
                part
                for part in sympy.Add.make_args(factor.args[0])
                if (axis in free_axes(part, axes)) is moving
            ]
            factors.append(factor.func(sympy.Add(*parts)) if parts else sympy.S.One)
    # Unevaluated, or the product would join the two exponentials again.
    return sympy.Mul(*factors, evaluate=False)


def equal(left: sympy.Expr, right: sympy.Expr, axes: Mapping[str, Axis]) -> bool:
    """Whether two element expressions are the same function of their symbols."""
    difference = normal(left - right, axes)
    if difference == 0:
        return True
    plain = rewrite_bottom_up(difference, _elementary)
    numerator, _ = sympy.fraction(sympy.together(plain))
    return bool(normal(numerator, axes) == 0)


def _elementary(node: sympy.Expr) -> sympy.Expr:
    """sigmoid and softplus by their definitions, for comparisons only."""
    if isinstance(node, sigmoid):
        return 1 / (1 + sympy.exp(-node.args[0]))
    if isinstance(node, softplus):
        return sympy.log(1 + sympy.exp(node.args[0]))
    return node
