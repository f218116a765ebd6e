"""What a derivation says, for people: Markdown with LaTeX, from the derived values alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from leapgen.algebra.describe_native import native_latex
from leapgen.algebra.printers import latex
from leapgen.algebra.recurrence import Recurrence, Step
from leapgen.algebra.symbols import SumK
from leapgen.algebra.window import DecaySource, Proof, Window
from leapgen.spec.model import Spec
from leapgen.tensors import Axis


@dataclass(frozen=True)
class Section:
    """A heading, one sentence, and formulas in LaTeX without delimiters, a line each."""

    title: str
    text: str
    formulas: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """Everything about one window, in reading order."""

    native: str
    sections: tuple[Section, ...]

    def markdown(self, level: int = 2) -> str:
        """Markdown with `math` blocks; `level` is that of the headings."""
        return "\n\n".join(_markdown(section, level) for section in self.sections) + "\n"


def describe(window: Window, spec: Spec | None = None) -> Description:
    """The derivation as sections.

    spec    the spec that the window comes from: its native formula is then shown in LaTeX
    """
    rec = window.recurrence
    native = rec.native.text if rec.native is not None else ""
    sections = [
        *_native(rec, spec),
        _coefficients(rec),
        _canonical(rec),
        _records(window),
        *(_proof(p) for p in window.proofs[:1] if rec.native),
        _readout(window),
        _program(window),
        _rebuild(window),
        *(_proof(p) for p in window.proofs[1 if rec.native else 0 :]),
    ]
    return Description(native, tuple(sections))


def derivation_markdown(spec: Spec, window: Window) -> str:
    """The whole derivation of a spec as Markdown."""
    return f"# {spec.title}\n\n{describe(window, spec).markdown()}"


def _markdown(section: Section, level: int) -> str:
    parts = [f"{'#' * level} {section.title}", section.text]
    if section.formulas:
        lines = " \\\\\n".join(f"& {line}" for line in section.formulas)
        parts.append(f"```math\n\\begin{{aligned}}\n{lines}\n\\end{{aligned}}\n```")
    return "\n\n".join(parts)


def _native(rec: Recurrence, spec: Spec | None) -> list[Section]:
    if rec.native is None:
        return []
    vectors = {name for name, axis in rec.axes.items() if axis is not Axis.SCALAR}
    latex_form = native_latex(spec.native.node, vectors) if spec is not None else ""
    formulas = (f"S_t = {latex_form}",) if latex_form else ()
    return [Section("Native form", f"As the authors write it: `{rec.native.text}`.", formulas)]


def _coefficients(rec: Recurrence) -> Section:
    axes = rec.axes
    lines = [
        f"{latex(a.target.symbol)} = {latex(a.expression, axes)}"
        f"{_domain(a.target.axis, a.target.per.value)}"
        for a in rec.assignments
    ]
    text = "From the raw inputs of a token, element by element."
    return Section("Coefficients", text if lines else "The inputs are the coefficients.", _t(lines))


def _domain(axis: Axis, per: str) -> str:
    words = {Axis.SCALAR: "", Axis.KEY: "d_k ", Axis.VALUE: "d_v "}[axis]
    size = rf"{words}\text{{ per {per} head}}" if words else rf"\text{{per {per} head}}"
    return rf" \qquad ({size})"


def _canonical(rec: Recurrence) -> Section:
    lines = [r"S^{(0)} = S_{t-1}"]
    for j, step in enumerate(rec.steps, 1):
        before = rf"S^{{({j - 1})}}"
        lines.append(rf"u_{{{j}}} = {_correction(step, before)}")
        lines.append(rf"S^{{({j})}} = {_decay(step)}{before} + {_vec(step.key)} \, u_{{{j}}}^\top")
    state = rf"S^{{({len(rec.steps)})}}" if rec.reads_updated else r"S_{t-1}"
    add = f" + {latex(rec.add)}" if rec.add is not None else ""
    lines.append(
        rf"S_t = S^{{({len(rec.steps)})}}, \qquad o_t = {state}{{}}^\top {_vec(rec.query)}{add}"
    )
    if rec.result is not None:
        lines.append(rf"\text{{result}} = {latex(rec.result, rec.axes)}")
    count = len(rec.steps)
    text = f"{count} sub-step{'s' * (count > 1)} of decay, read and rank-one write (paper eq. 3)."
    return Section("Canonical form", text, _t(lines))


def _correction(step: Step, before: str) -> str:
    read = "" if step.read is None else rf"{before}{{}}^\top {_vec(step.read)}"
    value = "" if step.value is None else latex(step.value)
    inner = f"{value} - {read}" if value and read else value or f"- {read}"
    if step.gain is None:
        return inner
    return (
        rf"{latex(step.gain)} \, \left({inner}\right)"
        if read
        else rf"{latex(step.gain)} \, {inner}"
    )


def _vec(vector: sympy.Expr) -> str:
    return latex(vector) if isinstance(vector, sympy.Symbol) else rf"\left({latex(vector)}\right)"


def _decay(step: Step) -> str:
    if step.log_decay is None:
        return ""
    decay = latex(sympy.exp(step.log_decay))
    return (
        rf"\operatorname{{Diag}}\left({decay}\right) "
        if step.decay_axis is Axis.KEY
        else rf"{decay} \, "
    )


def _records(window: Window) -> Section:
    lines = []
    for record in window.records:
        decay = rf", \quad G_r = {latex(record.decay)}" if record.decay is not None else ""
        key = rf"k_r = {latex(record.key)} \; (\text{{per {record.key_per.value} head}})"
        lines.append(rf"{key}, \quad u_r = {latex(record.correction)}{decay}")
    kind = {None: "no decay", Axis.SCALAR: "one number of decay", Axis.KEY: "a vector of decays"}
    constant = ", the same for every token" if window.constant_decay else ""
    decay_kind = kind[window.decay_axis] + constant
    text = f"Each sub-step appends a record: a key, a correction and {decay_kind}."
    if told := _SOURCES.get(window.decay_source):
        text = f"Each sub-step appends a record: a key and a correction. {told}"
    levels = [
        f"{latex(level.symbol)} = {latex(_below(window, i) + level.increment)}"
        for i, level in enumerate(window.levels)
    ]
    return Section("Records", text, _t([*levels, *lines]))


_SOURCES = {
    DecaySource.CONSTANT: "All tokens decay alike: a slot holds one decay, no record does.",
    DecaySource.KEY: "The key tells the decay of its token: no record holds both.",
}


def _below(window: Window, index: int) -> sympy.Expr:
    return window.previous if index == 0 else window.levels[index - 1].symbol


def _readout(window: Window) -> Section:
    axes = window.axes
    lines = []
    for read in window.reads:
        weight = latex(read.record_outer * SumK(read.record_inner), axes)
        lines.append(
            rf"{latex(read.symbol)} = S_0^\top \left({latex(read.payload)}\right)"
            rf" + \sum_r u_r \, {weight}"
        )
    text = (
        "All reads of a token, in one pass over the boundary state and the records (paper eq. 9)."
    )
    return Section("Readout", text, _t(lines))


def _program(window: Window) -> Section:
    axes = window.axes
    lines = [f"{latex(p.symbol)} = {latex(SumK(p.inner), axes)}" for p in window.pairs]
    lines += [f"{latex(c.symbol)} = {latex(c.expression)}" for c in window.corrections]
    lines.append(f"o = {latex(window.output)}")
    if window.result is not None:
        lines.append(rf"\text{{result}} = {latex(window.result.whole, axes)}")
    return Section(
        "Token program", "Forward substitution between the token's own records.", _t(lines)
    )


def _rebuild(window: Window) -> Section:
    payload = window.rebuild.payload
    weight = "" if payload == 1 else rf"{latex(payload)} \, "
    line = rf"S = {weight}S_0 + \sum_r \left({latex(window.rebuild.record)}\right) u_r^\top"
    return Section(
        "Flush", "The state at the cursor, rebuilt before it is quantized anew.", (line,)
    )


def _proof(proof: Proof) -> Section:
    return Section(f"Proof: {proof.title}", proof.statement, proof.steps)


def _t(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(lines)
