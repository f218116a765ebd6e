"""The matrix language of `native:` formulas, read as an affine map of the state.

Every value has a shape (rows, columns) of axes. Inside, nothing is a matrix: a K x K value is an
`Operator`, a K x V value a `StateMap`, a V vector its entry plus a read of the state, and the rest
are element expressions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from leapgen.algebra.affine import IDENTITY, NOTHING, Operator, StateMap
from leapgen.algebra.scope import Scope, arithmetic
from leapgen.algebra.symbols import SumK, SumV
from leapgen.diagnostics import Diagnostics, Span
from leapgen.spec.expression import Binary, Call, Name, Node, Transpose, Unary, names
from leapgen.tensors import Axis

_S, _K, _V = Axis.SCALAR, Axis.KEY, Axis.VALUE


@dataclass(frozen=True)
class Value:
    """A native sub-formula.

    rows, columns   SCALAR means one; both None: a multiple of the identity of any size
    entry           the entry; for K x K unused; for V x V and the identity the diagonal
    operator        K x K: the matrix; K x V and V x K: the coefficient of S; else zero
    read            V x 1 and 1 x V: y in S^T y + entry, a K-element expression
    """

    rows: Axis | None
    columns: Axis | None
    entry: sympy.Expr = sympy.S.Zero
    operator: Operator = NOTHING
    read: sympy.Expr = sympy.S.Zero

    @property
    def shape(self) -> tuple[Axis | None, Axis | None]:
        """(rows, columns)."""
        return (self.rows, self.columns)

    @property
    def free_of_state(self) -> bool:
        """Whether S does not occur."""
        return self.read == 0 and (self.shape == (_K, _K) or self.operator == NOTHING)

    def transposed(self) -> Value:
        """The transpose; only K x K has an inside that changes."""
        operator = self.operator.transposed() if self.shape == (_K, _K) else self.operator
        return replace(self, rows=self.columns, columns=self.rows, operator=operator)

    def scaled(self, factor: sympy.Expr) -> Value:
        """factor * value, for a number (at one value channel)."""
        return replace(
            self,
            entry=factor * self.entry,
            operator=self.operator.scaled(factor),
            read=factor * self.read,
        )

    def plus(self, other: Value) -> Value:
        """The sum of two values of one shape."""
        return replace(
            self,
            entry=self.entry + other.entry,
            operator=self.operator + other.operator,
            read=self.read + other.read,
        )


def lower_native(node: Node, scope: Scope) -> StateMap:
    """The affine map that a native formula describes.

    Raises:
        Diagnostics: shapes do not fit, or the formula is not affine in S with value channels
            kept apart; at the place of the sub-formula.
    """
    value = _Reader(scope).value(node)
    if value.shape != (_K, _V):
        message = f"the native update is a {_word(value)}, expected a K x V matrix"
        raise scope.error("native-shape", message, node.span)
    return StateMap(value.operator, value.entry)


def _word(value: Value) -> str:
    rows, columns = (("n" if axis is None else axis.value or "1") for axis in value.shape)
    return "scalar" if rows == columns == "1" else f"{rows} x {columns} matrix"


def _sized(value: Value, like: Value) -> Value:
    """The identity as K x K or V x V, a scalar as a vector, where `like` asks for it."""
    if value.rows is None and like.shape == (_K, _K):
        return Value(_K, _K, operator=Operator(value.entry))
    if value.rows is None and like.shape == (_V, _V):
        return replace(value, rows=_V, columns=_V)
    vector = _S in like.shape and like.shape != (_S, _S)
    if value.shape == (_S, _S) and vector:
        return replace(value, rows=like.rows, columns=like.columns)
    return value


@dataclass(frozen=True)
class _Reader:
    scope: Scope

    def value(self, node: Node) -> Value:
        match node:
            case Name(id="S"):
                return Value(_K, _V, operator=IDENTITY)
            case Name(id="I"):
                return Value(None, None, entry=sympy.S.One)
            case Transpose():
                return self.value(node.operand).transposed()
            case Unary():
                return self.value(node.operand).scaled(sympy.S.NegativeOne)
            case Call(function="diag"):
                return self.diagonal(node)
            case Binary(operator="@"):
                left, right = self.value(node.left), self.value(node.right)
                return self.product(left, right, node.span)
            case Binary(operator="+" | "-"):
                left, right = self.value(node.left), self.value(node.right)
                return self.sum(left, right, node.operator, node.span)
            case Binary(operator="*"):
                left, right = self.value(node.left), self.value(node.right)
                return self.elementwise(left, right, node.span)
            case Binary(operator="/"):
                left, right = self.value(node.left), self.value(node.right)
                return self.quotient(left, right, node.span)
            case _:
                return self.plain(node)

    def plain(self, node: Node) -> Value:
        """A formula without matrices; S inside it is under a function or a power."""
        if {"S", "I"} & set(names(node)):
            message = "the native update must be affine in S: no function of S or I"
            raise self.scope.error("native-not-affine", message, node.span)
        typed = self.scope.lower(node)
        return Value(typed.axis, _S, entry=typed.expr)

    def diagonal(self, node: Call) -> Value:
        vector = self.value(node.arguments[0])
        if vector.columns is not _S or vector.rows is _S or not vector.free_of_state:
            raise self.error("`diag` takes a vector without S", node.span)
        if vector.rows is _K:
            return Value(_K, _K, operator=Operator(vector.entry))
        return Value(_V, _V, entry=vector.entry)

    def sum(self, left: Value, right: Value, operator: str, span: Span) -> Value:
        """`+` and `-` of like shapes; the identity and scalars take the shape they meet."""
        left, right = _sized(left, right), _sized(right, left)
        if left.shape != right.shape:
            message = f"a {_word(left)} and a {_word(right)} cannot be added"
            raise self.error(message, span)
        return left.plus(right.scaled(sympy.Integer(-1 if operator == "-" else 1)))

    def elementwise(self, left: Value, right: Value, span: Span) -> Value:
        """`*`: a scalar times anything, or two vectors of one shape."""
        for factor, other in ((left, right), (right, left)):
            if factor.shape == (_S, _S) and factor.free_of_state:
                return other.scaled(factor.entry)
            vectors = factor.shape == other.shape and _S in factor.shape
            if vectors and factor.free_of_state:
                # S^T y times v, entry j: v[j] counts as a number there.
                return other.scaled(factor.entry)
        if left.shape == right.shape and not left.free_of_state and not right.free_of_state:
            raise self.not_affine(span)
        raise self.error(f"`*` of a {_word(left)} and a {_word(right)}; matrices take `@`", span)

    def quotient(self, left: Value, right: Value, span: Span) -> Value:
        same = left.shape == right.shape and _S in left.shape
        if not right.free_of_state or not (right.shape == (_S, _S) or same):
            raise self.error("the divisor must be a scalar or a like vector without S", span)
        return left.scaled(arithmetic("/", sympy.S.One, right.entry))

    def product(self, left: Value, right: Value, span: Span) -> Value:
        """`@`; products that start from the value side are done transposed."""
        for identity, other in ((left, right), (right, left)):
            if identity.rows is None:
                return other.scaled(identity.entry)
        if left.columns is not right.rows:
            raise self.error(f"a {_word(left)} times a {_word(right)}", span)
        if left.shape == (_S, _S):
            return self.elementwise(left, right, span)
        if left.rows is _K and left.columns is _S:
            return self.outer(left, right, span)
        if left.columns is _K:
            return self.contract_key(left, right, span)
        if left.columns is _V:
            return self.contract_value(left, right, span)
        if right.columns is _V:
            raise self.mixed(span)
        return self.product(right.transposed(), left.transposed(), span).transposed()

    def outer(self, left: Value, right: Value, span: Span) -> Value:
        """A K vector times a row."""
        x = left.entry
        if right.columns is _K:
            return Value(_K, _K, operator=Operator(terms=((x, right.entry),)))
        if right.columns is _V:
            terms = ((x, right.read),) if right.read != 0 else ()
            return Value(_K, _V, entry=x * right.entry, operator=Operator(terms=terms))
        return self.elementwise(left, right, span)

    def contract_key(self, left: Value, right: Value, span: Span) -> Value:
        """Contract the key channels: rows are K (an operator), one (a row) or V (S transposed)."""
        if left.rows is _V:
            if not left.free_of_state and not right.free_of_state:
                raise self.not_affine(span)
            if right.columns is _V:
                raise self.mixed(span)
            return self.product(right.transposed(), left.transposed(), span).transposed()
        if left.rows is _K:
            return self.operate(left.operator, right)
        row = left.entry
        if right.columns is _S:
            return Value(_S, _S, entry=SumK(row * right.entry))
        weights = right.operator.transposed().apply(row)
        if right.columns is _K:
            return Value(_S, _K, entry=weights)
        return Value(_S, _V, entry=SumK(row * right.entry), read=weights)

    def operate(self, operator: Operator, right: Value) -> Value:
        """A K x K matrix times a matrix or vector."""
        if right.columns is _K:
            return Value(_K, _K, operator=operator @ right.operator)
        entry = operator.apply(right.entry)
        return Value(_K, right.columns, entry=entry, operator=operator @ right.operator)

    def contract_value(self, left: Value, right: Value, span: Span) -> Value:
        """Contract the value channels: only with a diagonal, or where no state is left."""
        if right.shape == (_V, _V):
            return left.scaled(right.entry)
        if left.shape == (_V, _V):
            return right.scaled(left.entry)
        if not left.free_of_state and not right.free_of_state:
            raise self.not_affine(span)
        if not left.free_of_state or not right.free_of_state:
            raise self.mixed(span)
        if right.columns is not _S or left.rows is _V:
            raise self.mixed(span)
        return Value(left.rows, _S, entry=SumV(left.entry * right.entry))

    def error(self, message: str, span: Span) -> Diagnostics:
        return self.scope.error("native-shape", message, span)

    def not_affine(self, span: Span) -> Diagnostics:
        message = "the native update must be affine in S: here S is multiplied by S"
        return self.scope.error("native-not-affine", message, span)

    def mixed(self, span: Span) -> Diagnostics:
        message = "the native update must keep value channels apart: here they are summed over"
        return self.scope.error("native-not-affine", message, span)
