"""Formulas on their way into text: printed once, with holes where a template puts its variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from leapgen.algebra import printers
from leapgen.emit import names

Axes = Mapping[str, str]
"""Symbol name -> "K", "V" (stored vectors), "" (a scalar or a transient): how it is indexed."""


@dataclass(frozen=True)
class Style:
    """How a target writes a stored K vector, a V-element and a scalar; `{}` is the name."""

    K: str
    V: str
    S: str = "{}"

    def write(self, name: str, axis: str) -> str:
        """Code of one symbol."""
        pattern = {"K": self.K, "V": self.V, "": self.S}[axis]
        return pattern.format(names.symbol(name))


@dataclass(frozen=True)
class Formula:
    """TileLang code of one element expression.

    text      Python with `{name}` in place of each symbol
    symbols   (name, axis) of each hole; see Axes
    """

    text: str
    symbols: tuple[tuple[str, str], ...]

    def code(self, style: Style, **override: str) -> str:
        """The code with every hole filled; `override` gives the code of single symbols."""
        return self.text.format_map(
            {name: override.get(name) or style.write(name, axis) for name, axis in self.symbols}
        )

    @property
    def uses(self) -> frozenset[str]:
        """Names of the symbols in it."""
        return frozenset(name for name, _ in self.symbols)


def formula(expression: sympy.Expr, axes: Axes) -> Formula:
    """Prints `expression`, a reduction-free element expression over the symbols of `axes`.

    The dimensions K and V are plain Python names of the generated builders.
    """
    used = sorted(symbol_names(expression))
    missing = [name for name in used if name not in axes]
    if missing:
        raise KeyError(f"no axis known for the symbols {', '.join(missing)} of {expression}")
    text = printers.tilelang(expression, _hole)
    return Formula(text, tuple((name, axes[name]) for name in used))


def _hole(name: str) -> str:
    return name if name in DIMENSIONS else "{" + name + "}"


DIMENSIONS = frozenset({"K", "V"})


def symbol_names(expression: sympy.Expr) -> frozenset[str]:
    """Names of the element symbols of an expression (dimensions left out)."""
    found = {symbol.name for symbol in expression.free_symbols}
    return frozenset(found - DIMENSIONS)
