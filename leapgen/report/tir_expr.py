"""TIR expressions as Python functions that evaluate them for all threads and count their loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapgen.report.tir_machine import Array, Machine, Mask, Memory, TirError, Unknown, Value

Evaluate = Callable[[Mask], Value]
FLOATING = Unknown("a floating-point value")
TRACKED = ("int32", "int64", "uint32", "bool")
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Div": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
    "Mod": lambda a, b: np.sign(a) * (np.abs(a) % np.abs(b)),
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "shift_left": np.left_shift, "shift_right": np.right_shift,
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """An evaluator, and whether evaluating it touches global memory."""

    run: Evaluate
    loads: bool = False


@dataclass(frozen=True)
class Pointer:
    """A place in a buffer: its name if it is global, the element index, bytes of an element."""

    name: str | None
    index: Node
    itemsize: int
    data: Any


def kind(thing: Any) -> str:
    """Class name of a TIR node."""
    return type(thing).__name__


def op_name(call: Any) -> str:
    """Name of a call's operator without its dialect (``tl.``, ``tirx.``)."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def itemsize(dtype: object) -> int:
    """Bytes of one element. Raises TirError for types of less than a byte."""
    digits = "".join(c for c in str(dtype).split("x")[0].replace("bfloat", "float") if c.isdigit())
    bits = 8 if str(dtype).startswith(("bool", "float8")) else int(digits)
    if bits % 8:
        raise TirError(f"elements of type {dtype} are not counted")
    return bits // 8


def wrap(value: Array, dtype: str) -> Array | Mask:
    """The value in the range of an integer type, as the hardware keeps it."""
    if dtype == "bool" or value.dtype == np.bool_:
        return value
    for bits in (8, 16, 32):
        if dtype == f"int{bits}":
            half = 1 << (bits - 1)
            return (value + half) % (2 * half) - half
        if dtype == f"uint{bits}":
            return value % (1 << bits)
    return value


def align(a: Array, b: Array) -> tuple[Array, Array]:
    """Two values with the same number of dimensions."""
    if a.ndim < b.ndim:
        return a[:, None], b
    return (a, b[:, None]) if b.ndim < a.ndim else (a, b)


