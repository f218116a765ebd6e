"""The pool tensors of a slot, from a window's records and a format."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from leapgen.algebra.window import DecaySource, Window
from leapgen.formats.base import Format
from leapgen.tensors import DTYPES, Axis, Per

ALIGNMENT = 16
"""Bytes that every head stride of a vector tile and every slot stride is a multiple of."""
STORED = ("payload", "scale", "compensator", "residual")
"""Roles of what a stored state is made of, and what its bytes an element count."""
CHECKPOINT = (*STORED, "rounding")
"""Roles of what a checkpoint keeps, beside the phase."""


@dataclass(frozen=True)
class Shape:
    """Shape-time numbers: K, V channels; H key heads; HV value heads; P tokens a window;
    R compensators; D drafts that a slot has room for beyond its window."""

    K: int
    V: int
    H: int
    HV: int
    P: int
    R: int
    D: int = 0

    @property
    def group(self) -> int:
        """Value heads that share a key head; value head hv uses key head hv // group."""
        return self.HV // self.H

    @property
    def capacity(self) -> int:
        """Tokens whose records a slot has room for."""
        return self.P + self.D

    def size(self, word: str) -> int:
        """The number that a dimension word stands for: names and integers joined by `*`, and
        perhaps divided by an integer, rounded up (`K/32`: blocks of 32, the last may be short).
        P is the capacity here, as in the tiles of records."""
        product, _, divisor = word.partition("/")
        values = {**vars(self), "P": self.capacity}
        whole = prod(int(part) if part.isdigit() else values[part] for part in product.split("*"))
        return -(-whole // int(divisor or 1))


@dataclass(frozen=True)
class Buffer:
    """One pool tensor.

    heads    "H", "HV": leading head axis after the slot
    tile     dims of one (slot, head) tile as words evaluated on a Shape: "K", "V", "P", "R", "K*V"
             (empty: one scalar a head)
    dtype    element type
    role     payload | scale | compensator | residual | rounding | decay | record | cursor; `decay`:
             that of every token, written by the first of a window; `rounding`: stores so far
    doc      one line for the docstring's table
    """

    name: str
    heads: str
    tile: tuple[str, ...]
    dtype: str
    role: str
    doc: str

    @property
    def scalar(self) -> bool:
        """Whether a head has one number, so that heads are not padded."""
        return not self.tile

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].bytes

    def dims(self, shape: Shape) -> tuple[int, ...]:
        """The tile's dimensions."""
        return tuple(shape.size(word) for word in self.tile)

    def tile_bytes(self, shape: Shape) -> int:
        """Bytes of one (slot, head) tile, without paddings."""
        return prod(self.dims(shape)) * self.itemsize

    def head_stride(self, shape: Shape) -> int:
        """Bytes from one head to the next."""
        tile = self.tile_bytes(shape)
        return tile if self.scalar else _aligned(tile)

    def slot_bytes(self, shape: Shape) -> int:
        """Bytes from one slot to the next."""
        return _aligned(shape.size(self.heads) * self.head_stride(shape))


PENDING = Buffer(
    "pending", "HV", (), "int32", "cursor", "with drafts: those that wait for a commit"
)
"""In the pools that were allocated with drafts; an argument of verify, and of their flush."""


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def state_bytes(format: Format, K: int, V: int) -> int:
    """Bytes of one head's stored state: payload, scales, compensators and residual, unpadded."""
    shape = Shape(K, V, 1, 1, 1, format.compensators)
    return sum(b.tile_bytes(shape) for b in _state_buffers(format) if b.role in STORED)


def slot_buffers(window: Window, format: Format, records: str) -> tuple[Buffer, ...]:
    """The pool tensors, in the order of every kernel's parameters.

    records   element type of record keys and corrections
    A format that stores the state at every step has the state and nothing else.
    """
    if not format.windowed:
        return _state_buffers(format)
    return (
        *_state_buffers(format),
        *_record_buffers(window, records),
        Buffer("cursor", "HV", (), "int32", "cursor", "tokens in the window"),
        Buffer("phase", "HV", (), "int32", "cursor", "position in the window at which it started"),
    )


def _state_buffers(format: Format) -> tuple[Buffer, ...]:
    return tuple(Buffer(p.name, "HV", p.tile, p.dtype, p.role, p.doc) for p in format.parts())


def _record_buffers(window: Window, records: str) -> tuple[Buffer, ...]:
    count = _times(window.records_per_token)
    shared = all(record.key_per is Per.KEY for record in window.records)
    key_doc = "keys of records, one a key head" if shared else "keys of records"
    buffers = []
    vector = any(level.axis is Axis.KEY for level in window.levels)
    if window.decay_source is DecaySource.CONSTANT:
        doc = "log2 decay of one token"
        buffers.append(Buffer("token_decay", "HV", ("K",) if vector else (), "fp32", "decay", doc))
    if window.decay_source is DecaySource.STORED:
        tile = (_times(len(window.levels)), *(("K",) if vector else ()))
        doc = "cumulative log2 decay after the record's token"
        buffers.append(Buffer("record_decay", "HV", tile, "fp32", "record", doc))
    buffers.append(
        Buffer("record_key", "H" if shared else "HV", (count, "K"), records, "record", key_doc)
    )
    buffers.append(
        Buffer("record_u", "HV", (count, "V"), records, "record", "corrections of records")
    )
    return tuple(buffers)


def _times(n: int) -> str:
    """n entries a token."""
    return "P" if n == 1 else f"{n}*P"
