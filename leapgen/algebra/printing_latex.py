"""LaTeX of element expressions."""

from __future__ import annotations

import re

import sympy
from sympy.printing.latex import LatexPrinter as SympyLatex

from leapgen.algebra.ordering import has_short_decimal, is_log2e, negative, split_product, terms_of
from leapgen.algebra.symbols import SumK, SumV

_GREEK = {"alpha", "beta", "gamma", "delta", "kappa", "rho", "eta", "theta", "lambda", "mu"}
_SPECIAL = {
    "rG": r"G_{r}",
    "rk": r"k_{r}",
    "K": r"d_k",
    "V": r"d_v",
}


def symbol_latex(name: str) -> str:
    """`k_raw` -> k^{raw}, `G1` -> G_{1}, `p_q_1` -> p_{q,1}, `A_log` -> A_{\\mathrm{log}}."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    if entry := re.fullmatch(r"(\w+)\[(\w)\]", name):
        return rf"{{{symbol_latex(entry[1])}}}_{{{entry[2]}}}"
    head, *tail = name.split("_")
    match = re.fullmatch(r"([A-Za-z]+?)(\d+|(?<=y)q)", head)
    if match:
        head, tail = match[1], [match[2], *tail]
    base = f"\\{head}" if head in _GREEK else head
    if len(base) > 1 and not base.startswith("\\"):
        base = rf"\mathrm{{{base}}}"
    tail = [t for t in tail if t]
    if not tail:
        return base
    marks = ",".join(t if len(t) == 1 or t.isdigit() else rf"\mathrm{{{t}}}" for t in tail)
    return f"{base}_{{{marks}}}"


class LatexPrinter(SympyLatex):  # type: ignore[misc]
    """SymPy's printer with the names and the order of this package.

    key_index   letter that sums over key channels run over
    """

    def __init__(self, key_index: str = "i") -> None:
        super().__init__()
        self.key_index = key_index

    def _print_Symbol(self, expr: sympy.Symbol, style: str = "plain") -> str:
        return symbol_latex(str(expr.name))

    def _print_Add(self, expr: sympy.Add, order: str | None = None) -> str:
        first, *rest = terms_of(expr)
        out = str(self._print(first))
        for term in rest:
            minus = negative(term)
            out += (" - " if minus else " + ") + str(self._print(-term if minus else term))
        return out

    def _print_Mul(self, expr: sympy.Mul) -> str:
        if negative(expr):
            return "- " + self._factor(-expr)
        numerator, denominator = split_product(expr)
        below = [f**-1 for f in numerator if f.is_Pow and f.exp.is_negative and not is_log2e(f)]
        above = [f for f in numerator if f**-1 not in below]
        sums = [f for f in above if isinstance(f, SumK | SumV)]
        if len(sums) == 1 and not below and not denominator:
            above = [f for f in above if f not in sums] + sums  # last, it needs no brackets
            *first, last = above
            return r" \, ".join([*(self._factor(f) for f in first), str(self._print(last))])
        top = r" \, ".join(self._factor(f) for f in above) or "1"
        if not denominator and not below:
            return top
        bottom = r" \, ".join(self._factor(f) for f in (*denominator, *below))
        return rf"\frac{{{top}}}{{{bottom}}}"

    def _print_Rational(self, expr: sympy.Rational) -> str:
        """Decimal fractions as they were written: 0.1, 10^{-6}."""
        if expr.is_Integer or not has_short_decimal(expr):
            return str(super()._print_Rational(expr))
        digits, _, power = repr(float(expr)).partition("e")
        if not power:
            return digits
        scale = f"10^{{{int(power)}}}"
        return scale if digits == "1" else rf"{digits} \cdot {scale}"

    def _print_Max(self, expr: sympy.Expr, exp: str | None = None) -> str:
        return self._extreme("max", expr)

    def _print_Min(self, expr: sympy.Expr, exp: str | None = None) -> str:
        return self._extreme("min", expr)

    def _extreme(self, name: str, expr: sympy.Expr) -> str:
        ordered = sorted(expr.args, key=lambda a: (bool(a.is_number), sympy.srepr(a)))
        inner = ", ".join(str(self._print(a)) for a in ordered)
        return rf"\{name}\left({inner}\right)"

    def _factor(self, expr: sympy.Expr) -> str:
        code = str(self._print(expr))
        open_ended = isinstance(expr, sympy.Add | SumK | SumV)
        return rf"\left({code}\right)" if open_ended else code

    def _print_Pow(self, expr: sympy.Pow) -> str:
        if is_log2e(expr):
            return r"\log_2 e"
        return str(super()._print_Pow(expr))

    def _print_exp2(self, expr: sympy.Expr) -> str:
        return f"2^{{{self._print(expr.args[0])}}}"

    def _print_SumK(self, expr: sympy.Expr) -> str:
        return rf"\sum_{{{self.key_index}}} {self._factor(expr.args[0])}"

    def _print_SumV(self, expr: sympy.Expr) -> str:
        return rf"\sum_{{j}} {self._factor(expr.args[0])}"

    def _print_unit_v(self, expr: sympy.Expr) -> str:
        return r"e_{d_v}"

    def _print_softplus(self, expr: sympy.Expr) -> str:
        return rf"\operatorname{{softplus}}\left({self._print(expr.args[0])}\right)"

    def _print_sigmoid(self, expr: sympy.Expr) -> str:
        return rf"\sigma\left({self._print(expr.args[0])}\right)"
