"""Matrix shapes of the native update, and that it is linear in the state.

Vectors are columns: k is K x 1, v is V x 1, the state S is K x V. `*` is scalar or element by
element between equal shapes of vectors; everything else is `@`.
"""

from __future__ import annotations

from dataclasses import dataclass

from leapgen.diagnostics import Report
from leapgen.spec import beyond
from leapgen.spec import expression as ex
from leapgen.spec.shapes import Scope, check_eps, check_unit, resolve
from leapgen.tensors import Axis


@dataclass(frozen=True)
class Shape:
    """Rows and columns as words: "1", "K", "V"; both None for a multiple of the identity.

    state   the state is a factor of it, once
    """

    rows: str | None
    columns: str | None
    state: bool = False

    @property
    def scalar(self) -> bool:
        """1 x 1."""
        return self.rows == self.columns == "1"

    @property
    def vector(self) -> bool:
        """A row or a column of more than one element."""
        return (self.rows == "1") != (self.columns == "1")

    def __str__(self) -> str:
        return "a scalar" if self.scalar else f"{self.rows or 'n'} x {self.columns or 'n'}"


_LINEAR = beyond.LINEAR[0]
_SHAPES = "k is K x 1, v is V x 1, the state S is K x V; `.T` is the transpose"

SCALAR = Shape("1", "1")
STATE = Shape("K", "V", state=True)


def check_native(node: ex.Node, scope: Scope, report: Report) -> None:
    """Report every shape error of the native update, and whatever is not linear in the state."""
    checker = _Matrices(scope, report)
    shape = checker.shape(node)
    if shape is None:
        return
    if (shape.rows, shape.columns) != ("K", "V"):
        swapped = (shape.rows, shape.columns) == ("V", "K")
        help_text = "the state is K x V here: key channels are its rows, value channels its columns"
        hint = "transpose the update: (a @ b).T is b.T @ a.T" if swapped else ""
        message = f"the native update must be K x V, but this is {shape}"
        report.error("matrix-shape", message, node.span, help=[help_text, hint])
    elif not shape.state:
        message = "the native update does not use the state `S`"
        report.error("nonlinear-state", message, node.span, help="write the previous state as `S`")


