"""The window form of a recurrence: what `derive` produces and every later stage consumes.

All fields are SymPy expressions in *element symbols*: `q` stands for the element of q at the
current index of its axis. `SumK(e)` is the sum of e over the key channels (a scalar).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import sympy

from leapgen.algebra.checks import check_window
from leapgen.algebra.digest import RARE, digest
from leapgen.algebra.recurrence import Quantity, Recurrence
from leapgen.algebra.symbols import SumV
from leapgen.tensors import Axis, Per


class DecaySource(StrEnum):
    """Where the cumulative decay of a record comes from.

    STORED      the record holds it
    CONSTANT    every token decays alike: a multiple of one decay, which the slot holds once
    KEY         the record's key tells the decay of its token: a sum over the keys before it
    NONE        nothing decays
    """

    STORED = "stored"
    CONSTANT = "constant"
    KEY = "key"
    NONE = ""


@dataclass(frozen=True)
class DecayLevel:
    """A cumulative log2 decay within the token: `symbol` = previous level + increment.

    symbol       the cumulative log2 decay since the window start, after this decaying sub-step
    increment    log2 decay of the sub-step: Max(log2(e) * log, -150), an element expression
    axis         SCALAR or KEY
    per          heads it belongs to
    constant     the increment is the same for every token: sums of it need not be stored
    """

    symbol: sympy.Symbol
    increment: sympy.Expr
    axis: Axis
    per: Per
    constant: bool = False


@dataclass(frozen=True)
class Read:
    """One read S^T x of the window, without the token's own records.

    symbol         V-element symbol of the result (`y1`, `yq`)
    vector         x, a K-element expression, without the decay factors that `level` holds
    payload        weight of row k of the boundary state: x * 2^(cumulative decay); K-element
    record_inner   K-element expression summed over k for one record, in `rk` (the record's key)
                   and, where the decay is a vector, `rG` (the record's cumulative log2 decay)
    record_outer   scalar factor of that sum (a scalar decay stands here, in `rG`), or 1
    level          the cumulative decay in the weights (`G0`, `G1`, ...); None: no decay
    A compensator is a record whose rG is 0: its weight is SumK(rk * payload).
    """

    symbol: sympy.Symbol
    vector: sympy.Expr
    payload: sympy.Expr
    record_inner: sympy.Expr
    record_outer: sympy.Expr
    level: sympy.Symbol | None = None


@dataclass(frozen=True)
class Pair:
    """Weight of one of the token's own new records in a later read: scalar symbol = SumK(inner).

    read, correction   symbols of that read and of that record's correction
    """

    symbol: sympy.Symbol
    inner: sympy.Expr
    read: sympy.Symbol
    correction: sympy.Symbol


@dataclass(frozen=True)
class Correction:
    """symbol = expression over V-elements, reads, pair weights and earlier corrections."""

    symbol: sympy.Symbol
    expression: sympy.Expr


@dataclass(frozen=True)
class NewRecord:
    """What one sub-step appends: key (K-element), correction symbol, decay symbol or None."""

    key: sympy.Expr
    key_per: Per
    correction: sympy.Symbol
    decay: sympy.Symbol | None


@dataclass(frozen=True)
class Rebuild:
    """The state at the cursor: S[k,v] = payload * S0[k,v] + sum_j record[k] * u_j[v].

    payload   weight of the boundary state (K-element or scalar), in `G` (decay at the cursor)
    record    K-element expression in `rk`, `rG`, `G`
    """

    payload: sympy.Expr
    record: sympy.Expr


@dataclass(frozen=True)
class Result:
    """The output as a formula of `o` (the read with its addend) and of sums over value channels.

    sums    (scalar symbol `t1`, `t2`, ..., what is summed: a V-element in `o`)
    """

    expression: sympy.Expr
    sums: tuple[tuple[sympy.Symbol, sympy.Expr], ...]

    @property
    def parts(self) -> tuple[sympy.Expr, ...]:
        """The formula, then what is summed."""
        return (self.expression, *(inner for _, inner in self.sums))

    @property
    def whole(self) -> sympy.Expr:
        """The formula with its sums in place."""
        return self.expression.xreplace({symbol: SumV(inner) for symbol, inner in self.sums})


@dataclass(frozen=True)
class Proof:
    """A statement that was proved, with its steps as LaTeX, for people."""

    title: str
    statement: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Window:
    """The derived program of one token at any cursor, and of a flush."""

    recurrence: Recurrence
    levels: tuple[DecayLevel, ...]
    previous: sympy.Symbol | None  # cumulative decay before the token (`G0`); None: no decay
    reads: tuple[Read, ...]
    pairs: tuple[Pair, ...]
    corrections: tuple[Correction, ...]
    output: sympy.Expr  # V-element
    records: tuple[NewRecord, ...]  # one a sub-step
    rebuild: Rebuild
    proofs: tuple[Proof, ...]
    quantities: Mapping[str, Quantity] = field(default_factory=dict)  # every symbol by name
    # log2 decay of a record's sub-step in `rk`, where its key tells it: no record holds both
    told: sympy.Expr | None = field(default=None, metadata={RARE: True})
    # where the output sums what is read over the value channels; `output` is then `o`
    result: Result | None = field(default=None, metadata={RARE: True})

    @property
    def records_per_token(self) -> int:
        """n, the number of sub-steps."""
        return len(self.records)

    @property
    def axes(self) -> dict[str, Axis]:
        """Axis of every symbol by name."""
        return {name: q.axis for name, q in self.quantities.items()}

    @property
    def decay_axis(self) -> Axis | None:
        """SCALAR or KEY: what a cumulative decay is; None without decay."""
        return self.levels[0].axis if self.levels else None

    @property
    def constant_decay(self) -> bool:
        """All decays are the same for every token: cumulative decays follow from positions."""
        return bool(self.levels) and all(level.constant for level in self.levels)

    @property
    def decay_source(self) -> DecaySource:
        """Where the cumulative decays of records come from."""
        if not self.levels:
            return DecaySource.NONE
        if self.told is not None:
            return DecaySource.KEY
        # With several levels a token, sums would need the levels' places: they are stored.
        alone = len(self.levels) == 1 and self.constant_decay
        return DecaySource.CONSTANT if alone else DecaySource.STORED

    def level_index(self, symbol: sympy.Symbol) -> int:
        """0 for `G0`, then the place in `levels`; raises ValueError for another symbol."""
        return [self.previous, *(level.symbol for level in self.levels)].index(symbol)

    def with_proofs(self, proofs: tuple[Proof, ...]) -> Window:
        """The same window with proofs attached."""
        return replace(self, proofs=proofs)

    def digest(self) -> str:
        """Stable over runs and machines; proofs do not count."""
        return digest(self)

    def check(self) -> None:
        """Raise ValueError if an exponent could be positive or something divides by a decay."""
        check_window(self)
