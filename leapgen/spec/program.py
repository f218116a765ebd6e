"""Inputs, definitions and the recurrence of one combination of choices, checked for sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from leapgen.diagnostics import Report, Span
from leapgen.spec import beyond
from leapgen.spec import expression as ex
from leapgen.spec.model import Decay, Definition, Formula, Input, Output, SubStep
from leapgen.spec.names import why_not
from leapgen.spec.native import check_native
from leapgen.spec.parser import parse
from leapgen.spec.shapes import AXIS_WORDS, Scope, Type, infer
from leapgen.spec.signs import Signs, signs
from leapgen.spec.tree import Broken, Entry, Items, Leaf, Table
from leapgen.tensors import Axis, Per

# Errors that cannot hide a use of an input. Beside any other, unused inputs are no news.
_HARMLESS = {
    *("axis-mismatch", "bad-value", "choices-overlap", "decay-axis", "decay-grows", "decay-kind"),
    *("format-option", "head-ratio", "matrix-shape", "out-of-range"),
    *("reserved-name", "unknown-format"),
}


@dataclass(frozen=True)
class Program:
    """What a step receives and does."""

    inputs: tuple[Input, ...]
    definitions: tuple[Definition, ...]
    native: Formula
    substeps: tuple[SubStep, ...]
    output: Output


def build(document: Table, report: Report, dropped: Mapping[str, str]) -> Program | None:
    """The program of a document whose choices are applied; None after errors.

    dropped    names that the picks do without, with the reason, for messages
    """
    before = len(report.items)
    builder = _Builder(report, Scope({}, dropped=dropped))
    builder.declare(document.get("inputs"))
    builder.define(document.get("let"))
    program = builder.recurrence(document.get("recurrence"))
    if {d.code for d in report.items} <= _HARMLESS:
        builder.unused()
    return program if len(report.items) == before else None


@dataclass
class _Builder:
    report: Report
    scope: Scope
    inputs: list[Input] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    signs: dict[str, Signs] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)  # names that differ between rows and tokens
    used: set[str] = field(default_factory=set)  # names that the recurrence uses
    places: dict[str, Span] = field(default_factory=dict)  # of definitions: their keys

    def declare(self, block: object) -> None:
        for name, entry in block.entries.items() if isinstance(block, Table) else ():
            self._check_name(name, entry.key, "an input")
            if isinstance(entry.value, Table):
                self._input(name, entry.key, entry.value)
            else:
                self.scope = _extended(self.scope, name, None)

    def _check_name(self, name: str, span: Span, what: str) -> None:
        reason = why_not(name)
        if reason:
            self.used.add(name)  # one word about it is enough
        if reason and name not in self.scope.types:
            self.report.error(
                "reserved-name", f"{what} cannot be called `{name}`", span, help=reason
            )

    def _input(self, name: str, span: Span, table: Table) -> None:
        per, axes, constant = table.get("per"), table.get("axes"), table.get("constant")
        fixed = isinstance(constant, Leaf) and constant.value is True
        known = isinstance(per, Leaf) and not isinstance(axes, Broken)
        found = Type(Axis(_text(table, "axes")), Per(_text(table, "per"))) if known else None
        self.scope = _extended(self.scope, name, found)
        if not fixed:
            self.varying.add(name)
        if found is not None:
            doc, dtype = _text(table, "doc"), _text(table, "dtype")
            item = Input(name, found.per, found.axis, dtype, fixed, doc, span)
            self.inputs.append(item)

    def define(self, block: object) -> None:
        entries = block.entries if isinstance(block, Table) else {}
        pending = list(entries)
        for name, entry in entries.items():
            self._check_name(name, entry.key, "a definition")
            pending.remove(name)
            known = self.scope.types
            self.scope = Scope(known, frozenset(pending) - set(known), self.scope.dropped)
            self._define(name, entry)
        self.scope = Scope(self.scope.types, frozenset(), self.scope.dropped)

    def _define(self, name: str, entry: Entry) -> None:
        formula = self._formula(entry.value)
        carried = formula is not None and self._carried(name, formula.node)
        found = infer(formula.node, self.scope, self.report) if formula and not carried else None
        self.scope = _extended(self.scope, name, found)
        if formula is None or formula.node == ex.Name(name):  # `q: q` is the input as it arrives
            return
        self.signs[name] = signs(formula.node, self.signs)
        varies = self._varies(formula.node)
        (self.varying.add if varies else self.varying.discard)(name)
        self.places[name] = entry.key
        self.definitions.append(Definition(name, formula))

    def _carried(self, name: str, node: ex.Node) -> bool:
        """Report a definition that is made of its own value of the token before."""
        if name in self.scope.types:
            return False
        own = [n for n in ex.walk(node) if isinstance(n, ex.Name) and n.id == name]
        for use in own[:1]:
            message = f"`{name}` is made of its own value of the token before: a second state"
            meant = f"if `{name}` was meant to be an input, it is missing from `inputs`"
            self.report.error("second-state", message, use.span, help=(*beyond.CARRIED, meant))
        return bool(own)

    def _varies(self, node: ex.Node) -> bool:
        return any(name in self.varying for name in ex.names(node))

    def _formula(self, tree: object) -> Formula | None:
        if not isinstance(tree, Leaf) or tree.place is None:
            return None
        node = parse(tree.text, self.report, tree.place)
        return Formula(tree.text, node, tree.span)

    def recurrence(self, block: object) -> Program | None:
        if not isinstance(block, Table):
            return None
        native = self._formula(block.get("native"))
        if native is not None:
            self._use(native)
            check_native(native.node, self.scope, self.report)
        steps = list(self._substeps(block))
        output = self._output(block.get("output"))
        good = [s for s in steps if s is not None]
        if native is None or output is None or len(good) < len(steps):
            return None
        parts = (tuple(self.inputs), tuple(self.definitions), native, tuple(good), output)
        return Program(*parts)

    def _use(self, formula: Formula) -> None:
        self.used.update(ex.names(formula.node))

    def _coefficient(
        self, table: Table, name: str, axes: tuple[Axis, ...]
    ) -> tuple[Formula | None, Type | None]:
        """A formula of the recurrence, of one of the given axes."""
        formula = self._formula(table.get(name))
        if formula is None:
            return None, None
        self._use(formula)
        scope = replace(self.scope, output=name in ("query", "add", "result"))
        found = infer(formula.node, scope, self.report)
        if found is not None and found.axis not in axes:
            wanted = " or ".join(AXIS_WORDS[a] for a in axes)
            message = f"`{name}` must be {wanted}, but this is {AXIS_WORDS[found.axis]}"
            help_text = _axis_hint(found.axis)
            self.report.error("axis-mismatch", message, formula.span, help=help_text)
        return formula, found

    def _substeps(self, block: Table) -> Iterator[SubStep | None]:
        steps = block.get("substeps")
        shared = block.get("decay")
        for index, step in enumerate(steps.values if isinstance(steps, Items) else ()):
            if not isinstance(step, Table):
                yield None
                continue
            own = step.get("decay")
            if own and shared and index == 0:
                message = "the first sub-step has a decay of its own beside `recurrence.decay`"
                help_text = "leave one out: `recurrence.decay` is the first sub-step's decay"
                self.report.error("decay-twice", message, step.key("decay"), help=help_text)
            yield self._substep(step, own or (shared if index == 0 else None))

    def _substep(self, table: Table, decay: object) -> SubStep | None:
        key, _ = self._coefficient(table, "key", (Axis.KEY,))
        read, _ = self._coefficient(table, "read", (Axis.KEY,))
        value, _ = self._coefficient(table, "value", (Axis.VALUE,))
        gain, _ = self._coefficient(table, "gain", (Axis.SCALAR, Axis.VALUE))
        if "read" not in table.entries and "value" not in table.entries:
            message = "this sub-step has neither `read` nor `value`, so it writes nothing"
            help_text = "u = gain * (value - S^T read): give at least one of them"
            self.report.error("missing-key", message, table.span, help=help_text)
        if "of" in table.entries and "read" not in table.entries:
            message = "`of` says which state is read, but this sub-step has no `read`"
            help_text = "remove `of`, or give the vector to read with"
            self.report.error("of-without-read", message, table.key("of"), help=help_text)
        decayed = _text(table, "of") == "decayed"
        found = self._decay(decay, table.span)
        if key is None or found is None:
            return None
        return SubStep(found, key, read, decayed, value, gain, table.span)

    def _decay(self, tree: object, span: Span) -> Decay | None:
        if tree is None:
            return Decay("none", None, span)
        if not isinstance(tree, Table) or not isinstance(tree.get("kind"), Leaf):
            return None
        kind = _text(tree, "kind")
        formula = self._formula(tree.get("log"))
        if kind != "none" and "log" not in tree.entries:
            message = f"a decay of kind `{kind}` has no `log`"
            help_text = "give the natural logarithm of the decay, e.g. `log: g`"
            self.report.error("missing-key", message, tree.span, help=help_text)
        if formula is not None:
            self._use(formula)
            self._check_decay(kind, formula, tree)
        return Decay(kind, formula, tree.span)

    def _check_decay(self, kind: str, formula: Formula, table: Table) -> None:
        found = infer(formula.node, self.scope, self.report)
        if kind == "none":
            help_text = "leave `log` out, or say of which kind the decay is"
            message = "a decay of kind `none` has no `log`"
            self.report.error("decay-kind", message, table.key("log"), help=help_text)
        elif found is not None:
            self._check_decay_axis(kind, found.axis, formula)
        if kind == "constant" and self._varies(formula.node):
            message = "a constant decay depends on an input that differs from token to token"
            help_text = "mark the input `constant: true`, or use kind `scalar` or `vector`"
            self.report.error("decay-kind", message, formula.span, help=help_text)
        if signs(formula.node, self.signs) == {1}:
            message = "this decay grows the state: its logarithm is always above 0"
            help_text = "`log` is the natural logarithm of a factor of at most 1, e.g. -softplus(a)"
            self.report.error("decay-grows", message, formula.span, help=help_text)

    def _check_decay_axis(self, kind: str, axis: Axis, formula: Formula) -> None:
        if axis is Axis.VALUE:
            message = "a decay on the wrong axis: the state decays along K, but this is over V"
            help_text = "decays on the value axis are not supported: records would not factor"
            self.report.error("decay-axis", message, formula.span, help=help_text)
        elif kind in ("scalar", "vector") and (kind == "scalar") != (axis is Axis.SCALAR):
            right = "scalar" if axis is Axis.SCALAR else "vector"
            message = f"the decay is of kind `{kind}`, but its `log` is {AXIS_WORDS[axis]}"
            self.report.error("decay-kind", message, formula.span, help=f"write `kind: {right}`")

    def _output(self, tree: object) -> Output | None:
        if not isinstance(tree, Table):
            return None
        query, _ = self._coefficient(tree, "query", (Axis.KEY,))
        add, _ = self._coefficient(tree, "add", (Axis.VALUE,))
        result = self._result(tree)
        if query is None:
            return None
        of, dtype = _text(tree, "of") or "updated", _text(tree, "dtype") or "bf16"
        return Output(query, of, add, dtype, tree.span, result)

    def _result(self, tree: Table) -> Formula | None:
        """The formula of the output, which alone may name what the query reads."""
        scope, self.scope = self.scope, _extended(self.scope, ex.READ, Type(Axis.VALUE, Per.VALUE))
        result, _ = self._coefficient(tree, "result", (Axis.VALUE,))
        self.scope = scope
        if result is not None and ex.READ not in ex.names(result.node):
            message = f"`result` does not use `{ex.READ}`, so the state is read for nothing"
            help_text = f"`{ex.READ}` is what the query reads: write it like {ex.READ} * silu(z)"
            self.report.error("result-without-read", message, result.span, help=help_text)
        return result

    def unused(self) -> None:
        """Report definitions and inputs that nothing uses; both are slips of the pen."""
        needed = set(self.used)
        for definition in reversed(self.definitions):
            name = definition.name
            if name not in needed:
                self._unused("definition", name, self.places[name])
            needed.discard(name)
            needed.update(ex.names(definition.formula.node))
        for item in self.inputs:
            if item.name not in needed:
                self._unused("input", item.name, item.span)

    def _unused(self, kind: str, name: str, span: Span) -> None:
        help_text = "remove it, or `drop` it in the alternative that does without it"
        message = f"the {kind} `{name}` is not used"
        self.report.error(f"unused-{kind}", message, span, help=help_text)


def _extended(scope: Scope, name: str, found: Type | None) -> Scope:
    return Scope({**scope.types, name: found}, scope.later, scope.dropped)


def _text(table: Table, name: str) -> str:
    leaf = table.get(name)
    return leaf.text if isinstance(leaf, Leaf) else ""


def _axis_hint(axis: Axis) -> str:
    if axis is Axis.SCALAR:
        return "multiply it with a vector"
    return "the state is K x V: `key`, `read` and `query` are over K, `value` and `add` over V"
