"""Proofs about a derived window, on its own formulas: unrolling, reads, compensators, program.

A formula that fails raises ProofFailure: either the derivation is wrong or somebody changed the
window afterwards. In all proofs d1, d2, ... are the log2 decays of the sub-steps, so that the
level after the first decaying sub-step is G0 + d1. Where the clamp acts, the clamped value is the
decay of the window everywhere, in read vectors too.
"""

from __future__ import annotations

import sympy

from leapgen.algebra.checks import expressions
from leapgen.algebra.normal import equal
from leapgen.algebra.printers import latex, text
from leapgen.algebra.recurrence import Step
from leapgen.algebra.symbols import (
    CURSOR_DECAY,
    READ,
    RECORD_DECAY,
    RECORD_KEY,
    SumK,
    element,
    exp2,
)
from leapgen.algebra.window import Proof, Read, Window
from leapgen.diagnostics import LeapgenError
from leapgen.tensors import Axis


class ProofFailure(LeapgenError):
    """A formula of a window is not what the recurrence implies."""


def prove_window(window: Window) -> tuple[Proof, ...]:
    """Prove the closed form, every read, the compensator form and the token program.

    Raises:
        ProofFailure: a formula of the window is wrong; the message has both sides.
    """
    prover = _Prover(window)
    return (
        prover.unrolling(),
        prover.reads(),
        prover.compensators(),
        prover.program(),
        _exponents(window),
    )


def _exponents(window: Window) -> Proof:
    """Checked by `check_window`: exponents are falls of cumulative decays, nothing is divided."""
    window.check()
    powers = {p for expr in expressions(window) for p in expr.atoms(exp2)}
    shown = sorted(latex(p.args[0]) for p in powers)
    steps = (r" \le 0, \quad ".join(shown) + r" \le 0",) if shown else ()
    return Proof(
        title="Exponents",
        statement="Every exponent is a cumulative decay minus an earlier one, so none is positive;"
        " nothing is divided by a decay.",
        steps=steps,
    )


