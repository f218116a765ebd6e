"""The token program of a step that reads records while its sums are still on their way.

A norm is a scalar factor of a vector. Taken out of a read's weights it leaves a vector that is
known before the norm's sum is, so that maxima, record sums and the program's own last sums are
ready at one barrier; the factor is applied to what the barrier gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy

from leapgen.algebra.symbols import RECORD_DECAY, RECORD_KEY, element
from leapgen.algebra.window import Read as WindowRead
from leapgen.algebra.window import Window
from leapgen.emit import names
from leapgen.emit.formula import Axes, Formula, formula, symbol_names
from leapgen.emit.program import (
    Definition,
    Phase,
    Program,
    assemble,
    definitions,
    weight_name,
)
from leapgen.emit.signature import Input


@dataclass(frozen=True)
class EarlyRead:
    """One read of the window, its weights split into what is known early and a late factor.

    name      symbol of the result, a V-element
    weight    K vector that payload and compensators are read with, but for a factor
    factor    that scalar
    vector    K vector in the sum over the keys for one record: vector * record is summed
    record    the record's part, in `rk` and, for a vector decay, `rG`; `plain`: it is rk
    outer     late scalar factor of that sum, in a scalar decay's `rG`
    """

    name: str
    weight: str
    factor: str
    vector: Formula
    record: Formula
    plain: bool
    outer: Formula


@dataclass(frozen=True)
class Early:
    """The program. A compensator is a record whose decay is 0.

    before, after   phases up to the last that has sums, and those that need its sums
    reads           the reads
    idle            inputs that only one warp needs, see Phase.deferred
    corrections, output, keys   as in the view; keys are those of the appended records
    k_arrays        names of all stored K vectors, each owned by the thread of its channel
    """

    before: tuple[Phase, ...]
    after: tuple[Phase, ...]
    reads: tuple[EarlyRead, ...]
    idle: frozenset[str]
    corrections: tuple[tuple[str, Formula], ...]
    output: Formula
    keys: tuple[Formula, ...]
    k_arrays: tuple[str, ...]
    quick: bool = True  # all powers of two are of exponents <= 0

    @property
    def k_owned(self) -> dict[str, str]:
        """Code of the element of each K vector at a thread's ii-th own channel."""
        return {name: f"{names.symbol(name)}[ii]" for name in self.k_arrays}

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases."""
        return (*self.before, *self.after)

    @property
    def matrix(self) -> bool:
        """Whether all record sums are products of the records' keys with a K vector."""
        return all(read.plain for read in self.reads)

    @property
    def gathered(self) -> tuple[str, ...]:
        """K vectors in the records' sums, of which a lane needs other lanes' elements."""
        used = {name for r in self.reads for name in (*r.vector.uses, *r.record.uses)}
        return tuple(name for name in self.k_arrays if name in used)


def early_program(window: Window, inputs: Sequence[Input]) -> Early | None:
    """The program, or None where a weight is not a late scalar times an early vector."""
    known = definitions(window, inputs)
    split = _Splitter(known)
    plain = {weight_name(read.symbol.name) for read in window.reads}
    known = [d for d in known if d.name not in plain]
    formulas: list[tuple[sympy.Expr, sympy.Expr]] = []
    for read in window.reads:
        factor, vector = split(read.payload)
        known.append(Definition(_weight(read), "formula", "K", vector))
        known.append(Definition(_factor(read), "formula", "", factor))
        factor, inner = split(read.record_inner)
        formulas.append((inner, read.record_outer * factor))
    outside = _used(window, formulas)
    program = assemble(window, known, outside)
    cut = 1 + max((i for i, phase in enumerate(program.phases) if phase.sums), default=0)
    before, after = program.phases[:cut], program.phases[cut:]
    ready = {item.name for phase in before for item in (*phase.scalars, *phase.keys)}
    wanted = {name for inner, _ in formulas for name in symbol_names(inner)}
    wanted |= {_weight(read) for read in window.reads}
    if not wanted - {RECORD_KEY.name, RECORD_DECAY.name} <= ready:
        return None
    return Early(
        before=before,
        after=after,
        reads=tuple(map(_read, window.reads, formulas, [program.axes] * len(formulas))),
        idle=_idle(program, before[-1], outside),
        corrections=program.corrections,
        output=program.output,
        keys=tuple(formula(record.key, program.axes) for record in window.records),
        k_arrays=program.stored("K"),
    )


def _weight(read: WindowRead) -> str:
    return f"e_{read.symbol.name}"


def _factor(read: WindowRead) -> str:
    return f"f_{read.symbol.name}"


def _read(read: WindowRead, parts: tuple[sympy.Expr, sympy.Expr], axes: Axes) -> EarlyRead:
    inner, outer = parts
    vector, record = inner.as_independent(RECORD_KEY, RECORD_DECAY, as_Add=False)
    return EarlyRead(
        name=read.symbol.name,
        weight=_weight(read),
        factor=_factor(read),
        vector=formula(vector, axes),
        record=formula(record, axes),
        plain=record == RECORD_KEY,
        outer=formula(outer, axes),
    )


def _used(window: Window, formulas: Iterable[tuple[sympy.Expr, sympy.Expr]]) -> set[str]:
    """Names that stay known to the end: of weights, and of the records that are appended."""
    used = {level.symbol.name for level in window.levels}
    used |= {part for read in window.reads for part in (_weight(read), _factor(read))}
    for pair in formulas:
        used |= {name for expression in pair for name in symbol_names(expression)}
    for record in window.records:
        used |= symbol_names(record.key)
    return used


def _idle(program: Program, last: Phase, outside: set[str]) -> frozenset[str]:
    """Inputs that nothing needs but scalars which one warp computes, due after the barrier."""
    late = last.deferred
    others = [item for p in program.phases for part in vars(p).values() for item in part]
    formulas = [item.formula for item in others if item not in late]
    formulas += [program.output, *(f for _, f in program.corrections)]
    used = outside | {name for f in formulas if f is not None for name in f.uses}
    return frozenset(item.name for item in late if item.kind == "input" and item.name not in used)


class _Splitter:
    """Splits a weight into its factors without, and with, symbols that range over the keys."""

    def __init__(self, known: Iterable[Definition]) -> None:
        self.keys = {RECORD_KEY.name}
        self.longer: dict[sympy.Symbol, sympy.Expr] = {}
        for d in known:
            if d.result_axis != "K":
                continue
            self.keys.add(d.name)
            if d.kind == "previous":
                self.keys.add(RECORD_DECAY.name)
            if d.kind == "formula":
                value = d.value.xreplace(self.longer)
                if symbol_names(self._parts(value)[0]):
                    self.longer[element(d.name)] = value

    def __call__(self, expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """(scalar, vector) of a product, vectors that are a scalar times another one written so."""
        return self._parts(expr.xreplace(self.longer))

    def _parts(self, expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        keys = [s for s in expr.free_symbols if s.name in self.keys]
        scalar, vector = expr.as_independent(*keys, as_Add=False)
        return scalar, vector
