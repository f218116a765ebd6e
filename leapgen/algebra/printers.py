"""Printers: one expression tree as TileLang, NumPy, text or LaTeX.

The order of terms and factors depends on names only (never on hashes): printed text is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from leapgen.algebra.printing import CodePrinter, NumpyPrinter, TextPrinter, TilelangPrinter
from leapgen.algebra.printing_latex import LatexPrinter
from leapgen.algebra.symbols import SUMS, rewrite_bottom_up, symbols_of
from leapgen.tensors import Axis

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


def latex(expr: sympy.Expr, axes: Mapping[str, Axis] | None = None, key_index: str = "i") -> str:
    """LaTeX without delimiters.

    axes        axis of every symbol by name; given, symbols under a sum get its index
    key_index   letter that sums over key channels run over (j over value channels)
    """
    if axes is not None:
        table = axes
        expr = rewrite_bottom_up(expr, lambda node: _with_index(node, table, key_index))
    return str(LatexPrinter(key_index).doprint(expr))


def _with_index(node: sympy.Expr, axes: Mapping[str, Axis], key_index: str) -> sympy.Expr:
    axis = SUMS.get(type(node))
    if axis is None:
        return node
    index = key_index if axis is Axis.KEY else "j"
    names = [s for s in symbols_of(node) if axes.get(s.name) is axis]
    return node.xreplace({s: sympy.Symbol(f"{s.name}[{index}]", real=True) for s in names})


def _code(printer: CodePrinter, expr: sympy.Expr) -> str:
    return printer.print(sympy.sympify(expr))


def _lookup(names: Names | None) -> Callable[[str], str]:
    if names is None:
        return lambda name: name
    if isinstance(names, Mapping):
        table = names
        return lambda name: table.get(name, name)
    return names
