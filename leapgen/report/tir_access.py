"""Loads, calls and pointers of TIR: every way in which an expression can reach global memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leapgen.report.tir_expr import (
    BITWISE,
    Evaluate,
    Expressions,
    Node,
    Pointer,
    align,
    itemsize,
    kind,
    op_name,
    wrap,
)
from leapgen.report.tir_machine import Mask, TirError, Unknown, Value

_VECTOR_LOADS = {f"ldg{bits}": bits // 8 for bits in (32, 64, 128, 256)}
_VECTOR_STORES = {f"stg{bits}": bits // 8 for bits in (32, 64, 128, 256)}
# Calls that only need a place in shared memory, or write nothing that is tracked.
SAME = ("h2_again",)  # functions that return their argument: what hides it from a compiler
_HARMLESS_POINTERS = ("mbarrier", "ptx_init_barrier", "ptx_arrive", "ptx_fence", "ptx_wait",
                      "ptx_commit", "fence", "ptx_mma", "ptx_ldmatrix", "lds", "sts")  # fmt: skip


class Accesses(Expressions):
    """Expressions with memory: loads are counted when they are evaluated."""

    def _bufferload(self, e: Any) -> Node:
        index = self.index(e)
        memory = self.memory(e.buffer)
        name = self.names.get(e.buffer.data)
        if name is None and e.buffer.data.name in self.machine.assumed:
            assumed = self.machine.constant(self.machine.assumed[e.buffer.data.name])
            return Node(lambda mask: assumed)
        if name is None and memory is None:
            return self._floating(index) if index.loads else Node(_contents(e.buffer.data.name))
        touch = self.toucher(name, "read", e.buffer, e.indices[0]) if name else None

        def run(mask: Mask) -> Value:
            at = index.run(mask)
            if touch:
                touch(at, mask)
            if memory is None:
                return Unknown(f"contents of {e.buffer.data.name!r}, which are not given")
            if isinstance(at, Unknown):
                return at
            return memory.load(at, mask)

        return Node(run, index.loads or name is not None)

    def index(self, access: Any) -> Node:
        """The element index of a BufferLoad or BufferStore. Raises TirError if it is not flat."""
        if len(access.indices) != 1:
            raise TirError(f"a buffer that is not flat: {str(access)[:120]}")
        return self.node(access.indices[0])

    def toucher(
        self, name: str, way: str, buffer: Any, index: Any
    ) -> Callable[[Value, Mask], None]:
        """Counts accesses of a global buffer at element indices."""
        self.reach += 1
        size = itemsize(buffer.dtype)
        dense = kind(index) == "Ramp" and kind(index.stride) == "IntImm" and int(index.stride) == 1
        lanes = int(index.lanes) if dense else 1
        machine = self.machine

        def touch(at: Value, mask: Mask) -> None:
            if isinstance(at, Unknown):
                machine.touch(name, way, at, size, mask)
                return
            first = at[:, 0] if dense else at
            machine.touch(name, way, first * size, size * lanes, mask)

        return touch

    # -- pointers -------------------------------------------------------------------------------

    def pointer(self, e: Any) -> Pointer | None:
        """The place that ``tvm_access_ptr`` or ``address_of`` names."""
        if kind(e) != "Call":
            return None
        if op_name(e) == "tvm_access_ptr":
            data = e.args[1]
            return Pointer(
                self.names.get(data), self.node(e.args[2]), itemsize(e.args[0].dtype), data
            )
        if op_name(e) == "address_of" and kind(e.args[0]) == "BufferLoad":
            load = e.args[0]
            data = load.buffer.data
            return Pointer(
                self.names.get(data), self.index(load), itemsize(load.buffer.dtype), data
            )
        return None

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, e: Any) -> Node:
        name = op_name(e)
        if name in BITWISE:
            return self._bitwise(e, BITWISE[name])
        if name.endswith("if_then_else"):
            return self.choice(*e.args)
        if name == "tl_shuffle_elect":
            return self._elect(int(e.args[0]))
        if name == "shfl_xor_sync":
            return self._exchanged(e)
        if name == "reinterpret" and not str(e.args[0].dtype).startswith(("float", "bfloat")):
            return self._reinterpret(e)
        if name in ("likely", "annotated"):
            return self.node(e.args[0])
        if name == "call_extern" and e.args[0].value in SAME:
            return self.node(e.args[1])
        pointers = [(i, p) for i, arg in enumerate(e.args) if (p := self.pointer(arg))]
        if name == "atomic_load_elem_op" and pointers and pointers[0][1].name:
            return self._atomic_load(pointers[0][1])
        if any(p.name for _, p in pointers):
            return self._transfer(e, name, dict(pointers))
        if any(self.names.get(arg) for arg in e.args if kind(arg) == "Var"):
            raise TirError(f"the call {name} takes a global buffer: {str(e)[:160]}")
        return self._opaque(e, name, [p for _, p in pointers])

    def _atomic_load(self, place: Pointer) -> Node:
        self.reach += 1
        memory = self.machine.globals.get(place.name or "")

        def run(mask: Mask) -> Value:
            self._move(place, "read", self.machine.constant(place.itemsize), mask)
            at = place.index.run(mask)
            if memory is None or isinstance(at, Unknown):
                return Unknown(f"contents of {place.name!r}, which are not given")
            return memory.load(at, mask)

        return Node(run, True)

    def _opaque(self, e: Any, name: str, pointers: list[Pointer]) -> Node:
        """A call of which only the arguments are known; it may change what it points to."""
        parts = [self.node(a) for a in e.args if not self.pointer(a) and kind(a) != "StringImm"]
        loading = [part.run for part in parts if part.loads]
        changed = [p.data for p in pointers if not name.startswith(_HARMLESS_POINTERS)]
        result = Unknown(f"the result of {name}")

        def run(mask: Mask) -> Value:
            for part in loading:
                part(mask)
            for data in changed:
                if data in self.memories:
                    self.memories[data].forget()
            return result

        return Node(run, bool(loading or any(data in self.memories for data in changed)))

    def _bitwise(self, e: Any, function: Callable[[Any, Any], Any]) -> Node:
        a, b, dtype = self.node(e.args[0]), self.node(e.args[1]), str(e.dtype).partition("x")[0]

        def run(mask: Mask) -> Value:
            x, y = a.run(mask), b.run(mask)
            if isinstance(x, Unknown) or isinstance(y, Unknown):
                return x if isinstance(x, Unknown) else y
            return wrap(function(*align(x, y)), dtype)

        return Node(run, a.loads or b.loads)

    def _reinterpret(self, e: Any) -> Node:
        inner, dtype = self.node(e.args[0]), str(e.dtype)
        if dtype not in ("int32", "uint32", "int64", "uint64"):
            return self._floating(inner)

        def run(mask: Mask) -> Value:
            x = inner.run(mask)
            return x if isinstance(x, Unknown) else wrap(x.astype(np.int64), dtype)

        return Node(run, inner.loads)

    def _elect(self, extent: int) -> Node:
        """One thread of each group of ``extent``; 0: of the block."""
        linear = np.arange(self.machine.count)
        if extent == 0:
            chosen = linear == 0
        else:
            chosen = (linear % 32 == 0) & (linear // 32 % -(-extent // 32) == 0)
        return Node(lambda mask: chosen)

    def _exchanged(self, e: Any) -> Node:
        """The value of the thread whose lane differs in the bits of the third argument."""
        value, bits = self.node(e.args[1]), self.node(e.args[2])
        threads = np.arange(self.machine.count)

        def run(mask: Mask) -> Value:
            x, other = value.run(mask), bits.run(mask)
            if isinstance(x, Unknown) or isinstance(other, Unknown):
                return x if isinstance(x, Unknown) else other
            given: Value = np.broadcast_to(x, threads.shape)[threads ^ other]
            return given

        return Node(run, value.loads or bits.loads)

    # -- transfers between global memory and something else ---------------------------------------

    def _transfer(self, e: Any, name: str, pointers: dict[int, Pointer]) -> Node:
        self.reach += 1
        places = {i: p for i, p in pointers.items() if p.name}
        if name == "ptx_cp_async":
            source = places[1]
            size = self._scaled(e.args[2], source.itemsize)
            return self._moves([(source, "read", size)], self._predicate(e, 3))
        if name == "tma_load":
            return self._moves([(places[1], "read", self.node(e.args[3]).run)], None)
        if name == "tma_store":
            return self._moves([(places[0], "write", self.node(e.args[2]).run)], None)
        if name in _VECTOR_LOADS:
            return self._moves([(places[0], "read", self._fixed(_VECTOR_LOADS[name]))],
                               self._predicate(e, 1))  # fmt: skip
        if name in _VECTOR_STORES:
            value = self.node(e.args[1])
            moves = [(places[0], "write", self._fixed(_VECTOR_STORES[name]))]
            return self._moves(moves, self._predicate(e, 2), value)
        if name.startswith("atomic_") and name.endswith("_elem_op"):
            size = self._fixed(places[0].itemsize)
            ways = ("write",) if name == "atomic_store_elem_op" else ("read", "write")
            moves = [(places[0], way, size) for way in ways]
            return self._moves(moves, None, *map(self.node, e.args[1:]))
        raise TirError(f"the call {name} reaches global memory: {str(e)[:160]}")

    def _fixed(self, size: int) -> Evaluate:
        value = self.machine.constant(size)
        return lambda mask: value

    def _scaled(self, count: Any, factor: int) -> Evaluate:
        inner = self.node(count)

        def run(mask: Mask) -> Value:
            x = inner.run(mask)
            return x if isinstance(x, Unknown) else x * factor

        return run

    def _predicate(self, e: Any, position: int) -> Node | None:
        return self.node(e.args[position]) if len(e.args) > position else None

    def _moves(
        self, moves: list[tuple[Pointer, str, Evaluate]], condition: Node | None, *others: Node
    ) -> Node:
        def run(mask: Mask) -> Value:
            for other in others:
                if other.loads:
                    other.run(mask)
            active = mask
            if condition is not None:
                decided = condition.run(mask)
                if isinstance(decided, Unknown):
                    raise TirError(f"whether a transfer happens depends on {decided.reason}")
                active = mask & decided.astype(np.bool_)
            for place, way, size in moves:
                self._move(place, way, size(active), active)
            return Unknown("the result of a transfer")

        return Node(run, True)

    def _move(self, place: Pointer, way: str, size: Value, mask: Mask) -> None:
        assert place.name is not None
        if isinstance(size, Unknown):
            raise TirError(f"the length of a {way} of {place.name!r} depends on {size.reason}")
        at = place.index.run(mask)
        if isinstance(at, Unknown):
            self.machine.touch(place.name, way, at, 1, mask)
            return
        for length in np.unique(size[mask]):
            where = mask & (size == length)
            self.machine.touch(place.name, way, at * place.itemsize, int(length), where)


def _contents(name: str) -> Evaluate:
    unknown = Unknown(f"contents of {name!r}")
    return lambda mask: unknown
