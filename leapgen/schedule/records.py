"""What one token adds to a window: how many values, over which axes."""

from __future__ import annotations

from dataclasses import dataclass

from leapgen.schedule.buffers import Buffer, Shape

SIZES = ("K", "V")


@dataclass(frozen=True)
class RecordSize:
    """The records of one token of one value head; what a key head shares is counted in full.

    scalars, keys, values   numbers, K vectors and V vectors
    shared                  K vectors among `keys` that the value heads of a key head share
    """

    scalars: int
    keys: int
    values: int
    shared: int

    @property
    def formula(self) -> str:
        """`1 + K + V`, `3K + 2V`."""
        parts = [str(self.scalars)] if self.scalars else []
        for count, axis in ((self.keys, "K"), (self.values, "V")):
            parts += [f"{'' if count == 1 else count}{axis}"] if count else []
        return " + ".join(parts) or "0"

    def count(self, K: int, V: int) -> int:
        """Values at these dimensions."""
        return self.scalars + self.keys * K + self.values * V


def record_size(buffers: tuple[Buffer, ...]) -> RecordSize:
    """The size of a token's records, from the pool tensors that hold them."""
    scalars = keys = values = shared = 0
    for b in buffers:
        if b.role != "record":
            continue
        each = 1
        for word in b.tile[0].split("*"):
            each *= int(word) if word.isdigit() else 1  # the other word is P, tokens of a window
        axis = b.tile[1] if len(b.tile) > 1 else ""
        scalars += each if not axis else 0
        keys += each if axis == "K" else 0
        values += each if axis == "V" else 0
        shared += each if axis == "K" and b.heads == "H" else 0
    return RecordSize(scalars, keys, values, shared)


def record_bytes(buffers: tuple[Buffer, ...], shape: Shape) -> float:
    """Bytes that a token adds to a slot, per value head, shared keys once a group."""
    records = (b for b in buffers if b.role == "record")
    heads = sum(b.tile_bytes(shape) * shape.size(b.heads) for b in records)
    return heads / (shape.capacity * shape.HV)
