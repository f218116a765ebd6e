"""Spec -> Recurrence: formulas become element expressions with unique names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import sympy

from leapgen.algebra.affine import StateMap, substitute
from leapgen.algebra.native import lower_native
from leapgen.algebra.recurrence import Assignment, Native, Quantity, Recurrence, Step
from leapgen.algebra.scope import Scope, Typed
from leapgen.algebra.symbols import (
    READ,
    SUMS,
    K,
    V,
    element,
    rewrite_bottom_up,
    symbols_of,
)
from leapgen.spec.expression import Name
from leapgen.spec.model import Definition, Formula, Input, Spec, SubStep
from leapgen.tensors import Axis, Per

RESERVED = re.compile(r"o|t\d+|G\d*|rG|rk|y\d+|yq|u\d+|p_\w+_\d+|sum\d+|n\d+")
"""Names that the derivation gives to its own symbols."""


def lower(spec: Spec) -> Recurrence:
    """The canonical recurrence of one token.

    Raises:
        Diagnostics: a formula has no meaning (unknown name, mixed axes, a native update that is
            not affine in S), at its place in the spec file.
    """
    return _Lowering(spec).run()


class _Lowering:
    """One run over a spec; collects assignments while names change their meaning."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        # `k: k` in a choice says "as it arrives": it neither computes nor renames anything.
        self.definitions = [d for d in spec.definitions if not _is_name(d, d.name)]
        self.scope = Scope(spec.path, spec.source)
        self.assignments: list[Assignment] = []
        self.input_symbols: dict[str, str] = {}
        self.sums: dict[sympy.Expr, sympy.Symbol] = {}
        self.constants = {i.name for i in spec.inputs if i.constant}

    def run(self) -> Recurrence:
        self._inputs()
        self._definitions()
        update = lower_native(self.spec.native.node, self.scope)
        steps = tuple(self._step(s) for s in self.spec.substeps)
        output = self.spec.output
        query = self._lifted(output.query, Axis.KEY)
        add = self._lifted(output.add, Axis.VALUE) if output.add else None
        result = self._result(output.result) if output.result else None
        kept = _reachable(self.assignments, [*_expressions(steps), query, add, result])
        used = {a.target.symbol.name for a in kept} | set(self.input_symbols.values())
        recurrence = Recurrence(
            name=self.spec.name,
            inputs=self.spec.inputs,
            assignments=kept,
            quantities={n: q for n, q in self.scope.quantities.items() if n in used},
            steps=steps,
            query=query,
            reads_updated=output.of == "updated",
            add=add,
            output_dtype=output.dtype,
            input_symbols=self.input_symbols,
            native=self._native(update, kept),
            result=result,
        )
        recurrence.check()
        return recurrence

    def _inputs(self) -> None:
        defined = {d.name for d in self.definitions}
        taken = defined | {i.name for i in self.spec.inputs}
        for item in self.spec.inputs:
            self._check_name(item.name, item)
            unique = _fresh(f"{item.name}_raw", taken) if item.name in defined else item.name
            self.input_symbols[item.name] = unique
            self.scope.declare(item.name, unique, item.axis, item.per)

    def _definitions(self) -> None:
        total = Counter(d.name for d in self.definitions)
        seen: Counter[str] = Counter()
        taken = set(total) | set(self.input_symbols.values())
        for definition in self.definitions:
            self._check_name(definition.name, definition.formula)
            seen[definition.name] += 1
            number = seen[definition.name]
            last = number == total[definition.name]
            unique = definition.name if last else _fresh(f"{definition.name}_{number}", taken)
            self._define(definition, unique)

    def _define(self, definition: Definition, unique: str) -> None:
        typed = self.scope.lower(definition.formula.node)
        if typed.expr.free_symbols <= {K, V} or _is_name(definition):
            # A number, or another name for something, is no computation.
            self.scope.names[definition.name] = typed
            return
        self._track_constant(definition.name, typed)
        quantity = self.scope.declare(definition.name, unique, typed.axis, typed.per)
        self.assignments.append(Assignment(quantity, typed.expr))

    def _track_constant(self, name: str, typed: Typed) -> None:
        if self._is_constant(typed.expr):
            self.constants.add(name)
        else:
            self.constants.discard(name)

    def _is_constant(self, expr: sympy.Expr) -> bool:
        """Whether the expression is the same for every row and token."""
        fixed = {self.scope.names[c].expr for c in self.constants if c in self.scope.names}
        return bool(expr.free_symbols <= fixed | {K, V})

    def _check_name(self, name: str, place: Input | Formula) -> None:
        if RESERVED.fullmatch(name):
            message = f"`{name}` is a name that the derivation uses itself"
            raise self.scope.error("reserved-name", message, place.span, "choose another name")

    def _native(self, update: StateMap, kept: tuple[Assignment, ...]) -> Native:
        """The native update in symbols that the recurrence knows too."""
        known = {a.target.symbol for a in kept}
        gone = {
            a.target.symbol: a.expression for a in self.assignments if a.target.symbol not in known
        }
        formula = self.spec.native
        update = update.map(lambda expr: substitute(expr, gone))
        return Native(formula.text, update, self.spec.path, formula.span, self.spec.source)

    def _step(self, step: SubStep) -> Step:
        log = self._log_decay(step)
        read = self._lifted(step.read, Axis.KEY) if step.read else None
        if read is not None and step.reads_decayed and log is not None:
            read = sympy.exp(log.expr) * read  # S' = D S, so S'^T x = S^T (D x)
        value = self._lifted(step.value, Axis.VALUE) if step.value else None
        if read is None and value is None:
            message = "a sub-step without `value` and without `read` writes nothing"
            raise self.scope.error("empty-substep", message, step.span)
        return Step(
            log_decay=log.expr if log else None,
            decay_axis=log.axis if log else Axis.SCALAR,
            key=self._lifted(step.key, Axis.KEY),
            read=read,
            value=value,
            gain=self._lifted(step.gain, Axis.VALUE) if step.gain else None,
            constant=log is not None and self._is_constant(log.expr),
        )

    def _log_decay(self, step: SubStep) -> Typed | None:
        formula = step.decay.log
        if formula is None:
            return None
        typed = self._typed(formula)
        allowed = {Axis.SCALAR} if step.decay.kind == "scalar" else {Axis.SCALAR, Axis.KEY}
        if typed.axis not in allowed:
            message = f"a {step.decay.kind} decay cannot be a {_WORDS[typed.axis]}"
            raise self.scope.error("axis-mismatch", message, formula.span)
        return typed

    def _lifted(self, formula: Formula, axis: Axis) -> sympy.Expr:
        """A formula of the recurrence on `axis` (or a scalar); sums become assignments."""
        typed = self._typed(formula)
        if typed.axis not in (axis, Axis.SCALAR):
            message = f"expected a {_WORDS[axis]}, found a {_WORDS[typed.axis]}"
            raise self.scope.error("axis-mismatch", message, formula.span)
        return typed.expr

    def _result(self, formula: Formula) -> sympy.Expr:
        """The output's formula, in which `o` has a meaning."""
        self.scope.names[READ.name] = Typed(READ, Axis.VALUE, Per.VALUE)
        result = self._lifted(formula, Axis.VALUE)
        del self.scope.names[READ.name]
        return result

    def _typed(self, formula: Formula) -> Typed:
        typed = self.scope.lower(formula.node)
        return Typed(rewrite_bottom_up(typed.expr, self._lift), typed.axis, typed.per)

    def _lift(self, node: sympy.Expr) -> sympy.Expr:
        if type(node) not in SUMS or node.has(READ):
            return node
        if node not in self.sums:
            name = f"sum{len(self.sums) + 1}"
            pers = {self.scope.quantities[s.name].per for s in symbols_of(node) if s not in (K, V)}
            per = Per.VALUE if Per.VALUE in pers else Per.KEY
            target = Quantity(element(name), Axis.SCALAR, per)
            self.scope.quantities[name] = target
            self.assignments.append(Assignment(target, node))
            self.sums[node] = target.symbol
        return self.sums[node]


_WORDS = {
    Axis.SCALAR: "scalar",
    Axis.KEY: "vector over key channels",
    Axis.VALUE: "vector over value channels",
}


def _is_name(definition: Definition, name: str | None = None) -> bool:
    """Whether the right-hand side is a bare name (a given one)."""
    node = definition.formula.node
    return isinstance(node, Name) and name in (None, node.id)


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, or with underscores behind it until nothing else is called so."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _expressions(steps: Iterable[Step]) -> list[sympy.Expr | None]:
    return [e for s in steps for e in (s.log_decay, s.key, s.read, s.value, s.gain)]


def _reachable(
    assignments: list[Assignment], roots: list[sympy.Expr | None]
) -> tuple[Assignment, ...]:
    """Assignments that something in `roots` needs, in their order."""
    needed: set[sympy.Symbol] = set()
    for root in roots:
        needed |= set(root.free_symbols) if root is not None else set()
    kept = []
    for assignment in reversed(assignments):
        if assignment.target.symbol in needed:
            needed |= set(assignment.expression.free_symbols)
            kept.append(assignment)
    return tuple(reversed(kept))
