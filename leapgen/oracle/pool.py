"""The tensors of a pool in canonical order: no paddings, no private payload order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements, packing
from leapgen.formats.base import Codes, Stored
from leapgen.schedule.buffers import STORED, Buffer, Shape
from leapgen.schedule.plan import Plan

Ints = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]

STORAGE: dict[str, type[np.generic]] = {
    **elements.STORAGE,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
}
CODES = ("payload", "residual")
"""Buffers of codes: as [K, V] where a code fills its element, in packed planes otherwise."""

FACTOR_SCALES: tuple[str, ...] = ("comp_key_scale", "comp_u_scale")


class Pool:
    """Arrays [slots, heads, tile] by buffer name; the payload's tile is [K, V].

    Records start as NaN, so that a read beyond the cursor shows.
    status   [slot out of range was seen, cursor out of range was seen]
    """

    def __init__(self, plan: Plan, shape: Shape, slots: int) -> None:
        self.plan, self.shape, self.slots = plan, shape, slots
        self.status = np.zeros(4, np.int32)
        self.buffers = plan.slot_buffers(shape)
        self._arrays = {b.name: self._empty(b) for b in self.buffers}

    def _empty(self, b: Buffer) -> npt.NDArray[Any]:
        whole = b.name in CODES and self._packed(b.name) is None
        dims = (self.shape.K, self.shape.V) if whole else b.dims(self.shape)
        size = (self.slots, self.shape.size(b.heads), *dims)
        if b.role != "record":  # the decay of a window's tokens is hidden by the cursor like them
            return np.zeros(size, STORAGE[b.dtype])
        return elements.encode(b.dtype, np.full(size, np.nan, np.float32))

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def optional(self, name: str, rows: Ints) -> npt.NDArray[Any] | None:
        """The slots' part of a tensor, or None where the plan has no such tensor."""
        return self._arrays[name][rows] if name in self._arrays else None

    def heads(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        """The slots' part with one entry a value head: what key heads share is repeated."""
        part = self._arrays[name][rows]
        return np.repeat(part, self.shape.HV // part.shape[1], axis=1)

    def column(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        """The slots' part as [rows, heads, entries, n]: scalars get a last axis of one."""
        part = self._arrays[name][rows]
        return part[..., None] if part.ndim == 3 else part

    def in_pool(self, slots: Ints, first_slot: int) -> Mask:
        """Rows whose slot exists and is not reserved; notes slots beyond the pool in `status`."""
        if (slots >= self.slots).any():
            self.status[0] = 1
        return (slots >= first_slot) & (slots >= 0) & (slots < self.slots)

    def active(self, slots: Ints, first_slot: int, last_cursor: int) -> Mask:
        """Active (row, head) pairs; notes cursors outside 0..last_cursor in `status`."""
        rows = self.in_pool(slots, first_slot)
        if "cursor" not in self:
            return np.repeat(rows[:, None], self.shape.HV, axis=1)
        cursor = self._arrays["cursor"][np.where(rows, slots, 0)]
        bad = rows[:, None] & ((cursor < 0) | (cursor > last_cursor))
        if bad.any():
            self.status[1] = 1
        return rows[:, None] & ~bad

    def put(self, name: str, rows: Ints, index: Ints, active: Mask, x: npt.NDArray[Any]) -> None:
        """Write one entry a head at `index` [rows, HV]; a shared tensor takes the group's first."""
        array = self._arrays[name]
        dtype = next(b.dtype for b in self.plan.buffers if b.name == name)
        step = self.shape.HV // array.shape[1]
        n = array.shape[3] if array.ndim == 4 else 1
        x = np.broadcast_to(x, (*index.shape, n)).astype(np.float32)
        row, head = np.nonzero(active[:, ::step])
        entry = elements.encode(dtype, x[:, ::step][row, head])
        place = (rows[row], head, index[:, ::step][row, head])
        array[place] = entry if array.ndim == 4 else entry[:, 0]

    def put_whole(self, name: str, rows: Ints, active: Mask, x: npt.NDArray[Any]) -> None:
        """Write whole tiles of value heads."""
        row, head = np.nonzero(active)
        array = self._arrays[name]
        tile = np.broadcast_to(x, (*active.shape, x.shape[-1])).astype(np.float32)[row, head]
        array[rows[row], head] = tile if array.ndim == 3 else tile[:, 0]

    def _packed(self, name: str) -> tuple[int, bool] | None:
        """(bits, whether signed) of codes that are packed."""
        return self.plan.format.packed().get(name)

    def store(self, place: tuple[Ints, ...], stored: Stored) -> None:
        """Write quantized states at these indices of the leading axes; cursor and phase, where
        there are such, are 0, and one more store is counted."""
        for name, part in stored.parts.items():
            packed = self._packed(name)
            if packed is not None:
                flat = np.swapaxes(part, -1, -2).reshape(*part.shape[:-2], -1)
                planes = packing.pack(flat, packed[0])
                for plane, codes in zip(("", "_high"), planes, strict=False):
                    self._arrays[f"{name}{plane}"][place] = codes
            elif name in self._arrays:
                self._arrays[name][place] = part
        for name in ("cursor", "phase"):
            if name in self:
                self._arrays[name][place] = 0
        if "stores" in self:
            self._arrays["stores"][place] += 1

    def stored(self, rows: Ints) -> Stored:
        """The quantized states [rows, HV] of slots."""
        parts = {
            b.name: self._arrays[b.name][rows]
            for b in self.plan.buffers
            if b.role in STORED and b.heads == "HV"
        }
        for name, (bits, signed) in self.plan.format.packed().items():
            names = [n for n in (name, f"{name}_high") if n in parts]
            codes = packing.unpack(tuple(parts.pop(n) for n in names), bits, signed)
            size = (*codes.shape[:-1], self.shape.V, self.shape.K)
            parts[name] = np.swapaxes(codes.reshape(size), -1, -2)
        empty = np.zeros((len(rows), self.shape.HV, 0, 1), np.float16)
        factors = [parts.pop(name, empty) for name in ("comp_key", "comp_u")]
        scales = {name: parts.pop(name) for name in FACTOR_SCALES if name in parts}
        named = [parts.pop(name, None) for name in ("key_scale", "value_scale")]
        boundary = Codes(parts.pop("payload"), named[0], named[1], parts)
        return Stored(boundary, factors[0], factors[1], scales)

    def restart(self, slots: Ints) -> None:
        """No stores so far, where they are counted: draws do not depend on what a slot held."""
        if "stores" in self:
            self._arrays["stores"][slots] = 0

    def copy(self, source: Ints, target: Ints) -> None:
        """Duplicate slots; the drafts that are pending in a source are not copied."""
        for array in self._arrays.values():
            array[target] = array[source]
        self.drop_drafts(target)

    def drop_drafts(self, slots: Ints) -> None:
        """Nothing is pending any more, where the pool has drafts."""
        if "pending" in self:
            self._arrays["pending"][slots] = 0

    def reset(self, slots: Ints) -> None:
        """Zero everything but the records, which the cursor hides."""
        for b in self.buffers:
            if b.role != "record":
                self._arrays[b.name][slots] = 0
