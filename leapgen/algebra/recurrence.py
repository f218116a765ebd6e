"""The canonical recurrence of one token, in SymPy: what `lower` makes of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from leapgen.algebra.affine import StateMap, substitute
from leapgen.algebra.digest import RARE, digest
from leapgen.algebra.symbols import READ, SumK, SumV, free_axes, symbols_of
from leapgen.diagnostics import Span
from leapgen.spec.model import Input
from leapgen.tensors import Axis, Per


@dataclass(frozen=True)
class Quantity:
    """Where an element symbol ranges and which heads it belongs to."""

    symbol: sympy.Symbol
    axis: Axis
    per: Per


@dataclass(frozen=True)
class Assignment:
    """symbol = expression, element by element; reductions are SumK(...) and SumV(...).

    Names are unique: an input that a definition of the same name replaces is called `<name>_raw`.
    """

    target: Quantity
    expression: sympy.Expr


@dataclass(frozen=True)
class Step:
    """One sub-step: u = gain * (value - S^T read); S <- decay S + key u^T (paper eq. 3).

    log_decay   natural log of the decay (None: no decay), <= 0; `decay_axis` is SCALAR or KEY
    constant    the decay is the same for every token, so a record need not store it
    read        always reads the state before this sub-step's decay; None: nothing is read
    value       None: zero
    gain        None: one
    """

    log_decay: sympy.Expr | None
    decay_axis: Axis
    key: sympy.Expr
    read: sympy.Expr | None
    value: sympy.Expr | None
    gain: sympy.Expr | None
    constant: bool = False


@dataclass(frozen=True)
class Native:
    """The update as the model's authors write it, with the place it stands at for messages."""

    text: str
    update: StateMap
    path: str = ""
    span: Span | None = None
    source: str = field(repr=False, default="")


@dataclass(frozen=True)
class Recurrence:
    """A token: assignments from raw inputs to coefficients, then sub-steps, then the output.

    Sums over channels stand in assignments only, and in `result` where they sum what is read.
    `quantities` has every symbol by name, inputs under their unique names. `symbol_of` gives the
    unique name of an input.
    """

    name: str
    inputs: tuple[Input, ...]
    assignments: tuple[Assignment, ...]
    quantities: Mapping[str, Quantity]
    steps: tuple[Step, ...]
    query: sympy.Expr
    reads_updated: bool
    add: sympy.Expr | None
    output_dtype: str
    input_symbols: Mapping[str, str] = field(default_factory=dict)
    native: Native | None = None
    # the output as a formula of `o`, what the query reads with `add`; None: the output is `o`
    result: sympy.Expr | None = field(default=None, metadata={RARE: True})

    @property
    def axes(self) -> dict[str, Axis]:
        """Axis of every symbol by name."""
        return {name: q.axis for name, q in self.quantities.items()}

    @property
    def level_steps(self) -> tuple[bool, ...]:
        """For each sub-step, whether it opens a level of cumulative decay: it decays, or it is
        the first and a later one decays (so that every record has a level of its own token)."""
        decays = [s.log_decay is not None for s in self.steps]
        return tuple(d or (j == 0 and any(decays)) for j, d in enumerate(decays))

    @property
    def definitions(self) -> dict[sympy.Symbol, sympy.Expr]:
        """Right-hand side of every assigned symbol."""
        return {a.target.symbol: a.expression for a in self.assignments}

    def inline(self, expr: sympy.Expr) -> sympy.Expr:
        """`expr` in raw inputs only."""
        return substitute(expr, self.definitions)

    def symbol_of(self, input_name: str) -> sympy.Symbol:
        """The element symbol of a raw input."""
        return self.quantities[self.input_symbols.get(input_name, input_name)].symbol

    def per_of(self, expr: sympy.Expr) -> Per:
        """VALUE if anything in `expr` belongs to value heads."""
        pers = {self.quantities[s.name].per for s in symbols_of(expr) if s.name in self.quantities}
        return Per.VALUE if Per.VALUE in pers else Per.KEY

    def digest(self) -> str:
        """Stable over runs and machines; places in files do not count."""
        return digest(self)

    def check(self) -> None:
        """Raise ValueError if a symbol is used before it is known, or varies along a wrong axis."""
        known = {self.symbol_of(i.name) for i in self.inputs}
        for assignment in self.assignments:
            _check_known(assignment.expression, known)
            _check_axes(assignment.expression, assignment.target.axis, self.axes)
            known.add(assignment.target.symbol)
        if self.result is not None:
            _check_known(self.result, known | {READ})
            _check_axes(self.result, Axis.VALUE, {**self.axes, READ.name: Axis.VALUE})
        for expr, axis in self._element_expressions():
            _check_known(expr, known)
            _check_axes(expr, axis, self.axes)
            if expr.has(SumK, SumV):
                raise ValueError(f"a sum outside the assignments: {expr}")

    def _element_expressions(self) -> list[tuple[sympy.Expr, Axis]]:
        found: list[tuple[sympy.Expr | None, Axis]] = [
            (self.query, Axis.KEY),
            (self.add, Axis.VALUE),
        ]
        for step in self.steps:
            found += [(step.log_decay, step.decay_axis), (step.key, Axis.KEY)]
            found += [(step.read, Axis.KEY), (step.value, Axis.VALUE), (step.gain, Axis.VALUE)]
        return [(expr, axis) for expr, axis in found if expr is not None]


def _check_known(expr: sympy.Expr, known: set[sympy.Symbol]) -> None:
    missing = [s.name for s in symbols_of(expr) if s not in known and s.name not in ("K", "V")]
    if missing:
        raise ValueError(f"used before it is known: {', '.join(missing)}")


def _check_axes(expr: sympy.Expr, axis: Axis, axes: Mapping[str, Axis]) -> None:
    allowed = frozenset() if axis is Axis.SCALAR else frozenset({axis})
    if not free_axes(expr, axes) <= allowed:
        raise ValueError(f"{expr} varies along another axis than {axis.name}")
