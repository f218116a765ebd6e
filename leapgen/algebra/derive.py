"""Recurrence -> Window: weights, token program and rebuild, derived and proved.

The state at level L of a token is, for cumulative log2 decays G since the window start,
    S = 2^L S0 + sum over records r of 2^(L - rG) rk u_r^T        (paper eq. 4)
so a read S^T x weighs the payload with 2^L x and each record with (2^(L - rG) rk)^T x (eq. 9).
Compensators are records with rG = 0 (eq. 10).
"""

from __future__ import annotations

import sympy

from leapgen.algebra.decay import Ladder, absorb, ladder, told_by_key
from leapgen.algebra.induction import prove_window
from leapgen.algebra.proof import prove_native
from leapgen.algebra.recurrence import Quantity, Recurrence
from leapgen.algebra.symbols import (
    CURSOR_DECAY,
    READ,
    RECORD_DECAY,
    RECORD_KEY,
    SUMS,
    element,
    exp2,
    level_symbol,
    rewrite_bottom_up,
)
from leapgen.algebra.window import Correction, NewRecord, Pair, Read, Rebuild, Result, Window
from leapgen.tensors import Axis, Per


def derive(recurrence: Recurrence, *, prove: bool = True) -> Window:
    """The window form of a recurrence.

    prove    prove the native update and the window, and keep the proofs; tests that check
             wrong recurrences turn it off
    Raises:
        Diagnostics: the native update differs from the sub-steps.
    """
    rungs = ladder(recurrence)
    native = (prove_native(recurrence),) if prove and recurrence.native else ()
    window = _Derivation(recurrence, rungs).window()
    window.check()
    return window.with_proofs((*native, *prove_window(window))) if prove else window


