"""The token program: what a step computes before and after its pass over the payload.

Everything that does not depend on the state (coefficients, cumulative decays, read vectors, weights
between the token's own records) is put into as few phases as possible. A phase ends in sums over a
head's channels; on a GPU that is one reduction across the block, whatever the number of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from leapgen.algebra.stages import split_reductions
from leapgen.algebra.symbols import CURSOR_DECAY, RECORD_DECAY, RECORD_KEY
from leapgen.algebra.window import DecaySource, Window
from leapgen.emit.formula import Formula, formula, symbol_names
from leapgen.emit.signature import Input
from leapgen.tensors import Axis

OUTPUT = "out"  # a reserved word, so no symbol of a spec has this name


@dataclass(frozen=True)
class Item:
    """One named value of the program.

    kind      input (load it), previous (the decay before the token), formula, or sum
    axis      "K", "V" or ""; of a sum: the axis that is summed over (its value is a scalar)
    formula   the value, or the summand; None for input and previous
    load      the raw input, for kind input
    stored    used outside its own loop; otherwise a transient of that loop
    """

    name: str
    kind: str
    axis: str
    formula: Formula | None
    load: Input | None
    stored: bool


@dataclass(frozen=True)
class Phase:
    """Scalars, then one loop over keys, then over values; the sums are ready after the phase."""

    scalars: tuple[Item, ...]
    keys: tuple[Item, ...]
    values: tuple[Item, ...]
    sums: tuple[Item, ...]

    @property
    def key_sums(self) -> tuple[Item, ...]:
        """Sums over the key channels."""
        return tuple(i for i in self.sums if i.axis == "K")

    @property
    def value_sums(self) -> tuple[Item, ...]:
        """Sums over the value channels."""
        return tuple(i for i in self.sums if i.axis == "V")

    @property
    def deferred(self) -> tuple[Item, ...]:
        """Scalars that nothing else in a phase with sums needs: they are due after its barrier."""
        if not self.sums:
            return ()
        found: list[Item] = []
        wanted = _symbols((*self.keys, *self.values, *self.sums))
        for item in reversed(self.scalars):
            if item.name in wanted:
                wanted |= _symbols((item,))
            else:
                found.append(item)
        return tuple(found[::-1])


def _symbols(items: Iterable[Item]) -> set[str]:
    return {name for i in items if i.formula is not None for name, _ in i.formula.symbols}


@dataclass(frozen=True)
class Definition:
    """A value before it is printed; kind and axis as in Item."""

    name: str
    kind: str
    axis: str
    expression: sympy.Expr | None
    load: Input | None = None

    @property
    def summed(self) -> bool:
        """Whether the value is a sum over `axis`."""
        return self.kind == "sum"

    @property
    def value(self) -> sympy.Expr:
        """Its expression. Errors: ValueError where it has none."""
        if self.expression is None:
            raise ValueError(f"{self.name} has no expression")
        return self.expression

    @property
    def uses(self) -> frozenset[str]:
        """Names of the symbols that its value needs."""
        return frozenset() if self.expression is None else symbol_names(self.expression)

    @property
    def result_axis(self) -> str:
        """What the value ranges over."""
        return "" if self.summed else self.axis


@dataclass(frozen=True)
class Program:
    """The whole token.

    phases        what does not depend on the state
    axes          name -> how it is indexed ("" for scalars, sums and transients)
    corrections   u1, u2, ... with their formulas, V-elements
    output        formula of the output, a V-element; of `o` where the output sums over it
    result        formula of the output in `o` and in result_sums (name, what is summed over values)
    """

    phases: tuple[Phase, ...]
    axes: Mapping[str, str]
    corrections: tuple[tuple[str, Formula], ...]
    output: Formula
    result: Formula | None = None
    result_sums: tuple[tuple[str, Formula], ...] = ()

    def stored(self, axis: str) -> tuple[str, ...]:
        """Names of all stored vectors of axis "K" or "V", in order."""
        items = (i for p in self.phases for i in (p.keys if axis == "K" else p.values))
        return tuple(i.name for i in items if i.stored)


def weight_name(read: str) -> str:
    """Name of a weight. Of a read: the K vector that the payload is read with; of a correction: the
    one that it is written with; of "S": what an update leaves of the state."""
    return f"x_{read}"


def token_program(window: Window, inputs: Sequence[Input], windowed: bool = True) -> Program:
    """The token of a window; `inputs` in the order of the recurrence's.

    windowed   False: the window has this one token, which is folded into the state at once; the
               weights of that update are values of the program, and nothing is kept for records
    """
    updates = () if windowed else update_weights(window)
    outside = _used_by_records(window) if windowed else {d.name for d in updates}
    outside |= {weight_name(r.symbol.name) for r in window.reads}
    return assemble(window, definitions(window, inputs) + list(updates), outside)


def assemble(window: Window, known: Sequence[Definition], outside: Iterable[str]) -> Program:
    """The program of `known` definitions, each after what it uses.

    outside   names that are used beside the corrections and the output
    """
    results = [c.symbol.name for c in window.corrections] + [OUTPUT]
    final = {d.name: d for d in known if d.name in results}
    before = [d for d in known if d.name not in results]
    parts = window.result.parts if window.result is not None else ()
    last = {name for part in parts for name in symbol_names(part)}
    roots = {*outside, *last, *(name for d in final.values() for name in d.uses)}
    kept = _needed(before, roots)
    level = _levels(kept)
    stored = _stored(kept, level, roots)
    axes = {d.name: d.result_axis if d.name in stored else "" for d in kept}
    axes |= dict.fromkeys((r.symbol.name for r in window.reads), "V")
    axes |= dict.fromkeys((*results, *last - set(axes)), "")
    axes |= {"rk": "K", "rG": decay_axis(window), "G": decay_axis(window)}
    return Program(
        phases=_phases(kept, level, stored, axes),
        axes=axes,
        corrections=tuple((n, formula(final[n].value, axes)) for n in results[:-1]),
        output=formula(final[OUTPUT].value, axes),
        result=formula(parts[0], axes) if parts else None,
        result_sums=tuple((s.name, formula(e, axes)) for s, e in window.result.sums)
        if window.result is not None
        else (),
    )


def decay_axis(window: Window) -> str:
    """ "K" where some cumulative decay is a vector, else ""."""
    return "K" if any(level.axis is Axis.KEY for level in window.levels) else ""


def definitions(window: Window, inputs: Sequence[Input]) -> list[Definition]:
    """Every value of the token in an order in which each is computable, sums taken out."""
    found = [Definition(i.symbol, "input", i.axis, None, i) for i in inputs]
    if window.previous is not None:
        found.append(Definition(window.previous.name, "previous", decay_axis(window), None))
    for stage in split_reductions(window):
        for a in (*stage.scalars, *stage.vectors_k, *stage.vectors_v):
            found.append(_formula(a.target.symbol.name, a.target.axis, a.expression))
        for r in stage.reductions:
            found.append(Definition(r.target.symbol.name, "sum", r.axis.value, r.inner))
    for read in window.reads:
        found.append(_formula(weight_name(read.symbol.name), Axis.KEY, read.payload))
    for correction in window.corrections:
        found.append(_formula(correction.symbol.name, Axis.VALUE, correction.expression))
    found.append(_formula(OUTPUT, Axis.VALUE, window.output))
    return found


def _formula(name: str, axis: Axis, expression: sympy.Expr) -> Definition:
    return Definition(name, "formula", axis.value, expression)


def update_weights(window: Window) -> tuple[Definition, ...]:
    """S <- x_S * S + sum_j x_uj u_j^T: the rebuild of a window that holds this token alone, its
    cursor at the token's last decay. x_S is absent where nothing decays."""
    top = window.levels[-1].symbol if window.levels else None
    cursor = {} if top is None else {CURSOR_DECAY: top}
    kept = window.rebuild.payload.xreplace(cursor)
    axis = Axis.KEY if decay_axis(window) else Axis.SCALAR
    found = [] if kept == 1 else [_formula(weight_name("S"), axis, kept)]
    for record in window.records:
        own = {} if record.decay is None else {RECORD_DECAY: record.decay}
        weight = window.rebuild.record.xreplace({**cursor, **own, RECORD_KEY: record.key})
        found.append(_formula(weight_name(record.correction.name), Axis.KEY, weight))
    return tuple(found)


