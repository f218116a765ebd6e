"""The plan: which buffers a slot has, what a kernel receives, and what each launch touches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from leapgen.algebra.window import DecaySource, Window
from leapgen.diagnostics import LeapgenError
from leapgen.formats.base import Format
from leapgen.formats.table import chosen
from leapgen.schedule.arch import Arch
from leapgen.schedule.buffers import CHECKPOINT, PENDING, STORED, Buffer, Shape, slot_buffers
from leapgen.schedule.layout import (
    Layout,
    can_fragment,
    closes_rows,
    held_rows,
    payload_order,
)
from leapgen.spec.model import State
from leapgen.tensors import DTYPES

__all__ = ["Buffer", "Plan", "PlanError", "Shape", "make_plan"]

RECORD_TYPES = ("fp16", "bf16", "fp32")
KERNELS = ("step", "flush", "materialize", "load_state", "copy", "reset")
DRAFT_KERNELS = ("verify",)


class PlanError(LeapgenError):
    """A window, a state and an architecture that do not go together, or a shape that cannot be."""


@dataclass(frozen=True)
class Plan:
    """Everything that rendering needs, and nothing about text.

    format         the row of the table with the spec's smoothing and compensators applied
    records        element type of record keys and corrections; fp32 where nothing is recorded
    buffers        pool tensors, in the order of every kernel's parameters
    default_window tokens a window has unless the caller says otherwise; 1 where the state is stored
                   at every step
    """

    window: Window
    format: Format
    arch: Arch
    records: str
    buffers: tuple[Buffer, ...]
    default_window: int

    @property
    def windowed(self) -> bool:
        """Whether tokens are recorded; otherwise each one rewrites the state in place."""
        return self.format.windowed

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of a module's kernels."""
        return KERNELS if self.windowed else tuple(k for k in KERNELS if k != "flush")

    @property
    def draft_kernels(self) -> tuple[str, ...]:
        """Names of the kernels for drafts: without records there is nothing to take back."""
        return DRAFT_KERNELS if self.windowed else ()

    def slot_buffers(self, shape: Shape) -> tuple[Buffer, ...]:
        """The tensors of a pool of this shape: with drafts, also how many of them are pending."""
        return (*self.buffers, PENDING) if shape.D else self.buffers

    @property
    def records_per_token(self) -> int:
        """Records that one token appends."""
        return self.window.records_per_token if self.windowed else 0

    def buffer(self, name: str) -> Buffer | None:
        """The pool tensor of a name, or None where this plan has none."""
        return next((b for b in self.buffers if b.name == name), None)

    def shape(
        self,
        K: int,
        V: int,
        H: int,
        HV: int,
        P: int | None = None,
        R: int | None = None,
        D: int = 0,
    ) -> Shape:
        """A checked shape; P and R default to the plan's, D are drafts. Errors: PlanError."""
        P = self.default_window if P is None else P
        R = self.format.compensators if R is None else R
        shape = Shape(K, V, H, HV, P, R, D)
        self.check_shape(shape)
        return shape

    def check_shape(self, shape: Shape) -> None:
        """Errors: PlanError, for a shape that no kernel of this plan can serve."""
        for name in ("K", "V"):
            if getattr(shape, name) < 8 or getattr(shape, name) % 8:
                raise PlanError(f"{name} must be a multiple of 8, found {getattr(shape, name)}")
        if shape.H < 1 or shape.HV < 1 or shape.HV % shape.H:
            raise PlanError(f"HV must be a multiple of H, found HV={shape.HV}, H={shape.H}")
        if shape.P < 1:
            raise PlanError(f"a window has at least 1 token, found P={shape.P}")
        if shape.P > 1 and not self.windowed:
            raise PlanError(f"format {self.format.name} has no window, found P={shape.P}")
        if shape.D < 0 or (shape.D and not self.draft_kernels):
            least = "at least 0" if self.draft_kernels else f"none with format {self.format.name}"
            raise PlanError(f"drafts must be {least}, found D={shape.D}")
        if not 0 <= shape.R <= min(shape.K, shape.V):
            raise PlanError(f"R must lie in 0..{min(shape.K, shape.V)}, found {shape.R}")
        if "outlier_key" in (b.name for b in self.buffers) and shape.K > 256:
            raise PlanError(f"outliers name key channels in a byte, found K={shape.K}")
        if shape.R and self.format.factors is None:
            raise PlanError(f"format {self.format.name} has no compensators, found R={shape.R}")

    def layout(self, shape: Shape) -> Layout:
        """The order of the payload's elements."""
        return payload_order(self.arch, self.format, shape.K, shape.V)

    def holds(self, shape: Shape) -> bool:
        """Whether a step's read of this shape's payload may be a matrix product."""
        return held_rows(self.arch, self.format, shape.K, shape.V)

    @property
    def matrix(self) -> bool:
        """Whether some shapes' state may be held as words of two FP16 numbers, operands of matrix
        products: what they are multiplied with is FP16."""
        halves = self.records == "fp16" and self.format.in_words
        return can_fragment(self.arch, self.format) and halves and self.ordinary

    @property
    def fuses(self) -> bool:
        """Whether a step may close such a window in its own launch."""
        return self.matrix or self.rows

    @property
    def rows(self) -> bool:
        """Whether products of records may close windows of some shapes, a value channel's keys in
        plain order a lane's."""
        halves = self.records == "fp16" and self.ordinary
        return halves and closes_rows(self.arch, self.format)

    @property
    def ordinary(self) -> bool:
        """Whether a record's cumulative decay, if there is one, lies in the pool, and a thread that
        has read a value channel has all that its output needs."""
        stored = self.window.decay_source in (DecaySource.STORED, DecaySource.NONE)
        return stored and self.window.result is None

    def by_words(self, shape: Shape) -> bool:
        """Whether this one may: the rule of generated modules' `by_words`."""
        return (
            self.matrix
            and self.layout(shape).name == "fragment"
            and shape.K <= 128
            and shape.V % 32 == 0
            and shape.V <= 256
            and shape.R <= 8
            and shape.R + self.records_per_token * shape.P <= 128
        )

    def by_rows(self, shape: Shape) -> bool:
        """Whether products of records may close windows of this shape: the rule of generated
        modules' `by_rows`."""
        fits = shape.V <= 256 and shape.R == 0 and self.records_per_token * shape.P <= 32
        return self.rows and self.holds(shape) and fits

    def closes(self, shape: Shape) -> bool:
        """Whether a step may close windows of this shape in its own launch."""
        return self.by_words(shape) or self.by_rows(shape)

    def bytes_per_slot(self, shape: Shape) -> int:
        """Everything that one slot holds, paddings included."""
        return sum(b.slot_bytes(shape) for b in self.slot_buffers(shape))

    def checkpoint_bytes(self, shape: Shape) -> int:
        """What a checkpoint keeps of one slot whose window is closed: the stored state, how often
        it was stored if that is counted, and where in a window it stands; no paddings."""
        kept = (b for b in self.buffers if b.role in CHECKPOINT or b.name == "phase")
        return sum(b.tile_bytes(shape) * shape.size(b.heads) for b in kept)

    def state_bytes_per_element(self, shape: Shape) -> float:
        """Bytes of payload, scales and compensators over K*V (the paper's 1.1875); no paddings."""
        stored = (b for b in self.buffers if b.role in STORED)
        return sum(b.tile_bytes(shape) for b in stored) / (shape.K * shape.V)

    def check(self) -> None:
        """Errors: PlanError, where the parts contradict each other."""
        names = [b.name for b in self.buffers]
        if len(set(names)) != len(names):
            raise PlanError(f"duplicate buffers: {names}")
        for b in self.buffers:
            if b.dtype not in DTYPES:
                raise PlanError(f"buffer {b.name}: unknown element type {b.dtype!r}")
        if self.window.result is not None and self.arch.gpu and not self.windowed:
            raise PlanError(
                f"format {self.format.name} splits value channels over blocks on a GPU, but the "
                "output sums over them; choose a format with a window"
            )
        if self.records not in RECORD_TYPES:
            known = ", ".join(RECORD_TYPES)
            raise PlanError(f"unknown record type {self.records!r}; known: {known}")
        if self.default_window < 1:
            raise PlanError(f"a window has at least 1 token, found {self.default_window}")

    def text(self) -> str:
        """The plan for people."""
        f = self.format
        head = (
            f"plan {self.window.recurrence.name} on {self.arch.name} ({self.arch.target})",
            f"format {f.name}: {f.describe()}",
            self._cadence(),
        )
        rows = (
            f"  {b.name:<12} [{', '.join(('slot', b.heads, *b.tile))}] {b.dtype}  {b.doc}"
            for b in self.buffers
        )
        return "\n".join((*head, "buffers", *rows)) + "\n"

    def _cadence(self) -> str:
        if not self.windowed:
            return "the state is read and written at every token; no records"
        return (
            f"window {self.default_window} tokens, {self.records_per_token} records a token, "
            f"records {self.records}"
        )

    @property
    def digest(self) -> str:
        """16 hexadecimal digits; they change with the plan's text and its window's meaning."""
        return hashlib.sha256((self.window.digest() + self.text()).encode()).hexdigest()[:16]


def make_plan(window: Window, state: State, arch: Arch, format: Format | None = None) -> Plan:
    """The plan of a window whose state is stored as a spec says, on one architecture.

    format   overrides the row that `state.format` names
    Where the format stores the state at every step, the spec's window and records have no meaning.
    Errors: PlanError, FormatError.
    """
    if format is None:
        row = chosen(state.format, state.choices)
    else:
        row = format.with_state(state.smoothing, state.compensators)
    records, tokens = (state.records, state.window) if row.windowed else ("fp32", 1)
    plan = Plan(window, row, arch, records, slot_buffers(window, row, records), tokens)
    plan.check()
    return plan