class _Derivation:
    def __init__(self, recurrence: Recurrence, rungs: Ladder) -> None:
        self.recurrence = recurrence
        self.rungs = rungs
        self.vector_decay = any(level.axis is Axis.KEY for level in rungs.levels)

    def window(self) -> Window:
        rec = self.recurrence
        reads, pairs, corrections = [], [], []
        for j, step in enumerate(rec.steps, 1):
            result: sympy.Expr = step.value if step.value is not None else sympy.S.Zero
            if step.read is not None:
                read = self.read(str(j), step.read, self.rungs.before[j - 1])
                weights = self.pairs(str(j), read, j - 1)
                reads.append(read)
                pairs += weights
                result = result - self.total(read, weights)
            gain = step.gain if step.gain is not None else sympy.S.One
            corrections.append(Correction(correction_symbol(j), gain * result))
        seen = len(rec.steps) if rec.reads_updated else 0
        query = self.read("q", rec.query, self.rungs.top if rec.reads_updated else 0)
        weights = self.pairs("q", query, seen)
        output = self.total(query, weights) + (rec.add if rec.add is not None else 0)
        result = result_of(rec.result) if rec.result is not None else None
        if result is not None and not result.sums:
            output, result = result.expression.xreplace({READ: output}), None
        previous = level_symbol(0) if self.rungs.decaying else None
        return Window(
            recurrence=rec,
            levels=self.rungs.levels,
            previous=previous,
            reads=(*reads, query),
            pairs=(*pairs, *weights),
            corrections=tuple(corrections),
            output=output,
            records=tuple(self.record(j) for j in range(1, len(rec.steps) + 1)),
            rebuild=self.rebuild(),
            proofs=(),
            quantities=self.quantities([*reads, query], [*pairs, *weights]),
            told=told_by_key(rec, self.rungs),
            result=result,
        )

    def decay(self, later: sympy.Expr, earlier: sympy.Expr) -> sympy.Expr:
        """2^(later - earlier) of two cumulative decays; one without decay."""
        return exp2(later - earlier) if self.rungs.decaying else sympy.S.One

    def read(self, name: str, vector: sympy.Expr, level: int) -> Read:
        """The read `y<name>` of a vector at a level, its decay factors absorbed into the level."""
        rest, level = absorb(vector, level, self.rungs, self.recurrence)
        top = self.rungs.symbol(level)
        weight = self.decay(top, RECORD_DECAY)
        inner, outer = (RECORD_KEY * rest, weight)
        if self.vector_decay:
            inner, outer = (inner * weight, sympy.S.One)
        return Read(
            symbol=element(f"y{name}"),
            vector=rest,
            payload=rest * self.decay(top, sympy.S.Zero),
            record_inner=inner,
            record_outer=outer,
            level=top if self.rungs.decaying else None,
        )

    def pairs(self, name: str, read: Read, count: int) -> list[Pair]:
        """Weights of the token's first `count` new records in a read."""
        found = []
        for i, step in enumerate(self.recurrence.steps[:count], 1):
            earlier = self.rungs.symbol(self.rungs.after[i - 1])
            weight = self.decay(read.level, earlier) if read.level is not None else sympy.S.One
            inner = step.key * read.vector * weight
            found.append(Pair(element(f"p_{name}_{i}"), inner, read.symbol, correction_symbol(i)))
        return found

    def total(self, read: Read, weights: list[Pair]) -> sympy.Expr:
        """The read with the token's own records."""
        return read.symbol + sum((p.symbol * p.correction for p in weights), sympy.S.Zero)

    def record(self, j: int) -> NewRecord:
        key = self.recurrence.steps[j - 1].key
        level = self.rungs.symbol(self.rungs.after[j - 1]) if self.rungs.decaying else None
        return NewRecord(key, self.recurrence.per_of(key), correction_symbol(j), level)

    def rebuild(self) -> Rebuild:
        return Rebuild(
            payload=self.decay(CURSOR_DECAY, sympy.S.Zero),
            record=RECORD_KEY * self.decay(CURSOR_DECAY, RECORD_DECAY),
        )

    def quantities(self, reads: list[Read], pairs: list[Pair]) -> dict[str, Quantity]:
        """The recurrence's quantities and those that the derivation made."""
        found = dict(self.recurrence.quantities)

        def add(symbol: sympy.Symbol, axis: Axis, per: Per) -> None:
            found[symbol.name] = Quantity(symbol, axis, per)

        if self.rungs.decaying:
            axis, per = self.rungs.levels[0].axis, self.rungs.levels[0].per
            for symbol in (level_symbol(0), *(level.symbol for level in self.rungs.levels)):
                add(symbol, axis, per)
            add(RECORD_DECAY, axis, per)
            add(CURSOR_DECAY, axis, per)
        keys = [self.recurrence.per_of(s.key) for s in self.recurrence.steps]
        add(RECORD_KEY, Axis.KEY, Per.VALUE if Per.VALUE in keys else Per.KEY)
        for read in reads:
            add(read.symbol, Axis.VALUE, Per.VALUE)
        for j in range(1, len(self.recurrence.steps) + 1):
            add(correction_symbol(j), Axis.VALUE, Per.VALUE)
        for pair in pairs:
            pers = {found[s.name].per for s in pair.inner.free_symbols if s.name in found}
            add(pair.symbol, Axis.SCALAR, Per.VALUE if Per.VALUE in pers else Per.KEY)
        return found


def result_of(formula: sympy.Expr) -> Result:
    """The output's formula with its sums over value channels taken out."""
    sums: dict[sympy.Expr, sympy.Symbol] = {}

    def take(node: sympy.Expr) -> sympy.Expr:
        return sums.setdefault(node, element(f"t{len(sums) + 1}")) if type(node) in SUMS else node

    expression = rewrite_bottom_up(formula, take)
    return Result(expression, tuple((symbol, node.args[0]) for node, symbol in sums.items()))


def correction_symbol(j: int) -> sympy.Symbol:
    """u1, u2, ..."""
    return element(f"u{j}")
