"""Bytes that each launch moves, from the plan's buffers: the memory floor of a kernel.

All figures are for one row and one value head. What several value heads need (keys of a key head)
or several rows (constant inputs) is counted in four ways, see Amount. Records are counted by the
cursor: a step at cursor c reads the records of c tokens and writes those of one. Where the state is
stored at every step there are none: a step reads and writes the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from leapgen.schedule.arch import Device
from leapgen.schedule.buffers import STORED, Buffer, Shape
from leapgen.schedule.plan import Plan, PlanError
from leapgen.spec.model import Input
from leapgen.tensors import DTYPES, Per

SECTOR = 32
"""Bytes of one memory sector, the least that a GPU moves."""
KEPT = "record_key"
"""What a fused step keeps of its token's record, since another head's block may write it; the rest
it reads back."""


@dataclass(frozen=True)
class Amount:
    """Bytes per row and value head, the mean over the value heads where these differ.

    distinct   every byte once, whoever else needs it: the least that memory must move
    sectors    the same in whole 32-byte sectors: what memory moves when caches share perfectly
    touched    sectors that this head's block asks for: what memory moves when nothing is shared
    asked      bytes that this head's block asks for, each once: what its program must show
    """

    distinct: float = 0.0
    sectors: float = 0.0
    touched: float = 0.0
    asked: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.distinct + other.distinct,
            self.sectors + other.sectors,
            self.touched + other.touched,
            self.asked + other.asked,
        )

    def __mul__(self, factor: float) -> Amount:
        return Amount(
            self.distinct * factor,
            self.sectors * factor,
            self.touched * factor,
            self.asked * factor,
        )


@dataclass(frozen=True)
class Line:
    """One tensor's part. kind: state, record, control, input or output; way: read or write."""

    name: str
    kind: str
    way: str
    amount: Amount


@dataclass(frozen=True)
class Traffic:
    """All that one launch moves for one row and value head."""

    kernel: str
    lines: tuple[Line, ...]

    def total(self, *kinds: str, way: str | None = None) -> Amount:
        """The sum over lines of these kinds (none given: all) and this way (None: both)."""
        amounts = (
            line.amount
            for line in self.lines
            if (not kinds or line.kind in kinds) and way in (None, line.way)
        )
        return sum(amounts, Amount())

    def text(self) -> str:
        """A table for people, in bytes."""
        head = f"{self.kernel:<22} {'distinct':>10} {'sectors':>10} {'touched':>10}"
        rows = [(f"{x.way:<5} {x.name:<13}", x.amount) for x in self.lines]
        rows += [(f"total {way}", self.total(way=way)) for way in ("read", "write")]
        body = (f"{n:<22} {a.distinct:10.1f} {a.sectors:10.1f} {a.touched:10.1f}" for n, a in rows)
        return "\n".join((head, *body)) + "\n"


def launch(
    plan: Plan,
    shape: Shape,
    kernel: str,
    cursor: int = 0,
    rows: int = 1,
    *,
    phase: int = 0,
    fused: bool = False,
) -> Traffic:
    """Traffic of one launch for a row at `cursor` (tokens in the window when it starts).

    rows     rows of the launch: constant inputs are shared by all of them
    fused    a step that closes full windows itself, where cursor + phase + 1 reaches P; what it
             reads again for that comes from caches: only `asked` and `touched` have its new records
    phase    of the row; only a fused step asks for it
    Errors: PlanError, for an unknown kernel or a cursor outside the window. A flush takes the
    cursor of the row that it folds; idle_flush is the other case.
    """
    if kernel not in plan.kernels:
        raise PlanError(f"unknown kernel {kernel!r}; known: {', '.join(plan.kernels)}")
    last = shape.P - 1 if kernel == "step" else shape.P
    if not 0 <= cursor <= last:
        raise PlanError(f"cursor of {kernel} must lie in 0..{last}, found {cursor}")
    if fused and not (kernel == "step" and plan.windowed):
        raise PlanError(f"only a step of a windowed plan closes windows, found {kernel}")
    closes = fused and cursor + phase + 1 >= shape.P
    counter = _Counter(plan, shape, rows, fused, closes)
    return Traffic(kernel, tuple(counter.lines(kernel, cursor)))


def idle_flush(plan: Plan, shape: Shape) -> Traffic:
    """Traffic of a flush launch for a row whose window is not full."""
    counter = _Counter(plan, shape, 1)
    lines = (counter.row_scalar("slots"), *counter.control(("cursor", "phase"), "read"))
    return Traffic("flush, idle", lines)


def step_mean(plan: Plan, shape: Shape, rows: int = 1, *, fused: bool = False) -> Amount:
    """Mean of a step over cursors 0..P-1, from phase 0."""
    steps = (launch(plan, shape, "step", c, rows, fused=fused).total() for c in range(shape.P))
    return sum(steps, Amount()) * (1 / shape.P)


def token_mean(plan: Plan, shape: Shape, rows: int = 1, *, fused: bool = False) -> Amount:
    """Mean of a token: a step, and its share of the flush that each window ends with.

    fused   the step closes windows itself: no flush is launched, nothing is read a second time
    """
    if not plan.windowed or fused:
        return step_mean(plan, shape, rows, fused=fused and plan.windowed)
    full = launch(plan, shape, "flush", shape.P, rows).total()
    idle = idle_flush(plan, shape).total()
    return step_mean(plan, shape, rows) + full * (1 / shape.P) + idle * (1 - 1 / shape.P)


def floor_us(bytes_per_head: float, shape: Shape, rows: int, device: Device) -> float:
    """Microseconds that a device needs to move these bytes for all rows and value heads."""
    return bytes_per_head * rows * shape.HV / device.bandwidth * 1e6


