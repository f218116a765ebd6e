"""The code and text printers. `printers` has the functions that others call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import sympy

from leapgen.algebra.ordering import is_log2e, negative, split_product, terms_of
from leapgen.algebra.symbols import (
    SOFTPLUS_LINEAR,
    K,
    SumK,
    SumV,
    V,
    exp2,
    sigmoid,
    softplus,
    unit_v,
)


class Piece(NamedTuple):
    """Printed code with how tightly its outermost operator binds."""

    code: str
    binds: int


ADD, OVER, MUL, POW, ATOM = 1, 2, 3, 4, 5


class CodePrinter:
    """Infix code; subclasses name the functions and spell the numbers."""

    times, over = " * ", " / "

    def __init__(self, name: Callable[[str], str]) -> None:
        self.name = name

    def print(self, expr: sympy.Expr) -> str:
        """The code of `expr` without outer brackets."""
        return self.piece(expr).code

    def inside(self, expr: sympy.Expr, binds: int) -> str:
        """Code of an operand, in brackets if its operator binds less than `binds`."""
        piece = self.piece(expr)
        return piece.code if piece.binds >= binds else f"({piece.code})"

    def piece(self, expr: sympy.Expr) -> Piece:
        """Dispatch on the kind of node; raises ValueError for one that has no code."""
        if expr.is_number:
            return self._number(expr)
        if expr.free_symbols <= {K, V} and not expr.has(unit_v):
            return self._dimension(expr)
        if isinstance(expr, sympy.Symbol):
            return Piece(self.name(expr.name), ATOM)
        if isinstance(expr, sympy.Add):
            return self._addition(expr)
        if isinstance(expr, sympy.Mul):
            return self._product(expr)
        if isinstance(expr, sympy.Pow):
            return self._power(expr)
        return self._call(expr)

    def _number(self, expr: sympy.Expr) -> Piece:
        """A float literal: the double nearest to the exact number."""
        value = float(expr)
        if not math.isfinite(value):
            raise ValueError(f"{expr} has no finite value")
        return Piece(repr(value), ATOM if value >= 0 else MUL)

    def _dimension(self, expr: sympy.Expr) -> Piece:
        """An expression in K and V alone: Python arithmetic at shape time."""
        return Piece(*TextPrinter(lambda name: name).piece(expr))

    def _addition(self, expr: sympy.Add) -> Piece:
        """`a + b - c`."""
        first, *rest = terms_of(expr)
        code = self.inside(first, ADD)
        for term in rest:
            sign, size = (" - ", -term) if negative(term) else (" + ", term)
            code += sign + self.inside(size, OVER)
        return Piece(code, ADD)

    def _product(self, expr: sympy.Expr) -> Piece:
        """`-2 * a * b / c`."""
        if negative(expr):
            return Piece("-" + self.inside(-expr, OVER), MUL)
        numerator, denominator = split_product(expr)
        numerator = _binary_logarithm(numerator)
        above = self.times.join(self.inside(f, MUL) for f in numerator)
        if not denominator:
            return Piece(above, MUL)
        return Piece(above + self.over + self.inside(sympy.Mul(*denominator), POW), OVER)

    def _power(self, expr: sympy.Pow) -> Piece:
        """Small integer powers as products, square roots and their reciprocals; else `pow`."""
        base, exponent = expr.base, expr.exp
        if exponent == sympy.Rational(1, 2):
            return self._function("sqrt", base)
        if exponent == sympy.Rational(-1, 2):
            return self._function("rsqrt", base)
        if exponent.is_Integer and exponent.is_negative:
            return Piece("1.0" + self.over + self.inside(base**-exponent, POW), OVER)
        if exponent.is_Integer and exponent <= 4:
            return Piece(self.times.join([self.inside(base, POW)] * int(exponent)), MUL)
        return Piece(self._pair("pow", self.print(base), exponent), ATOM)

    def _call(self, expr: sympy.Expr) -> Piece:
        """A named function of element expressions."""
        if isinstance(expr, SumK | SumV):
            raise ValueError(f"a sum inside an element expression: {expr}")
        if isinstance(expr, unit_v):
            return self._unit()
        if isinstance(expr, sigmoid):
            return self._sigmoid(expr.args[0])
        if isinstance(expr, softplus):
            return self._softplus(expr.args[0])
        if isinstance(expr, sympy.Max | sympy.Min):
            return self._extreme("max" if isinstance(expr, sympy.Max) else "min", expr)
        for kind, name in _FUNCTIONS.items():
            if isinstance(expr, kind):
                return self._function(name, expr.args[0])
        raise ValueError(f"no code for {type(expr).__name__}")

    def _function(self, name: str, argument: sympy.Expr) -> Piece:
        """A function of one argument, by its plain name."""
        raise NotImplementedError

    def _sigmoid(self, x: sympy.Expr) -> Piece:
        """1 / (1 + exp(-x))."""
        inner = self._function("exp", -x).code
        return Piece(f"1.0{self.over}(1.0 + {inner})", OVER)

    def _softplus(self, x: sympy.Expr) -> Piece:
        """log(1 + exp(x)), linear for large x."""
        raise NotImplementedError

    def _unit(self) -> Piece:
        """1 in the last value channel, else 0."""
        raise NotImplementedError

    def _extreme(self, name: str, expr: sympy.Expr) -> Piece:
        """`max` or `min` of two or more arguments, numbers last."""
        first, *rest = sorted(expr.args, key=lambda a: (bool(a.is_number), sympy.srepr(a)))
        code = self.print(first)
        for argument in rest:
            code = self._pair(name, code, argument)
        return Piece(code, ATOM)

    def _pair(self, name: str, left: str, right: sympy.Expr) -> str:
        """`max`, `min` or `pow` of two."""
        raise NotImplementedError


class log2(sympy.Function):  # type: ignore[misc]
    """The binary logarithm, where a product is printed."""

    nargs = 1


def _binary_logarithm(factors: list[sympy.Expr]) -> list[sympy.Expr]:
    """log2(e) * log(x) as log2(x)."""
    scale = next((f for f in factors if is_log2e(f)), None)
    natural = next((f for f in factors if isinstance(f, sympy.log) and not f.is_number), None)
    if scale is None or natural is None:
        return factors
    rest = [f for f in factors if f is not scale and f is not natural]
    return [*rest, log2(natural.args[0])]


_FUNCTIONS: dict[type[sympy.Basic], str] = {
    exp2: "exp2",
    sympy.exp: "exp",
    sympy.log: "log",
    log2: "log2",
    sympy.tanh: "tanh",
    sympy.cos: "cos",
    sympy.sin: "sin",
    sympy.Abs: "abs",
}


class TilelangPrinter(CodePrinter):
    """TileLang expressions in FP32."""

    def _function(self, name: str, argument: sympy.Expr) -> Piece:
        return Piece(f"T.{name}({self.print(argument)})", ATOM)

    def _softplus(self, x: sympy.Expr) -> Piece:
        plain, product = self.print(x), self._function("exp", x).code
        test = f"{self.inside(x, ADD)} > {float(SOFTPLUS_LINEAR)}"
        return Piece(f"T.if_then_else({test}, {plain}, T.log(1.0 + {product}))", ATOM)

    def _unit(self) -> Piece:
        return Piece("T.if_then_else(vv == V - 1, 1.0, 0.0)", ATOM)

    def _pair(self, name: str, left: str, right: sympy.Expr) -> str:
        code = self.print(right)
        if not right.is_number:
            return f"T.{name}({left}, {code})"
        number = f"T.float32({code})"
        if name == "pow":
            return f"T.pow({left}, {number})"
        # NaN passes, as in NumPy; T.max and T.min drop it on a GPU.
        sign = "<" if name == "max" else ">"
        return f"T.if_then_else({left} {sign} {number}, {number}, {left})"


class NumpyPrinter(CodePrinter):
    """NumPy; `np` is in scope."""

    def _function(self, name: str, argument: sympy.Expr) -> Piece:
        code = self.print(argument)
        if name == "rsqrt":
            return Piece(f"1.0 / np.sqrt({code})", OVER)
        return Piece(f"np.{name}({code})", ATOM)

    def _softplus(self, x: sympy.Expr) -> Piece:
        # The smaller argument keeps the unused branch of `where` from overflowing.
        code, limit = self.print(x), float(SOFTPLUS_LINEAR)
        inner = f"np.log(1.0 + np.exp(np.minimum({code}, {limit})))"
        return Piece(f"np.where({self.inside(x, ADD)} > {limit}, {code}, {inner})", ATOM)

    def _unit(self) -> Piece:
        return Piece("(np.arange(V) == V - 1)", ATOM)

    def _pair(self, name: str, left: str, right: sympy.Expr) -> str:
        name = "power" if name == "pow" else f"{name}imum"
        return f"np.{name}({left}, {self.print(right)})"


class TextPrinter(CodePrinter):
    """Text for people: sums, named functions and exact numbers as written."""

    times, over = "*", "/"

    def _dimension(self, expr: sympy.Expr) -> Piece:
        if isinstance(expr, sympy.Symbol):
            return Piece(self.name(expr.name), ATOM)
        if isinstance(expr, sympy.Add):
            return self._addition(expr)
        if isinstance(expr, sympy.Mul):
            return self._product(expr)
        return self._power(expr)

    def _number(self, expr: sympy.Expr) -> Piece:
        if is_log2e(expr):
            return Piece("log2(e)", ATOM)
        if isinstance(expr, sympy.Mul) and expr.has(sympy.log):
            return self._product(expr)
        if expr.is_Integer:
            return Piece(str(expr), ATOM if expr >= 0 else MUL)
        return super()._number(expr)

    def _power(self, expr: sympy.Pow) -> Piece:
        if expr.exp == sympy.Rational(-1, 2) and not expr.free_symbols <= {K, V}:
            return self._function("rsqrt", expr.base)
        if expr.exp == sympy.Rational(1, 2):
            return self._function("sqrt", expr.base)
        if expr.exp.is_Integer and expr.exp.is_negative:
            return Piece("1" + self.over + self.inside(expr.base**-expr.exp, POW), OVER)
        return Piece(f"{self.inside(expr.base, ATOM)}**{self.inside(expr.exp, MUL)}", POW)

    def _call(self, expr: sympy.Expr) -> Piece:
        if isinstance(expr, SumK | SumV):
            letter = "K" if isinstance(expr, SumK) else "V"
            return self._function(f"sum_{letter}", expr.args[0])
        return super()._call(expr)

    def _function(self, name: str, argument: sympy.Expr) -> Piece:
        return Piece(f"{name}({self.print(argument)})", ATOM)

    def _sigmoid(self, x: sympy.Expr) -> Piece:
        return self._function("sigmoid", x)

    def _softplus(self, x: sympy.Expr) -> Piece:
        return self._function("softplus", x)

    def _unit(self) -> Piece:
        return Piece("unit(V)", ATOM)

    def _pair(self, name: str, left: str, right: sympy.Expr) -> str:
        return f"{name}({left}, {self.print(right)})"
