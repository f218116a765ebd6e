"""TIR statements as Python functions that are run with the mask of the active threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leapgen.report.tir_access import Accesses
from leapgen.report.tir_expr import kind, op_name
from leapgen.report.tir_machine import Machine, Mask, TirError, Unknown, Value

Execute = Callable[[Mask], None]
_LONGEST_LOOP = 1 << 20


class Program(Accesses):
    """Statements as functions of the mask of active threads; None: nothing that matters."""

    def __init__(self, machine: Machine, both: bool) -> None:
        super().__init__(machine)
        self.both = both

    def parameters(self, device: Any) -> None:
        """Binds the kernel's parameters, and finds buffers that are seen under several types."""
        from tilelang import tvm

        for parameter in device.params:
            if str(parameter.dtype) == "handle":
                self.names[parameter] = parameter.name
            elif parameter.name in self.machine.scalars:
                value = self.machine.constant(self.machine.scalars[parameter.name])
                self.machine.registers[self.slot(parameter)] = value
        types: dict[Any, set[str]] = {}

        def visit(node: Any) -> None:
            if kind(node) in ("BufferLoad", "BufferStore", "DeclBuffer"):
                types.setdefault(node.buffer.data, set()).add(str(node.buffer.dtype))

        tvm.tirx.stmt_functor.post_order_visit(device.body, visit)
        self.mixed = {data for data, found in types.items() if len(found) > 1}

    # -- statements -----------------------------------------------------------------------------

    def statement(self, s: Any) -> Execute | None:
        """The executable form of a statement. Raises TirError for a construct that is not known."""
        method = getattr(self, f"_do_{kind(s).lower()}", None)
        if method is None:
            raise TirError(f"the statement {kind(s)} is not known: {str(s)[:120]}")
        result: Execute | None = method(s)
        return result

    def _do_seqstmt(self, s: Any) -> Execute | None:
        parts = [run for run in map(self.statement, s.seq) if run]
        machine = self.machine

        def run(mask: Mask) -> None:
            for part in parts:
                active = mask & ~machine.stopped
                if not active.any():
                    return
                part(active)

        return run if parts else None

    def _do_attrstmt(self, s: Any) -> Execute | None:
        if s.attr_key in ("thread_extent", "virtual_thread"):
            slot = self.slot(s.node.var)
            self.machine.registers[slot] = self.machine.thread_index(s.node.thread_tag)
        return self.statement(s.body)

    def _do_declbuffer(self, s: Any) -> Execute | None:
        offset = s.buffer.elem_offset
        if offset is not None and not (kind(offset) == "IntImm" and int(offset) == 0):
            raise TirError(f"buffer {s.buffer.name!r} has an element offset")
        return self.statement(s.body) if getattr(s, "body", None) is not None else None

    def _do_allocbuffer(self, s: Any) -> Execute | None:
        return self.statement(s.body) if getattr(s, "body", None) is not None else None

    def _do_assertstmt(self, s: Any) -> Execute | None:
        return self.statement(s.body) if getattr(s, "body", None) is not None else None

    def _do_bind(self, s: Any) -> Execute | None:
        value, slot = self.node(s.value), self.slot(s.var)
        registers = self.machine.registers

        def run(mask: Mask) -> None:
            registers[slot] = value.run(mask)

        if not value.loads and str(s.var.dtype).startswith(("float", "bfloat")):
            return None
        return run

    def _do_letstmt(self, s: Any) -> Execute | None:
        bind, body = self._do_bind(s), self.statement(s.body)

        def run(mask: Mask) -> None:
            if bind:
                bind(mask)
            if body:
                body(mask)

        return run if bind or body else None

    def _do_evaluate(self, s: Any) -> Execute | None:
        if kind(s.value) == "Call" and op_name(s.value) in ("loop_break", "break_loop"):
            self.reach += 1
            return self._stop
        if kind(s.value) == "Call" and op_name(s.value) in (
            "continue_loop",
            "ret",
            "thread_return",
        ):
            raise TirError(f"the statement {op_name(s.value)} is not known")
        value = self.node(s.value)
        return (lambda mask: _ignore(value.run(mask))) if value.loads else None

    def _stop(self, mask: Mask) -> None:
        if self.machine.uncertain:
            raise TirError("a loop ends in a branch whose condition is not known")
        self.machine.stopped = self.machine.stopped | mask

    def _do_bufferstore(self, s: Any) -> Execute | None:
        index, value = self.index(s), self.node(s.value)
        memory, name = self.memory(s.buffer), self.names.get(s.buffer.data)
        touch = self.toucher(name, "write", s.buffer, s.indices[0]) if name else None
        machine = self.machine

        def run(mask: Mask) -> None:
            at = index.run(mask)
            stored = value.run(mask)
            if touch:
                touch(at, mask)
            if memory is None:
                return
            if isinstance(at, Unknown):
                memory.forget()
            else:
                memory.store(at, _doubted(stored, machine.uncertain), mask)

        if name is None and memory is None and not (index.loads or value.loads):
            return None
        return run

    def _do_ifthenelse(self, s: Any) -> Execute | None:
        condition, before = self.node(s.condition), self.reach
        yes = self.statement(s.then_case)
        no = self.statement(s.else_case) if s.else_case is not None else None
        text = str(s.condition)[:160] if self.reach > before else ""

        def run(mask: Mask) -> None:
            decided = condition.run(mask)
            if isinstance(decided, Unknown):
                self._undecided(decided, text, mask, yes, no)
                return
            chosen = decided.astype(np.bool_)
            for part, active in ((yes, mask & chosen), (no, mask & ~chosen)):
                if part and active.any():
                    part(active)

        return run if condition.loads or yes or no else None

    def _undecided(
        self, why: Unknown, text: str, mask: Mask, yes: Execute | None, no: Execute | None
    ) -> None:
        """Both sides in turn, what they store forgotten; text: the condition, if they reach out."""
        if text and not self.both:
            raise TirError(f"a branch around an access depends on {why.reason}: {text}")
        self.machine.uncertain.append(why.reason)
        for part in (yes, no):
            if part:
                part(mask)
        self.machine.uncertain.pop()

    def _do_for(self, s: Any) -> Execute | None:
        low, extent, body = self.node(s.min), self.node(s.extent), self.statement(s.body)
        slot, machine, text = self.slot(s.loop_var), self.machine, str(s.loop_var.name)
        if body is None and not (low.loads or extent.loads):
            return None

        def run(mask: Mask) -> None:
            start, length = low.run(mask), extent.run(mask)
            if isinstance(start, Unknown) or isinstance(length, Unknown):
                why = start if isinstance(start, Unknown) else length
                assert isinstance(why, Unknown)
                raise TirError(f"the range of loop {text!r} depends on {why.reason}")
            outer = machine.stopped
            steps = int(length[mask].max()) if body and mask.any() else 0
            for step in range(steps):
                active = mask & (step < length) & ~machine.stopped
                if not active.any():
                    break
                machine.registers[slot] = start + step
                if body:
                    body(active)
            machine.stopped = outer

        return run

    def _do_while(self, s: Any) -> Execute | None:
        condition, body, machine = self.node(s.condition), self.statement(s.body), self.machine
        text = str(s.condition)[:160]

        def run(mask: Mask) -> None:
            outer, active = machine.stopped, mask
            for _ in range(_LONGEST_LOOP):
                decided: Value = condition.run(active)
                if isinstance(decided, Unknown):
                    raise TirError(f"a while loop depends on {decided.reason}: {text}")
                active = active & decided.astype(np.bool_) & ~machine.stopped
                if not active.any():
                    machine.stopped = outer
                    return
                if body:
                    body(active)
            raise TirError(f"a while loop runs more than {_LONGEST_LOOP} times: {text}")

        return run


def _doubted(value: Value, reasons: list[str]) -> Value:
    """The value, or Unknown if it is stored in a branch that may not be taken."""
    return Unknown(f"what a branch on {reasons[-1]} stores") if reasons else value


def _ignore(value: Value) -> None:
    """An evaluated expression whose value is not used."""