def _used_by_records(window: Window) -> set[str]:
    """Names used by reads of records and by appended records."""
    told = window.decay_source is DecaySource.KEY  # the levels are then not written
    used = set() if told else {level.symbol.name for level in window.levels}
    for read in window.reads:
        used |= symbol_names(read.record_inner) | symbol_names(read.record_outer)
    for record in window.records:
        used |= symbol_names(record.key)
    return used


def _needed(known: Sequence[Definition], roots: set[str]) -> list[Definition]:
    """Only the definitions that `roots` depend on; the order stays."""
    wanted, kept = set(roots), []
    for definition in reversed(known):
        if definition.name in wanted:
            wanted |= definition.uses
            kept.append(definition)
    return kept[::-1]


def _levels(known: list[Definition]) -> dict[str, int]:
    """The phase in which each name can first be used; a sum is usable one phase later."""
    level: dict[str, int] = {}
    for d in known:
        own = max((level[name] for name in d.uses), default=0)
        level[d.name] = own + d.summed
    return level


def _stored(known: list[Definition], level: Mapping[str, int], outside: set[str]) -> frozenset[str]:
    """Names used by another loop than their own. Only K-elements can be transients."""
    axes = {d.name: d.result_axis for d in known}
    stored = set(outside) | {name for name, axis in axes.items() if axis != "K"}
    for d in known:
        loop = (level[d.name] - d.summed, d.axis)
        own = {name for name in d.uses if (level[name], axes[name]) == loop}
        stored |= d.uses - own
    return frozenset(stored)


def _phases(
    known: list[Definition],
    level: Mapping[str, int],
    stored: frozenset[str],
    axes: Mapping[str, str],
) -> tuple[Phase, ...]:
    placed: dict[tuple[int, str], list[Item]] = {}
    for d in known:
        printed = None if d.expression is None else formula(d.expression, axes)
        item = Item(d.name, d.kind, d.axis, printed, d.load, d.name in stored)
        kind = "sum" if d.summed else d.axis
        placed.setdefault((level[d.name] - d.summed, kind), []).append(item)
    count = 1 + max((number for number, _ in placed), default=-1)
    return tuple(
        Phase(*(tuple(placed.get((number, kind), ())) for kind in ("", "K", "V", "sum")))
        for number in range(count)
    )
