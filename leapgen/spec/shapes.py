"""Axes and heads of coefficient formulas: every quantity is a scalar, over K or over V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leapgen.diagnostics import Report, listing, suggest
from leapgen.spec import beyond
from leapgen.spec import expression as ex
from leapgen.tensors import Axis, Per


@dataclass(frozen=True)
class Type:
    """What a quantity ranges over, and which heads it has one instance for."""

    axis: Axis
    per: Per


CONSTANT = Type(Axis.SCALAR, Per.KEY)
"""Numbers and dimensions: per key head, the weaker of the two."""

AXIS_WORDS = {Axis.SCALAR: "a scalar", Axis.KEY: "over K", Axis.VALUE: "over V"}


@dataclass(frozen=True)
class Scope:
    """Names that a formula may use. A type of None: declared, but what it is was reported.

    later   names that are defined further down
    dropped names that the picked alternatives do without, with the reason
    output  the formula is of the output, not of the update
    """

    types: Mapping[str, Type | None]
    later: frozenset[str] = frozenset()
    dropped: Mapping[str, str] = field(default_factory=dict)
    output: bool = False


def join(left: Per, right: Per) -> Per:
    """Per value head as soon as one side is."""
    return Per.VALUE if Per.VALUE in (left, right) else Per.KEY


def infer(node: ex.Node, scope: Scope, report: Report) -> Type | None:
    """Type of a coefficient formula; None after an error, here or in a name it uses."""
    return _Elements(scope, report).type(node)


def resolve(name: ex.Name, scope: Scope, report: Report) -> Type | None:
    """Type of a name; unknown ones are reported with the nearest known."""
    if name == ex.HOLE:
        return None
    if name.id in scope.types:
        return scope.types[name.id]
    if name.id in ex.DIMENSIONS:
        return CONSTANT
    if name.id in scope.later:
        message = f"`{name.id}` has no value yet: it is defined further down"
        help_text = "a name means the latest earlier definition or input: move the other one up"
        report.error("used-before-definition", message, name.span, help=help_text)
    elif name.id in scope.dropped:
        message = f"`{name.id}` is used, but {scope.dropped[name.id]}"
        help_text = "replace what uses it in the same alternative, or do not drop it"
        report.error("unknown-symbol", message, name.span, help=help_text)
    elif name.id == ex.READ:
        message = f"`{name.id}`, what the query reads, has a meaning only in the output's `result`"
        help_text = "write it there: result: o * silu(z)"
        report.error("unknown-symbol", message, name.span, help=help_text)
    elif name.id in ("H", "HV"):
        message = f"`{name.id}` cannot stand in a formula"
        help_text = "formulas describe one head; pass what depends on the head as an input"
        report.error("unknown-symbol", message, name.span, help=help_text)
    elif beyond.is_earlier(name.id):
        message = f"`{name.id}` is neither an input nor a definition"
        report.error("second-state", message, name.span, help=beyond.CARRIED)
    else:
        known = (*scope.types, *ex.DIMENSIONS)
        help_text = suggest(name.id, known) or f"known here: {listing(known)}"
        message = f"`{name.id}` is neither an input nor a definition"
        report.error("unknown-symbol", message, name.span, help=help_text)
    return None


def check_unit(call: ex.Call, report: Report) -> bool:
    """unit(V) has the name of its axis as its argument."""
    good = call.arguments == (ex.Name("V"),)
    if not good:
        help_text = "unit(V) is 1 in the last value channel and 0 in the others"
        message = "the argument of `unit` must be V"
        report.error("formula-arguments", message, call.span, help=help_text)
    return good


def check_eps(call: ex.Call, report: Report) -> None:
    """l2norm's `eps` is a number: it is compiled in."""
    eps = call.keyword("eps")
    if eps is not None and not isinstance(eps, ex.Number):
        help_text = "write it like eps=1e-6"
        report.error("formula-arguments", "`eps` must be a number", eps.span, help=help_text)


