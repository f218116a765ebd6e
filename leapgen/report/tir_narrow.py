"""Products in address expressions that 32 bits may not hold: a check of the IR, not of review.

Every integer expression gets the interval of its possible values. Block indices of a grid that is
not fixed, kernel parameters and what is loaded from memory may be anything that their type holds;
thread indices, loop variables, remainders and constants are bounded. A 32-bit product, left shift
or narrowing cast on the way to an address is reported if its interval leaves the range of its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leapgen.oracle.emulator.lowering import lower
from leapgen.report.tir_access import SAME
from leapgen.report.tir_expr import kind, op_name

_WIDEST = (-(1 << 63), (1 << 63) - 1)
Interval = tuple[int, int]


@dataclass(frozen=True)
class NarrowProduct:
    """A finding: the buffer whose address it belongs to, the expression, and its interval."""

    buffer: str
    expression: str
    interval: Interval

    def __str__(self) -> str:
        return f"{self.buffer}: {self.expression} may reach {self.interval[0]}..{self.interval[1]}"


def narrow_products(
    func: Any, arch: str, *, bounded: Mapping[str, int] | None = None
) -> tuple[NarrowProduct, ...]:
    """Findings in the addresses of all global buffers of a TileLang prim_func; empty if sound.

    bounded  largest value of buffers or parameters that are known to lie in 0..value, by name:
             cursors and phases, say
    """
    return narrow_products_lowered(lower(func, arch).device, bounded=bounded)


def narrow_products_lowered(
    device: Any, *, bounded: Mapping[str, int] | None = None
) -> tuple[NarrowProduct, ...]:
    """As ``narrow_products``, for a device PrimFunc that is lowered already."""
    analysis = _Analysis(device, bounded or {})
    found = {
        (item.buffer, item.expression): item
        for name, address in analysis.addresses()
        for item in analysis.check(name, address)
    }
    return tuple(found[key] for key in sorted(found))


class _Analysis:
    def __init__(self, device: Any, bounded: Mapping[str, int]) -> None:
        from tilelang import tvm

        self._visit = tvm.tirx.stmt_functor.post_order_visit
        self._bounded = bounded
        self._body = device.body
        self._names = {p: p.name for p in device.params if str(p.dtype) == "handle"}
        self._definitions: dict[Any, Any] = {}  # variable -> its value
        self._ranges: dict[Any, tuple[Any, Any]] = {}  # loop or thread variable -> start, extent
        self._stores: dict[Any, list[Any]] = {}  # local data variable -> values stored to it
        self._intervals: dict[Any, Interval] = {}
        self._open: set[Any] = set()  # variables under evaluation: a cycle means no bound
        self._visit(self._body, self._collect)

    def _collect(self, node: Any) -> None:
        name = kind(node)
        if name in ("Bind", "LetStmt", "Let"):
            self._definitions[node.var] = node.value
        elif name == "For":
            self._ranges[node.loop_var] = (node.min, node.extent)
        elif name == "AttrStmt" and node.attr_key == "thread_extent":
            self._ranges[node.node.var] = (None, node.value)
        elif name == "BufferStore" and node.buffer.data not in self._names:
            self._stores.setdefault(node.buffer.data, []).append(node.value)

    # -- addresses ------------------------------------------------------------------------------

    def addresses(self) -> Iterator[tuple[str, Any]]:
        """Every index expression of a global buffer."""
        found: list[tuple[str, Any]] = []

        def visit(node: Any) -> None:
            if kind(node) in ("BufferLoad", "BufferStore"):
                buffer = self._names.get(node.buffer.data)
                found.extend((buffer, index) for index in node.indices if buffer)
            elif kind(node) == "Call" and op_name(node) == "tvm_access_ptr":
                buffer = self._names.get(node.args[1])
                if buffer:
                    found.append((buffer, node.args[2]))

        self._visit(self._body, visit)
        return iter(found)

    def check(self, buffer: str, address: Any) -> Iterator[NarrowProduct]:
        """Findings in an address, with the definitions of its variables followed."""
        pending, seen = [address], set()
        while pending:
            parts: list[Any] = []
            self._visit(pending.pop(), parts.append)
            # A slot that is hidden from a compiler is below num_slots by then, a 32-bit number.
            hidden = [p.args[1] for p in parts if _hides(p)]
            for part in parts:
                if any(part.same_as(h) for h in hidden):
                    continue
                if kind(part) in ("Var", "SizeVar") and part in self._definitions:
                    if part not in seen:
                        seen.add(part)
                        pending.append(self._definitions[part])
                elif kind(part) == "BufferLoad" and part.buffer.data in self._stores:
                    if part.buffer.data not in seen:
                        seen.add(part.buffer.data)
                        pending.extend(self._stores[part.buffer.data])
                elif interval := self._overflow(part):
                    yield NarrowProduct(buffer, str(part)[:160], interval)

    def _overflow(self, e: Any) -> Interval | None:
        dtype = str(getattr(e, "dtype", "")).partition("x")[0]
        if dtype not in ("int32", "uint32"):
            return None
        is_product = kind(e) == "Mul" or (kind(e) == "Call" and op_name(e) == "shift_left")
        if not is_product and kind(e) != "Cast":
            return None
        interval = self._exact(e)
        low, high = _range(dtype)
        return interval if interval[0] < low or interval[1] > high else None

    # -- intervals ------------------------------------------------------------------------------

    def interval(self, e: Any) -> Interval:
        """Values that an expression may have, its type's range included."""
        low, high = self._exact(e)
        least, most = _range(str(e.dtype).partition("x")[0])
        return (low, high) if least <= low and high <= most else (least, most)

    def _exact(self, e: Any) -> Interval:
        """The interval before the result is cut to its type."""
        name = kind(e)
        if name == "IntImm":
            return int(e.value), int(e.value)
        method = getattr(self, f"_{name.lower()}", None)
        if method is not None and not str(e.dtype).startswith(("float", "bfloat")):
            result: Interval = method(e)
            return result
        return _range(str(e.dtype).partition("x")[0])

    def _var(self, e: Any) -> Interval:
        if e in self._intervals:
            return self._intervals[e]
        if e in self._open:
            return _range(str(e.dtype))
        self._open.add(e)
        self._intervals[e] = result = self._variable(e)
        self._open.discard(e)
        return result

    _sizevar = _var

    def _variable(self, e: Any) -> Interval:
        if e.name in self._bounded:
            return 0, self._bounded[e.name]
        if e in self._definitions:
            return self.interval(self._definitions[e])
        if e in self._ranges:
            start, extent = self._ranges[e]
            low, high = (0, 0) if start is None else self.interval(start)
            return low, max(low, high + self.interval(extent)[1] - 1)
        return _range(str(e.dtype))

    def _bufferload(self, e: Any) -> Interval:
        data = e.buffer.data
        name = self._names.get(data, data.name)
        if name in self._bounded:
            return 0, self._bounded[name]
        if data in self._names or data not in self._stores or data in self._open:
            return _range(str(e.dtype).partition("x")[0])
        self._open.add(data)
        known = [self.interval(value) for value in self._stores[data]]
        self._open.discard(data)
        return min(low for low, _ in known), max(high for _, high in known)

    def _cast(self, e: Any) -> Interval:
        if str(e.value.dtype).startswith(("float", "bfloat")):
            return _range(str(e.dtype).partition("x")[0])
        return self.interval(e.value)

    def _ramp(self, e: Any) -> Interval:
        (low, high), (least, most) = self.interval(e.base), self.interval(e.stride)
        last = int(e.lanes) - 1
        return low + min(0, least * last), high + max(0, most * last)

    def _broadcast(self, e: Any) -> Interval:
        return self.interval(e.value)

    def _add(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        return a + c, b + d

    def _sub(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        return a - d, b - c

    def _mul(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)

    def _min(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        return min(a, c), min(b, d)

    def _max(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        return max(a, c), max(b, d)

    def _floordiv(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        if c <= 0:
            return min(a, -abs(a), -abs(b)), max(abs(a), abs(b))
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)

    _div = _floordiv

    def _floormod(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        if c <= 0:
            return min(0, c + 1), max(0, d - 1)
        return (a, b) if a >= 0 and b < c else (0, d - 1)

    def _mod(self, e: Any) -> Interval:
        (a, b), (c, d) = self.interval(e.a), self.interval(e.b)
        most = max(abs(c), abs(d)) - 1
        return (a, b) if a >= 0 and b < c else (0 if a >= 0 else -most, most)

    def _select(self, e: Any) -> Interval:
        return _union(self.interval(e.true_value), self.interval(e.false_value))

    def _call(self, e: Any) -> Interval:
        name = op_name(e)
        if name.endswith("if_then_else"):
            return _union(self.interval(e.args[1]), self.interval(e.args[2]))
        if name == "bitwise_and":
            return self._masked(e)
        if name in ("shift_left", "shift_right"):
            return self._shifted(e, name)
        return _range(str(e.dtype).partition("x")[0])

    def _masked(self, e: Any) -> Interval:
        """A mask that is not negative bounds the result."""
        tops = [high for low, high in map(self.interval, e.args[:2]) if low >= 0]
        return (0, min(tops)) if tops else _range(str(e.dtype).partition("x")[0])

    def _shifted(self, e: Any, name: str) -> Interval:
        (a, b), (c, d) = self.interval(e.args[0]), self.interval(e.args[1])
        if not 0 <= c <= d < 64:
            return _range(str(e.dtype).partition("x")[0])
        corners = [x << n if name == "shift_left" else x >> n for x in (a, b) for n in (c, d)]
        return min(corners), max(corners)


def _hides(e: Any) -> bool:
    return kind(e) == "Call" and op_name(e) == "call_extern" and e.args[0].value in SAME


def _union(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _range(dtype: str) -> Interval:
    """The values of an integer type."""
    if dtype == "bool":
        return 0, 1
    for bits in (8, 16, 32, 64):
        if dtype == f"int{bits}":
            return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if dtype == f"uint{bits}":
            return 0, (1 << bits) - 1
    return _WIDEST
