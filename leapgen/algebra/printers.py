"""Printers: one expression tree as TileLang, NumPy, text or LaTeX.

The order of terms and factors depends on names only (never on hashes): printed text is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from leapgen.algebra.printing import CodePrinter, NumpyPrinter, TextPrinter, TilelangPrinter
from leapgen.algebra.printing_latex import LatexPrinter

Names = Callable[[str], str] | Mapping[str, str]


def tilelang(expr: sympy.Expr, names: Names | None = None) -> str:
    """TileLang code of an element expression, FP32.

    names    symbol name -> code of that element; an absent name prints as itself
    Raises ValueError for a sum: reductions are taken out first (`stages.split_reductions`).
    """
    return _code(TilelangPrinter(_lookup(names)), expr)


def numpy(expr: sympy.Expr, names: Names | None = None) -> str:
    """NumPy code; `np` must be in scope. Sums raise ValueError as in `tilelang`."""
    return _code(NumpyPrinter(_lookup(names)), expr)


def text(expr: sympy.Expr, names: Names | None = None) -> str:
    """Plain text for docstrings and messages: `beta*(v - y1)`, `sum_K(k*q)`."""
    return _code(TextPrinter(_lookup(names)), expr)


def latex(expr: sympy.Expr) -> str:
    """LaTeX without delimiters; key channels have the index i."""
    return str(LatexPrinter().doprint(expr))


def _code(printer: CodePrinter, expr: sympy.Expr) -> str:
    return printer.print(sympy.sympify(expr))


def _lookup(names: Names | None) -> Callable[[str], str]:
    if names is None:
        return lambda name: name
    if isinstance(names, Mapping):
        table = names
        return lambda name: table.get(name, name)
    return names