@dataclass(frozen=True)
class _Elements:
    scope: Scope
    report: Report

    def type(self, node: ex.Node) -> Type | None:
        match node:
            case ex.Number():
                return CONSTANT
            case ex.Name(id="S"):
                self._state(node)
                return None
            case ex.Name(id="I"):
                self._matrix(node, "the identity `I`")
                return None
            case ex.Name():
                return resolve(node, self.scope, self.report)
            case ex.Unary():
                return self.type(node.operand)
            case ex.Transpose():
                self.type(node.operand)
                self._matrix(node, "a transpose")
                return None
            case ex.Call():
                return self._call(node)
            case ex.Binary():
                return self._binary(node)

    def _state(self, node: ex.Name) -> None:
        if self.scope.output:
            message = "the output depends on the state in another way than one read `S^T query`"
            help_text = "`query` and `add` are made of inputs; of the state there is this one read"
            self.report.error("state-in-output", message, node.span, help=help_text)
            return
        message = "the state `S` stands in a coefficient, so the update is not linear in it"
        help_text = "a sub-step reads the state by its `read` vector, and nothing else does"
        self.report.error("state-in-coefficient", message, node.span, help=help_text)

    def _matrix(self, node: ex.Node, what: str) -> None:
        message = f"{what} can stand only in `native`"
        help_text = "coefficients are computed element by element; use sum(x) or dot(x, y)"
        self.report.error("matrix-syntax", message, node.span, help=help_text)

    def _call(self, node: ex.Call) -> Type | None:
        if node.function in ex.UNITS:
            return Type(Axis.VALUE, Per.KEY) if check_unit(node, self.report) else None
        found = [self.type(a) for a in node.arguments]
        types = [t for t in found if t is not None]
        if node.function in ex.NATIVE_FUNCTIONS:
            self._matrix(node, f"`{node.function}`")
            return None
        if node.function in ex.NORMS:
            check_eps(node, self.report)
        if len(types) < len(found):
            return None
        if len(types) == 2:
            joined = self._join(node, node.arguments, (types[0], types[1]), node.function)
        else:
            joined = types[0]
        needs_vector = node.function in ex.REDUCTIONS or node.function in ex.NORMS
        if joined and needs_vector and Axis.SCALAR in [t.axis for t in types]:
            message = f"`{node.function}` needs vectors, but got a scalar"
            help_text = "it sums over K or over V; leave it out"
            self.report.error("axis-mismatch", message, node.span, help=help_text)
            return None
        reduces = joined and node.function in ex.REDUCTIONS
        return Type(Axis.SCALAR, joined.per) if joined and reduces else joined

    def _binary(self, node: ex.Binary) -> Type | None:
        left, right = self.type(node.left), self.type(node.right)
        if node.operator == "@":
            self._matrix(node, "the matrix product `@`")
            return None
        if left is None or right is None:
            return None
        return self._join(node, (node.left, node.right), (left, right), node.operator)

    def _join(
        self, node: ex.Node, sides: tuple[ex.Node, ...], types: tuple[Type, Type], what: str
    ) -> Type | None:
        """Type of an element-by-element operation; reports K against V."""
        left, right = types
        axes = {left.axis, right.axis} - {Axis.SCALAR}
        if len(axes) < 2:
            axis = axes.pop() if axes else Axis.SCALAR
            return Type(axis, join(left.per, right.per))
        words = [
            f"`{ex.unparse(n)}` is {AXIS_WORDS[t.axis]}" for n, t in zip(sides, types, strict=True)
        ]
        self.report.error(
            "axis-mismatch",
            f"`{what}` takes one element of each side, but one is over K and the other over V",
            node.span,
            label="K against V",
            help="sum(x) and dot(x, y) make scalars; an outer product is what a sub-step writes",
            notes=words,
        )
        return None