class _Prover:
    def __init__(self, window: Window) -> None:
        self.window = window
        self.rec = window.recurrence
        axis = window.decay_axis or Axis.SCALAR
        opened = zip(self.rec.steps, self.rec.level_steps, strict=True)
        logs = [step.log_decay for step, opens in opened if opens]
        unique = list(dict.fromkeys(log for log in logs if log is not None))
        names = {log: element(f"d{i}") for i, log in enumerate(unique, 1)}  # equal logs share one
        self.deltas = [names.get(log, sympy.S.Zero) for log in logs]
        self.axes = {**window.axes, **{d.name: axis for d in names.values()}}
        self.logs = [(log, d) for log, d in names.items() if not log.is_number]

    def require(self, what: str, left: sympy.Expr, right: sympy.Expr) -> None:
        """Both sides are equal, with names kept or, where that does not suffice, in raw inputs."""
        if equal(self.plain(left), self.plain(right), self.axes):
            return
        left, right = self.raw(left), self.raw(right)
        if not equal(left, right, self.axes):
            raise ProofFailure(f"{what}: {text(left)} is not {text(right)}")

    def raw(self, expr: sympy.Expr) -> sympy.Expr:
        """`plain` with definitions replaced."""
        expr = self.rec.inline(expr)
        for log, delta in self.logs:
            expr = expr.subs(sympy.exp(self.rec.inline(log)), exp2(delta))
        return self.plain(expr)

    def plain(self, expr: sympy.Expr) -> sympy.Expr:
        """Levels written as G0 + d1 + ..., decays as 2^d."""
        for log, delta in self.logs:
            expr = expr.subs(sympy.exp(log), exp2(delta))
        levels = {lv.symbol: self.level(i) for i, lv in enumerate(self.window.levels, 1)}
        return expr.xreplace(levels)

    def level(self, index: int) -> sympy.Expr:
        """The level after `index` decaying sub-steps; zero without decays."""
        start = self.window.previous if self.window.previous is not None else sympy.S.Zero
        return start + sum(self.deltas[:index], sympy.S.Zero)

    def levels_before(self) -> list[sympy.Expr]:
        """The level before each sub-step, and after the last."""
        opens = self.rec.level_steps
        return [self.level(sum(opens[:j])) for j in range(len(opens) + 1)]

    def unrolling(self) -> Proof:
        """Paper eq. 4 by induction on the number of records."""
        payload, record = self.window.rebuild.payload, self.window.rebuild.record
        self.require("base case, payload", payload.subs(CURSOR_DECAY, 0), sympy.S.One)
        for delta in dict.fromkeys([*self.deltas, sympy.S.Zero]):
            later = {CURSOR_DECAY: CURSOR_DECAY + delta}
            self.require("payload after a decay", payload.subs(later), exp2(delta) * payload)
            self.require("record after a decay", record.subs(later), exp2(delta) * record)
        self.require("new record", record.subs(RECORD_DECAY, CURSOR_DECAY), RECORD_KEY)
        claim = rf"S = {latex(payload)} \, S_0 + \sum_{{r}} {latex(record)} \, u_r^\top"
        return Proof(
            title="Window unrolling (paper eq. 4)",
            statement="The state is the decayed boundary state plus decayed rank-one records.",
            steps=(
                claim,
                r"\text{No record: } G = 0 \text{ and } S = S_0.",
                r"\text{One more sub-step with log2 decay } \delta: \quad 2^{\delta} S + k u^\top,"
                r" \qquad G \to G + \delta,",
                r"2^{\delta} \, 2^{G} = 2^{G+\delta}, \qquad"
                r" 2^{\delta} \, 2^{G-G_r} k_r = 2^{(G+\delta)-G_r} k_r,"
                r" \qquad 2^{(G+\delta)-(G+\delta)} k = k.",
            ),
        )

    def reads(self) -> Proof:
        """Paper eq. 9 for every read of the token, and the weights of its own records."""
        steps = []
        for read, vector, level in self._vectors():
            self._check_read(read, vector, level)
            steps.append(
                rf"{latex(read.symbol)}: \quad w_0 = {latex(read.payload)}, \quad"
                rf" w_r = {latex(read.record_outer * SumK(read.record_inner), self.axes)}"
            )
        return Proof(
            title="Reads of the window (paper eq. 9)",
            statement="A read weighs the boundary state with w_0 and each correction with w_r.",
            steps=(
                r"S^\top x = S_0^\top w_0 + \sum_r u_r w_r, \qquad"
                r" w_0 = \Gamma x, \quad w_r = k_r^\top \Gamma_{r+1:} x",
                *steps,
            ),
        )

    def _vectors(self) -> list[tuple[Read, sympy.Expr, sympy.Expr]]:
        """Each read with its vector as the recurrence has it, and the level of the state read."""
        before = self.levels_before()
        steps = [(s.read, before[j]) for j, s in enumerate(self.rec.steps) if s.read is not None]
        query_level = before[-1] if self.rec.reads_updated else before[0]
        wanted = [*steps, (self.rec.query, query_level)]
        return [(r, x, level) for r, (x, level) in zip(self.window.reads, wanted, strict=True)]

    def _check_read(self, read: Read, vector: sympy.Expr, level: sympy.Expr) -> None:
        at = {CURSOR_DECAY: level}
        rebuild = self.window.rebuild
        name = read.symbol.name
        self.require(f"{name}, payload", read.payload, rebuild.payload.subs(at) * vector)
        weight = read.record_outer * SumK(read.record_inner)
        self.require(f"{name}, record", weight, SumK(rebuild.record.subs(at) * vector))

    def compensators(self) -> Proof:
        """Paper eqs. 7 and 10: S0 = C Z B + sum of compensators, each a record of decay 0."""
        c, z, key = element("c"), element("Z"), element("kt")
        scale, u = element("B"), element("ut")
        axes = {**self.axes, "c": Axis.KEY, "Z": Axis.KEY, "kt": Axis.KEY}
        for read in self.window.reads:
            whole = SumK(read.payload * (c * z * scale + key * u))
            parts = scale * SumK(c * read.payload * z) + u * SumK(key * read.payload)
            first = {RECORD_DECAY: sympy.S.Zero, RECORD_KEY: key}
            record = (read.record_outer * SumK(read.record_inner)).subs(first)
            for left, right in ((whole, parts), (record, SumK(key * read.payload))):
                if not equal(left, right, axes):
                    raise ProofFailure(f"{read.symbol}, compensators: {text(left)}")
        return Proof(
            title="Smoothed residual and compensators (paper eqs. 7 and 10)",
            statement="Scales fold into the payload's weight; a compensator is a record at G = 0.",
            steps=(
                r"S_0 = C Z B + \sum_h \tilde k_h \tilde u_h^\top",
                r"S_0^\top w_0 = B \, Z^\top (C w_0)"
                r" + \sum_h \tilde u_h \, (\tilde k_h^\top w_0), \qquad"
                r" \tilde k_h^\top w_0 = w_r \text{ with } k_r = \tilde k_h, \; G_r = 0",
            ),
        )

    def program(self) -> Proof:
        """Forward substitution equals the sub-steps, from any state before the token."""
        column = element("s")  # one value channel of the state before the token
        self.axes["s"] = Axis.KEY
        start = {self.window.previous: sympy.S.Zero} if self.window.previous is not None else {}
        known = {
            r.symbol: SumK(self.plain(r.payload).subs(start) * column) for r in self.window.reads
        }
        known |= {p.symbol: SumK(p.inner) for p in self.window.pairs}
        state: sympy.Expr = column
        states = [state]
        deltas = iter(self.deltas)
        shown = []
        opens = self.rec.level_steps
        for step, opened, correction in zip(
            self.rec.steps, opens, self.window.corrections, strict=True
        ):
            name = correction.symbol.name
            self.require(name, correction.expression.xreplace(known), _correction(step, state))
            shown.append(f"{latex(correction.symbol)} = {latex(correction.expression)}")
            decay = exp2(next(deltas)) if opened else sympy.S.One
            state = decay * state + step.key * correction.symbol
            states.append(state)
        read = states[-1] if self.rec.reads_updated else states[0]
        add = self.rec.add if self.rec.add is not None else sympy.S.Zero
        expected = SumK(self.rec.query * read) + add
        if self.rec.result is not None and self.window.result is None:
            expected = self.rec.result.xreplace({READ: expected})
        self.require("output", self.window.output.xreplace(known), expected)
        if self.window.result is not None:
            self.axes[READ.name] = Axis.VALUE
            self.require("result", self.window.result.whole, self.rec.result)
        return Proof(
            title="Token program",
            statement="One pass over the payload for all reads, then forward substitution.",
            steps=(*shown, f"o = {latex(self.window.output)}"),
        )


def _correction(step: Step, state: sympy.Expr) -> sympy.Expr:
    """gain (value - S^T read) for one column of the state (paper eq. 3)."""
    read = SumK(step.read * state) if step.read is not None else sympy.S.Zero
    value = step.value if step.value is not None else sympy.S.Zero
    gain = step.gain if step.gain is not None else sympy.S.One
    return gain * (value - read)