@dataclass(frozen=True)
class _Matrices:
    scope: Scope
    report: Report

    def error(self, code: str, message: str, node: ex.Node, *help: str, label: str = "") -> None:
        self.report.error(code, message, node.span, label=label, help=help)

    def shape(self, node: ex.Node) -> Shape | None:
        match node:
            case ex.Number():
                return SCALAR
            case ex.Name():
                return self._name(node)
            case ex.Unary():
                return self.shape(node.operand)
            case ex.Transpose():
                inner = self.shape(node.operand)
                return inner and Shape(inner.columns, inner.rows, inner.state)
            case ex.Call():
                return self._call(node)
            case ex.Binary():
                return self._binary(node)

    def _name(self, node: ex.Name) -> Shape | None:
        if node.id == "S":
            return STATE
        if node.id == "I":
            return Shape(None, None)
        found = resolve(node, self.scope, self.report)
        if found is None:
            return None
        return SCALAR if found.axis is Axis.SCALAR else Shape(found.axis.value, "1")

    def _call(self, node: ex.Call) -> Shape | None:
        if node.function in ex.UNITS:
            return Shape("V", "1") if check_unit(node, self.report) else None
        found = [self.shape(a) for a in node.arguments]
        shapes = [s for s in found if s is not None]
        if len(shapes) < len(found):
            return None
        if any(s.state for s in shapes):
            self.error("nonlinear-state", beyond.nonlinear(node.function), node, *beyond.LINEAR)
            return None
        name, first = node.function, shapes[0]
        if name in ex.NORMS:
            check_eps(node, self.report)
        if name == "diag":
            return self._diag(node, first)
        if any((s.rows, s.columns) == ("K", "V") for s in shapes):
            self._elementwise(node, f"`{node.function}` of a matrix K x V")
            return None
        if any(not s.scalar and not s.vector for s in shapes):
            message = f"`{name}` takes scalars and vectors, not a matrix"
            self.error("matrix-shape", message, node, "use it inside `diag(...)`")
            return None
        if (name in ex.REDUCTIONS or name in ex.NORMS) and any(s.scalar for s in shapes):
            message = f"`{name}` needs vectors, but got a scalar"
            self.error("matrix-shape", message, node, "it sums over K or over V; leave it out")
            return None
        joined = self._alike(node, shapes[0], shapes[1]) if len(shapes) == 2 else first
        return SCALAR if joined and name in ex.REDUCTIONS else joined

    def _diag(self, node: ex.Call, inner: Shape) -> Shape | None:
        if inner.vector:
            size = inner.rows if inner.columns == "1" else inner.columns
            return Shape(size, size)
        scaled = "a scalar times the identity is written `a * I`"
        help_text = scaled if inner.scalar else "give it a column, like exp(g)"
        self.error("matrix-shape", f"`diag` needs a vector, but got {inner}", node, help_text)
        return None

    def _binary(self, node: ex.Binary) -> Shape | None:
        left, right = self.shape(node.left), self.shape(node.right)
        if left is None or right is None:
            return None
        match node.operator:
            case "@":
                return self._product(node, left, right)
            case "+" | "-":
                return self._sum(node, left, right)
            case "*":
                return self._scaled(node, left, right)
            case _:
                return self._quotient(node, left, right)

    def _linear(self, node: ex.Binary, left: Shape, right: Shape) -> bool:
        if left.state and right.state:
            message = "the state times the state: the update must be linear in `S`"
            self.error("nonlinear-state", message, node, _LINEAR)
        return not (left.state and right.state)

    def _product(self, node: ex.Binary, left: Shape, right: Shape) -> Shape | None:
        if not self._linear(node, left, right):
            return None
        state = left.state or right.state
        if left.scalar or right.scalar:
            message = "`@` multiplies vectors and matrices, but one side is a scalar"
            self.error("matrix-shape", message, node, "a scalar is multiplied with `*`")
            return None
        if left.rows is None or right.rows is None:  # a multiple of the identity
            other = right if left.rows is None else left
            return Shape(other.rows, other.columns, state)
        over_values = left.columns == right.rows == "V"
        if over_values and ((left.state and right.vector) or (right.state and left.vector)):
            message = "the state is summed over its value channels: it is read from the other side"
            hint = "a token reads `S.T @ x` with x over K; reads `S @ v` are not supported"
            self.error("transition-form", message, node, hint)
            return None
        if left.columns == right.rows:
            return Shape(left.rows, right.columns, state)
        message = f"`@` cannot multiply {left} with {right}"
        help_text = self._outer(node, left, right) or (_SHAPES,)
        self.error("matrix-shape", message, node, *help_text)
        return None

    def _outer(self, node: ex.Binary, left: Shape, right: Shape) -> tuple[str, ...]:
        """What was probably meant by a product of two vectors."""
        if not (left.vector and right.vector and left.columns == "1"):
            return ()
        a, b = ex.unparse(node.left), ex.unparse(node.right)
        if right.rows == "1":
            return (f"vectors are columns: the outer product is `{a} @ {b}`",)
        inner = f", the inner one `dot({a}, {b})`" if left.rows == right.rows else ""
        return (f"vectors are columns: the outer product is `{a} @ {b}.T`{inner}",)

    def _sum(self, node: ex.Binary, left: Shape, right: Shape) -> Shape | None:
        state = left.state or right.state
        if left.rows is None or right.rows is None:
            known = right if left.rows is None else left
            if known.rows != known.columns or known.scalar:
                message = f"`I` is square, but the other side is {known}"
                self.error("matrix-shape", message, node, "a scalar one is written `1`")
                return None
            return Shape(known.rows, known.columns, state)
        joined = self._alike(node, left, right)
        return joined and Shape(joined.rows, joined.columns, state)

    def _scaled(self, node: ex.Binary, left: Shape, right: Shape) -> Shape | None:
        if not self._linear(node, left, right):
            return None
        state = left.state or right.state
        if left.scalar or right.scalar:
            other = right if left.scalar else left
            return Shape(other.rows, other.columns, state)
        if left.vector and (left.rows, left.columns) == (right.rows, right.columns):
            return left
        if state and (left.rows, left.columns) == (right.rows, right.columns) == ("K", "V"):
            self._elementwise(node, "a factor of its own for every element of the state")
            return None
        a, b = ex.unparse(node.left), ex.unparse(node.right)
        message = f"`*` between {left} and {right}: a product of vectors and matrices needs `@`"
        scales = left.vector and left.rows == right.rows and not right.vector
        rows = (f"to scale rows write `diag({a}) @ {b}`",) if scales else ()
        help_text = rows or self._outer(node, left, right) or (_SHAPES,)
        self.error("matrix-shape", message, node, *help_text)
        return None

    def _elementwise(self, node: ex.Node, what: str) -> None:
        """Report what differs from element to element of the state."""
        message = f"{what}: a transition is diagonal plus rank n, a write has rank one"
        scales = "decays scale whole rows (key channels): `exp(g) * S` or `diag(exp(g)) @ S`"
        self.error("transition-form", message, node, scales, "writes are like `k @ v.T`")

    def _quotient(self, node: ex.Binary, left: Shape, right: Shape) -> Shape | None:
        if right.state or (node.operator == "**" and left.state):
            message = f"the state under `{node.operator}`: the update must be linear in `S`"
            self.error("nonlinear-state", message, node, _LINEAR)
            return None
        if right.scalar and (node.operator == "/" or left.vector or left.scalar):
            return left
        if (left.vector or left.scalar) and (right.vector or right.scalar):
            return self._alike(node, left, right)
        message = f"`{node.operator}` between {left} and {right}"
        self.error("matrix-shape", message, node, "divide by scalars, or by vectors of one shape")
        return None

    def _alike(self, node: ex.Node, left: Shape, right: Shape) -> Shape | None:
        """Equal shapes, or a scalar with a vector."""
        if (left.rows, left.columns) == (right.rows, right.columns):
            return left
        if left.scalar or right.scalar:
            other = right if left.scalar else left
            if other.vector:
                return other
            message = f"a scalar and a matrix of {other} do not add"
            self.error("matrix-shape", message, node, "the identity is written `I`")
            return None
        vector = right if left.state else left
        if (left.state or right.state) and vector.vector:
            message = f"the state is a matrix K x V, and this adds a vector of {vector} to it"
            matrix = "a state that is a vector (a number a channel) has no keys to read it with"
            outer = "a sub-step writes an outer product `key @ value.T`"
            self.error("vector-state", message, node, matrix, outer)
            return None
        turned = (left.rows, left.columns) == (right.columns, right.rows)
        hint = "transpose one of the two" if turned else _SHAPES
        self.error("matrix-shape", f"shapes do not agree: {left} and {right}", node, hint)
        return None