def _sectors(size: float) -> float:
    return -(-size // SECTOR) * SECTOR


@dataclass(frozen=True)
class _Counter:
    """Counts the lines of one launch."""

    plan: Plan
    shape: Shape
    rows: int
    fused: bool = False
    closes: bool = False

    def lines(self, kernel: str, cursor: int) -> Iterable[Line]:
        yield from map(self.row_scalar, ("source", "target") if kernel == "copy" else ("slots",))
        match kernel:
            case "step":
                yield from self.control(("cursor", "phase")[: 1 + self.fused], "read")
                yield from self.stored("read")
                yield from self.decay("read" if cursor else "")
                yield from self.records(cursor, "read")
                yield from map(self._input, self.plan.window.recurrence.inputs)
                if self.closes or not self.plan.windowed:
                    yield from self.stored("write")
                yield from self.decay("" if cursor else "write")
                yield from self.records(1, "write", once=True)
                yield from self.control(("cursor", "phase")[: 1 + self.closes], "write")
                yield self._dense("out", "output", "write", self._output_bytes())
            case "flush":
                yield from self.control(("cursor", "phase"), "read")
                yield from self.stored("read")
                yield from self.decay("read" if cursor else "")
                yield from self.records(cursor, "read")
                yield from self.stored("write")
                yield from self.control(("cursor", "phase"), "write")
            case "materialize":
                yield from self.control(("cursor",), "read")
                yield from self.stored("read")
                yield from self.decay("read" if cursor else "")
                yield from self.records(cursor, "read")
                yield self._dense("state", "output", "write", self._state_bytes())
            case "load_state":
                if self.plan.windowed:
                    yield self.row_scalar("position")
                yield self._dense("state", "input", "read", self._state_bytes())
                yield from self.stored("write")
                yield from self.control(("cursor", "phase"), "write")
            case "copy":
                for way in ("read", "write"):
                    yield from self.control(("cursor", "phase"), way)
                    yield from self.stored(way)
                    yield from self.decay(way)
                    yield from self.records(cursor, way, once=True)
            case "reset":
                yield from self.stored("write")
                yield from self.decay("write")
                yield from self.control(("cursor", "phase"), "write")

    def stored(self, way: str) -> Iterable[Line]:
        """Payload, scales, compensators and residual, and the count that draws depend on."""
        for b in self.plan.buffers:
            if b.role in (*STORED, "rounding"):
                size = b.tile_bytes(self.shape)
                amount = self._scalar(size) if b.scalar else self._shared(size, 1)
                yield Line(b.name, "state", way, amount)

    def decay(self, way: str) -> Iterable[Line]:
        """The decay of every token, where the slot holds one; no way: it is not touched."""
        for b in self.plan.buffers if way else ():
            if b.role == "decay":
                size = b.tile_bytes(self.shape)
                amount = self._scalar(size) if b.scalar else self._shared(size, 1)
                yield Line(b.name, "record", way, amount)

    def records(self, tokens: int, way: str, once: bool = False) -> Iterable[Line]:
        """Records of so many tokens of a window.

        once   one of the heads that share a record moves it; else each of them reads it
        """
        for b in self.plan.buffers:
            if b.role != "record":
                continue
            each = b.tile_bytes(self.shape) / self.shape.P
            sharing = self._sharing(b)
            amount = self._shared(each * tokens, sharing)
            if once:
                amount = replace(
                    amount, touched=amount.touched / sharing, asked=amount.asked / sharing
                )
            if way == "read" and self.closes and b.name != KEPT:
                # The token's own record, which the block has just written.
                again = self._shared(each * (tokens + 1), sharing)
                amount = replace(amount, touched=again.touched, asked=again.asked)
            if amount.asked:
                yield Line(b.name, "record", way, amount)

    def control(self, names: tuple[str, ...], way: str) -> Iterable[Line]:
        """Scalars a head; heads of a row lie side by side."""
        for name in names if self.plan.windowed else ():
            yield Line(name, "control", way, self._scalar(4))

    def row_scalar(self, name: str) -> Line:
        """A number a row, which all heads of the row read; rows lie side by side."""
        size, heads = DTYPES["int32"].bytes, self.shape.HV
        whole = _sectors(size * self.rows) / self.rows
        return Line(name, "control", "read", Amount(size / heads, whole / heads, SECTOR, size))

    def _sharing(self, buffer: Buffer) -> int:
        return self.shape.group if buffer.heads == "H" else 1

    def _input(self, x: Input) -> Line:
        size = DTYPES[x.dtype].bytes
        sharing = self.shape.group if x.per is Per.KEY else 1
        if x.axis.value:
            amount = self._shared(size * self.shape.size(x.axis.value), sharing)
        else:
            amount = self._scalar(size, sharing)
        if x.constant:
            amount = replace(
                amount, distinct=amount.distinct / self.rows, sectors=amount.sectors / self.rows
            )
        return Line(x.name, "input", "read", amount)

    def _dense(self, name: str, kind: str, way: str, size: float) -> Line:
        return Line(name, kind, way, self._shared(size, 1))

    def _shared(self, size: float, sharing: int) -> Amount:
        whole = _sectors(size)
        return Amount(size / sharing, whole / sharing, whole, size)

    def _scalar(self, size: int, sharing: int = 1) -> Amount:
        heads = self.shape.HV // sharing
        return Amount(size / sharing, _sectors(size * heads) / self.shape.HV, SECTOR, size)

    def _output_bytes(self) -> int:
        return self.shape.V * DTYPES[self.plan.window.recurrence.output_dtype].bytes

    def _state_bytes(self) -> int:
        return self.shape.K * self.shape.V * DTYPES["fp32"].bytes
