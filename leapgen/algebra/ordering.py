"""The order in which terms and factors are printed: by names, so it is the same on every run."""

from __future__ import annotations

import sympy

from leapgen.algebra.symbols import SumK, SumV, exp2, unit_v


def negative(term: sympy.Expr) -> bool:
    """Whether a term starts with a minus sign."""
    return bool(term.as_coeff_Mul()[0].is_negative)


def terms_of(expr: sympy.Add) -> list[sympy.Expr]:
    """Terms with the positive ones first; then short before long, then by name."""
    return sorted(expr.args, key=lambda t: (negative(t), bool(t.is_number), _key(t)))


def split_product(expr: sympy.Expr) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Numerator and denominator factors in printing order, signs included in the numerator.

    A reciprocal square root stays in the numerator: it is one instruction.
    """
    over: list[sympy.Expr] = []
    under: list[sympy.Expr] = []
    for factor in sympy.Mul.make_args(expr):
        if isinstance(factor, sympy.Rational) and not has_short_decimal(factor):
            over.append(sympy.Integer(factor.p))
            under.append(sympy.Integer(factor.q))
        elif isinstance(factor, sympy.Pow) and factor.exp.is_Integer and factor.exp.is_negative:
            if is_log2e(factor):
                over.append(factor)
            else:
                under.append(factor.base ** (-factor.exp))
        else:
            over.append(factor)
    over = [f for f in over if f != 1] or [sympy.S.One]
    return sorted(over, key=_factor_key), sorted(under, key=_factor_key)


def has_short_decimal(number: sympy.Rational) -> bool:
    """Whether the decimal fraction ends: no prime but 2 and 5 divides the denominator."""
    rest = int(number.q)
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def is_log2e(expr: sympy.Expr) -> bool:
    """Whether `expr` is the factor 1 / ln 2."""
    return bool(expr == 1 / sympy.log(2))


def _factor_key(factor: sympy.Expr) -> tuple[int, str]:
    """Numbers, sums and scalars of functions, symbols, brackets, exponentials last."""
    if factor.is_number:
        return (0, str(factor))
    if isinstance(factor, unit_v):
        return (3, "unit_v")
    if isinstance(factor, sympy.Symbol):
        return (2, factor.name)
    if isinstance(factor, SumK | SumV):
        return (1, _key(factor)[1])
    if isinstance(factor, exp2 | sympy.exp):
        return (5, _key(factor)[1])
    if isinstance(factor, sympy.Add):
        return (4, _key(factor)[1])
    return (3, _key(factor)[1])


def _key(expr: sympy.Expr) -> tuple[int, str]:
    """Length and a canonical spelling (SymPy's own, which sorts by class and name)."""
    spelling = sympy.srepr(expr)
    return (sum(1 for _ in sympy.preorder_traversal(expr)), spelling)
