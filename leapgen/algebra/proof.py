"""The native update equals the sub-steps: for symbolic dimensions, entry by entry."""

from __future__ import annotations

import sympy

from leapgen.algebra.affine import (
    IDENTITY,
    Mismatch,
    Operator,
    StateMap,
    entries,
    mismatches,
)
from leapgen.algebra.normal import normal
from leapgen.algebra.printers import latex, text
from leapgen.algebra.recurrence import Native, Recurrence, Step
from leapgen.algebra.window import Proof
from leapgen.diagnostics import Diagnostic, Diagnostics
from leapgen.tensors import Axis


def prove_native(recurrence: Recurrence) -> Proof:
    """Prove that the native update is the composition of the sub-steps.

    Both are brought to S'[i, j] = d[i] S[i, j] + sum over m of R[i, m] S[m, j] + B[i, j]; sums
    over channels are linear, exponentials are merged, and the three entries must agree. Names of
    definitions stay where that suffices, and are replaced by raw inputs where it does not.

    Raises:
        Diagnostics: they differ; at the native formula, with the entries that differ.
        ValueError: the recurrence has no native update.
    """
    native = recurrence.native
    if native is None:
        raise ValueError(f"{recurrence.name} has no native update")
    steps = substeps_map(recurrence)
    wrong = mismatches(
        _short(native.update, recurrence), _short(steps, recurrence), recurrence.axes
    )
    if wrong and mismatches(
        native.update.map(recurrence.inline), steps.map(recurrence.inline), recurrence.axes
    ):
        raise _refusal(native, wrong)
    return _proof(native, _short(steps, recurrence), recurrence)


def step_map(step: Step) -> StateMap:
    """S -> D S + key (gain (value - S^T read))^T."""
    decay = sympy.S.One if step.log_decay is None else sympy.exp(step.log_decay)
    gain = sympy.S.One if step.gain is None else step.gain
    terms = () if step.read is None else ((-gain * step.key, step.read),)
    constant = sympy.S.Zero if step.value is None else gain * step.key * step.value
    return StateMap(Operator(decay, terms), constant)


def substeps_map(recurrence: Recurrence) -> StateMap:
    """All sub-steps of a token, one after the other."""
    whole = StateMap(IDENTITY)
    for step in recurrence.steps:
        whole = whole.then(step_map(step))
    return whole


def _short(state_map: StateMap, recurrence: Recurrence) -> StateMap:
    """Without the names of sums that `lower` introduced: the native formula does not have them."""
    sums = {s: e for s, e in recurrence.definitions.items() if s.name.startswith("sum") and e.args}
    return state_map.map(lambda expr: expr.xreplace(sums))


def _refusal(native: Native, wrong: tuple[Mismatch, ...]) -> Diagnostics:
    notes = []
    for entry in wrong:
        where = "the additive part" if entry.place == "1" else f"the coefficient of {entry.place}"
        notes.append(f"{where}, in S'[i, j]:")
        notes.append(f"  native    {text(entry.left)}")
        notes.append(f"  sub-steps {text(entry.right)}")
    item = Diagnostic(
        code="native-mismatch",
        message="the native update is not what the sub-steps do",
        path=native.path,
        span=native.span,
        label="differs from `substeps`",
        help=("correct one of them: leapgen generates code from the sub-steps only",),
        notes=tuple(notes),
    )
    return Diagnostics([item], {native.path: native.source})


def _proof(native: Native, steps: StateMap, recurrence: Recurrence) -> Proof:
    axes: dict[str, Axis] = recurrence.axes
    diagonal, rank_one, constant = (normal(e, axes) for _, e in entries(steps, axes))
    return Proof(
        title="The native update equals the sub-steps",
        statement=f"`{native.text}` is what the sub-steps do, one after the other.",
        steps=(
            r"S'_{ij} = d_i S_{ij} + \sum_m R_{im} S_{mj} + B_{ij}"
            r" \quad\text{for both, with equal entries:}",
            rf"d_i = {latex(diagonal, axes, 'l')}",
            rf"R_{{im}} = {latex(rank_one, axes, 'l')}",
            rf"B_{{ij}} = {latex(constant, axes, 'l')}",
        ),
    )
