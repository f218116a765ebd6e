"""Formulas to element expressions: what a name means, and how a formula becomes SymPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import sympy

from leapgen.algebra.recurrence import Quantity
from leapgen.algebra.symbols import K, SumK, SumV, V, element, sigmoid, softplus, unit_v
from leapgen.diagnostics import Diagnostic, Diagnostics, Span
from leapgen.spec.expression import Binary, Call, Name, Node, Number, Transpose, Unary
from leapgen.tensors import Axis, Per

_ELEMENTWISE: dict[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "exp": sympy.exp,
    "log": sympy.log,
    "sqrt": sympy.sqrt,
    "rsqrt": lambda x: x ** sympy.Rational(-1, 2),
    "softplus": softplus,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "tanh": sympy.tanh,
}
_PAIRWISE: dict[str, Callable[..., sympy.Expr]] = {"max": sympy.Max, "min": sympy.Min}
_SUMS: dict[Axis, type[sympy.Function]] = {Axis.KEY: SumK, Axis.VALUE: SumV}


@dataclass(frozen=True)
class Typed:
    """An element expression with its axis and the heads it belongs to."""

    expr: sympy.Expr
    axis: Axis = Axis.SCALAR
    per: Per = Per.KEY


@dataclass
class Scope:
    """Names in force while a spec is lowered, and the file that errors point into."""

    path: str = ""
    source: str = ""
    names: dict[str, Typed] = field(default_factory=dict)  # a name's latest meaning
    quantities: dict[str, Quantity] = field(default_factory=dict)  # by unique name

    def error(self, code: str, message: str, span: Span | None, help: str = "") -> Diagnostics:
        """The error to raise at a place of the spec file."""
        lines = (help,) if help else ()
        item = Diagnostic(code, message, self.path, span, help=lines)
        return Diagnostics([item], {self.path: self.source})

    def declare(self, name: str, unique: str, axis: Axis, per: Per) -> Quantity:
        """Let `name` mean a quantity that is called `unique` from now on."""
        quantity = Quantity(element(unique), axis, per)
        self.quantities[unique] = quantity
        self.names[name] = Typed(quantity.symbol, axis, per)
        return quantity

    def lower(self, node: Node) -> Typed:
        """The element expression of a formula without matrices.

        Raises:
            Diagnostics: a name is unknown, axes are mixed, or a matrix operation stands here.
        """
        match node:
            case Number():
                return Typed(sympy.Rational(node.text))
            case Name():
                return self._name(node)
            case Unary():
                operand = self.lower(node.operand)
                return Typed(-operand.expr, operand.axis, operand.per)
            case Call():
                return self._call(node)
            case Binary(operator="@") | Transpose():
                raise self.error("matrix-formula", "matrices stand in `native` only", node.span)
            case Binary():
                left, right = self.lower(node.left), self.lower(node.right)
                expr = arithmetic(node.operator, left.expr, right.expr)
                return self.join(expr, left, right, span=node.span)

    def join(self, expr: sympy.Expr, *operands: Typed, span: Span | None) -> Typed:
        """Type of an elementwise result; raises Diagnostics if key and value channels meet."""
        axes = {o.axis for o in operands} - {Axis.SCALAR}
        if len(axes) > 1:
            message = "a vector over key channels and one over value channels do not combine"
            raise self.error("axis-mismatch", message, span, "reduce one of them with `sum`")
        per = Per.VALUE if any(o.per is Per.VALUE for o in operands) else Per.KEY
        return Typed(expr, axes.pop() if axes else Axis.SCALAR, per)

    def _name(self, node: Name) -> Typed:
        if node.id in ("K", "V"):
            return Typed(K if node.id == "K" else V)
        if node.id not in self.names:
            raise self.error("unknown-name", f"`{node.id}` is not defined here", node.span)
        return self.names[node.id]

    def _call(self, node: Call) -> Typed:
        if node.function == "unit":
            return Typed(unit_v(), Axis.VALUE)
        arguments = [self.lower(a) for a in node.arguments]
        first = arguments[0]
        if node.function in _ELEMENTWISE:
            return Typed(_ELEMENTWISE[node.function](first.expr), first.axis, first.per)
        if node.function in _PAIRWISE:
            expr = _PAIRWISE[node.function](*(a.expr for a in arguments))
            return self.join(expr, *arguments, span=node.span)
        if node.function in ("sum", "dot"):
            product = sympy.Mul(*(a.expr for a in arguments))
            return self._sum(self.join(product, *arguments, span=node.span), node.span)
        if node.function == "l2norm":
            return self._l2norm(first, node)
        raise self.error("unknown-function", f"`{node.function}` has no meaning here", node.span)

    def _sum(self, operand: Typed, span: Span | None) -> Typed:
        if operand.axis is Axis.SCALAR:
            raise self.error("axis-mismatch", "there is no axis to sum over", span)
        return Typed(_SUMS[operand.axis](operand.expr), Axis.SCALAR, operand.per)

    def _l2norm(self, x: Typed, node: Call) -> Typed:
        eps = node.keyword("eps")
        floor = self.lower(eps).expr if eps is not None else sympy.S.Zero
        squares = self._sum(Typed(x.expr**2, x.axis, x.per), node.span)
        norm = (squares.expr + floor) ** sympy.Rational(-1, 2)
        return Typed(x.expr * norm, x.axis, x.per)


def arithmetic(operator: str, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    """One elementwise operation."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return left**right