class Expressions:
    """Translates expressions for one machine. ``names`` maps data variables of global buffers."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.names: dict[Any, str] = {}
        self.mixed: set[Any] = set()  # data variables that are seen under several types
        self.memories: dict[Any, Memory] = {}
        self.slots: dict[Any, int] = {}
        self.reach = 0  # how many global accesses and loop exits have been translated

    # -- variables ------------------------------------------------------------------------------

    def slot(self, var: Any) -> int:
        """The register of a variable."""
        return self.slots.setdefault(var, len(self.slots))

    def memory(self, buffer: Any) -> Memory | None:
        """Where integers of a buffer are tracked; nothing for other types and for mixed views."""
        data = buffer.data
        if data in self.names:
            return self.machine.globals.get(self.names[data])
        # A variable of type bool is lowered to one of int8.
        flag = str(buffer.dtype) == "int8" and str(buffer.scope()) == "local.var"
        if data in self.mixed or not (flag or str(buffer.dtype) in TRACKED):
            return None
        if data not in self.memories:
            size = int(np.prod([int(extent) for extent in buffer.shape]))
            copies = self.machine.count if str(buffer.scope()).startswith("local") else 1
            self.memories[data] = Memory(data.name, str(buffer.dtype), copies, size)
        return self.memories[data]

    # -- dispatch -------------------------------------------------------------------------------

    def node(self, e: Any) -> Node:
        """The evaluator of an expression. Raises TirError for a construct that is not known."""
        name = kind(e)
        if name in ("IntImm", "FloatImm", "StringImm"):
            return self._literal(e)
        if name in _BINARY:
            return self._binary(e, _BINARY[name])
        method = getattr(self, f"_{name.lower()}", None)
        if method is None:
            raise TirError(f"the expression {name} is not known: {str(e)[:120]}")
        result: Node = method(e)
        return result

    def _literal(self, e: Any) -> Node:
        if kind(e) != "IntImm":
            return Node(lambda mask: FLOATING)
        value = self.machine.constant(int(e.value))
        fixed = value.astype(np.bool_) if str(e.dtype) == "bool" else value
        return Node(lambda mask: fixed)

    def _var(self, e: Any) -> Node:
        slot, name, registers = self.slot(e), e.name, self.machine.registers
        unknown = Unknown(f"the parameter {name!r}, which is not given")
        return Node(lambda mask: registers.get(slot, unknown))

    _sizevar = _var

    def _binary(self, e: Any, function: Callable[[Any, Any], Any]) -> Node:
        a, b, dtype = self.node(e.a), self.node(e.b), str(e.dtype)
        operand = str(e.a.dtype)
        if operand.startswith(("float", "bfloat")):
            return self._floating(a, b)

        def run(mask: Mask) -> Value:
            x, y = a.run(mask), b.run(mask)
            if isinstance(x, Unknown) or isinstance(y, Unknown):
                return x if isinstance(x, Unknown) else y
            with np.errstate(divide="ignore", invalid="ignore"):
                return wrap(function(*align(x, y)), dtype.partition("x")[0])

        return Node(run, a.loads or b.loads)

    def _floating(self, *parts: Node) -> Node:
        """A value that is never known; its parts are evaluated only for what they load."""
        loading = [part.run for part in parts if part.loads]

        def run(mask: Mask) -> Value:
            for part in loading:
                part(mask)
            return FLOATING

        return Node(run, bool(loading))

    def _lazy(self, e: Any, stop: bool) -> Node:
        """``and`` and ``or``: the second operand only where the first does not decide."""
        a, b = self.node(e.a), self.node(e.b)

        def run(mask: Mask) -> Value:
            x = a.run(mask)
            if isinstance(x, Unknown):
                if b.loads:
                    raise TirError(f"whether a load happens depends on {x.reason}: {str(e)[:120]}")
                return x
            rest = mask & (x.astype(np.bool_) != stop)
            y = b.run(rest)
            if isinstance(y, Unknown):
                return y if rest.any() else x
            return np.where(x.astype(np.bool_) == stop, stop, y.astype(np.bool_))

        return Node(run, a.loads or b.loads)

    def _and(self, e: Any) -> Node:
        return self._lazy(e, stop=False)

    def _or(self, e: Any) -> Node:
        return self._lazy(e, stop=True)

    def _not(self, e: Any) -> Node:
        a = self.node(e.a)

        def run(mask: Mask) -> Value:
            x = a.run(mask)
            return x if isinstance(x, Unknown) else ~x.astype(np.bool_)

        return Node(run, a.loads)

    def _cast(self, e: Any) -> Node:
        inner, dtype = self.node(e.value), str(e.dtype).partition("x")[0]
        if dtype.startswith(("float", "bfloat")):
            return self._floating(inner)

        def run(mask: Mask) -> Value:
            x = inner.run(mask)
            if isinstance(x, Unknown):
                return x
            return x.astype(np.bool_) if dtype == "bool" else wrap(x.astype(np.int64), dtype)

        return Node(run, inner.loads)

    def _ramp(self, e: Any) -> Node:
        base, stride = self.node(e.base), self.node(e.stride)
        steps = np.arange(int(e.lanes))

        def run(mask: Mask) -> Value:
            x, y = base.run(mask), stride.run(mask)
            if isinstance(x, Unknown) or isinstance(y, Unknown):
                return x if isinstance(x, Unknown) else y
            return x[:, None] + y[:, None] * steps

        return Node(run, base.loads or stride.loads)

    def _broadcast(self, e: Any) -> Node:
        return self.node(e.value)

    def _shuffle(self, e: Any) -> Node:
        return self._floating(*map(self.node, [*e.vectors, *e.indices]))

    def _let(self, e: Any) -> Node:
        value, slot = self.node(e.value), self.slot(e.var)
        body = self.node(e.body)

        def run(mask: Mask) -> Value:
            self.machine.registers[slot] = value.run(mask)
            return body.run(mask)

        return Node(run, value.loads or body.loads)

    def _select(self, e: Any) -> Node:
        return self.choice(e.condition, e.true_value, e.false_value)

    def choice(self, condition: Any, yes: Any, no: Any) -> Node:
        """A conditional expression: CUDA's ``?:`` evaluates one side."""
        c, a, b = self.node(condition), self.node(yes), self.node(no)

        def run(mask: Mask) -> Value:
            decided = c.run(mask)
            if isinstance(decided, Unknown):
                if a.loads or b.loads:
                    why = f"{decided.reason}: {str(condition)[:120]}"
                    raise TirError(f"whether a load happens depends on {why}")
                return decided
            if decided.ndim > 1:
                raise TirError(f"a condition with vector lanes: {str(condition)[:120]}")
            chosen = decided.astype(np.bool_)
            x, y = a.run(mask & chosen), b.run(mask & ~chosen)
            if isinstance(x, Unknown) or isinstance(y, Unknown):
                return self._one_side(x, y, chosen, mask)
            x, y = align(x, y)
            return np.where(align(chosen, x)[0], x, y)

        return Node(run, c.loads or a.loads or b.loads)

    @staticmethod
    def _one_side(x: Value, y: Value, chosen: Mask, mask: Mask) -> Value:
        """One side is unknown: the other counts if no thread takes the unknown one."""
        if isinstance(x, Unknown) and (chosen & mask).any():
            return x
        if isinstance(y, Unknown) and (~chosen & mask).any():
            return y
        return y if isinstance(x, Unknown) else x
