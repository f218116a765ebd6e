"""The token program of a window for one or more tokens, as data.

All base reads of all tokens come first (one pass over payload, compensators and records); then
the new records of the tokens are solved one after the other by forward substitution. One token is
a step; D tokens are a verification of drafts. Symbols of token t end in `_t<t>`, t from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from leapgen.algebra.symbols import READ, element, exp2
from leapgen.algebra.window import NewRecord, Pair, Read, Window


@dataclass(frozen=True)
class BaseRead:
    """One read of the window at its cursor for token `token`; fields as in window.Read."""

    token: int
    read: Read


@dataclass(frozen=True)
class PairWeight:
    """symbol = SumK(inner): the weight of a new record in a later read of this program."""

    symbol: sympy.Symbol
    inner: sympy.Expr


@dataclass(frozen=True)
class Solve:
    """symbol = expression over V-elements: a correction, or (last of a token) the output."""

    token: int
    symbol: sympy.Symbol
    expression: sympy.Expr


@dataclass(frozen=True)
class TokenProgram:
    """What a launch computes for `tokens` tokens.

    levels      cumulative decays in time order after the cursor: (symbol, token)
    reads       one pass over the stored state serves them all
    weights     between new records and later reads, tokens of a program included
    solves      in this order every symbol is known before its use
    records     appended in this order
    """

    tokens: int
    levels: tuple[tuple[sympy.Symbol, int], ...]
    reads: tuple[BaseRead, ...]
    weights: tuple[PairWeight, ...]
    solves: tuple[Solve, ...]
    records: tuple[NewRecord, ...]


def token_program(window: Window, tokens: int = 1) -> TokenProgram:
    """The program for `tokens` >= 1 tokens that stand after the cursor."""
    if tokens < 1:
        raise ValueError(f"a program has at least one token, not {tokens}")
    parts = [_TokenPart(window, t) for t in range(1, tokens + 1)]
    weights: list[PairWeight] = []
    solves: list[Solve] = []
    for part in parts:
        earlier = [(p, record) for p in parts[: part.token - 1] for record in p.records]
        crossing = {}
        for read in part.reads:
            found = [part.weight(read, record, other) for other, record in earlier]
            terms = [w.symbol * r.correction for w, (_, r) in zip(found, earlier, strict=True)]
            crossing[read.symbol] = sympy.Add(read.symbol, *terms)
            weights += found
        weights += part.own_weights()
        solves += part.solves(crossing)
    return TokenProgram(
        tokens=tokens,
        levels=tuple((symbol, part.token) for part in parts for symbol in part.levels),
        reads=tuple(BaseRead(part.token, read) for part in parts for read in part.reads),
        weights=tuple(weights),
        solves=tuple(solves),
        records=tuple(record for part in parts for record in part.records),
    )


class _TokenPart:
    """The window's formulas with the symbols of one token."""

    def __init__(self, window: Window, token: int) -> None:
        self.window = window
        self.token = token
        shared = {"rG", "rk", "G"}  # of stored records and the cursor: no token has them
        self.names: dict[sympy.Symbol, sympy.Symbol] = {
            q.symbol: self.name(q.symbol) for n, q in window.quantities.items() if n not in shared
        }
        if window.previous is not None:
            top = window.levels[-1].symbol
            before = window.previous if token == 1 else element(f"{top.name}_t{token - 1}")
            self.names[window.previous] = before
        self.levels = [self.names[level.symbol] for level in window.levels]
        self.reads = [self.read(read) for read in window.reads]
        self.records = [self.record(record) for record in window.records]

    def name(self, symbol: sympy.Symbol) -> sympy.Symbol:
        return element(f"{symbol.name}_t{self.token}")

    def of(self, expr: sympy.Expr) -> sympy.Expr:
        return expr.xreplace(self.names)

    def read(self, read: Read) -> Read:
        return Read(
            symbol=self.of(read.symbol),
            vector=self.of(read.vector),
            payload=self.of(read.payload),
            record_inner=self.of(read.record_inner),
            record_outer=self.of(read.record_outer),
            level=None if read.level is None else self.of(read.level),
        )

    def record(self, record: NewRecord) -> NewRecord:
        decay = None if record.decay is None else self.of(record.decay)
        return NewRecord(self.of(record.key), record.key_per, self.of(record.correction), decay)

    def weight(self, read: Read, record: NewRecord, other: _TokenPart) -> PairWeight:
        """The weight of an earlier token's record in a read of this token (paper eq. 9)."""
        name = f"p_{read.symbol.name[1:]}_{record.correction.name[1:]}"
        inner = record.key * read.vector
        if read.level is not None and record.decay is not None:
            inner *= exp2(read.level - record.decay)
        return PairWeight(element(name), inner)

    def own_weights(self) -> list[PairWeight]:
        pairs: tuple[Pair, ...] = self.window.pairs
        return [PairWeight(self.of(p.symbol), self.of(p.inner)) for p in pairs]

    def solves(self, crossing: dict[sympy.Symbol, sympy.Expr]) -> list[Solve]:
        """Corrections and the output; reads get the records of the tokens before."""
        found = [
            Solve(self.token, self.of(c.symbol), self.of(c.expression).xreplace(crossing))
            for c in self.window.corrections
        ]
        whole = self.window.output
        if self.window.result is not None:
            whole = self.window.result.whole.xreplace({READ: whole})
        output = self.of(whole).xreplace(crossing)
        return [*found, Solve(self.token, element(f"o_t{self.token}"), output)]
