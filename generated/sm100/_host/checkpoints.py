"""What slots hold in canonical form: all of it, or what a cache of prefixes keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from .checks import check_tensor
from .descriptors import CHECKPOINT, DTYPES, EXPORT_VERSION, Buffer
from .drafts import Drafts, no_drafts
from .errors import refuse
from .pool import Pool

KINDS = ("slots", "checkpoint")


class Checkpoints(Drafts):
    """Adds export, checkpoint and import_."""

    def export(self, pool: Pool, slots: torch.Tensor) -> dict[str, Any]:
        """All that the slots hold, in an order that no arch owns: every pool tensor as [rows,
        heads, *tile], the payload as [rows, HV, K, V], records of one window, those beyond the
        cursor zeroed; and a `header`. Drafts that are pending are left out. Synchronises."""
        return self._export(pool, self._index(pool, slots), "slots")

    def checkpoint(self, pool: Pool, slots: torch.Tensor, *, force: bool = False) -> dict[str, Any]:
        """What `export` gives, without records: the stored state of slots whose window is closed,
        and where in a window they stand. For caches of prefixes. Synchronises.

        force   close the other windows early, which quantizes their states once more and drops
                their drafts; the next window ends where this one would have. `forced` of the result
                lists these rows, and `pool.forced` counts them
        Errors: ArgumentError for a slot with records, unless forced.
        """
        index = self._index(pool, slots)
        open_rows = self._open_rows(pool, index)
        if open_rows and not force:
            row = open_rows[0]
            expected = "a slot whose window is closed, or force=True"
            found = f"cursors {pool['cursor'][index[row]].tolist()} in slot {int(index[row])}"
            raise refuse(f"slots[{row}]", expected, found)
        self._close(pool, slots[open_rows])
        return {**self._export(pool, index, "checkpoint"), "forced": open_rows}

    def checkpoint_bytes(self, **sizes: int) -> int:
        """Bytes of one slot's tensors in a checkpoint, without paddings."""
        shape = self.shape(**sizes)
        return sum(
            prod(b.sizes(shape)) * DTYPES[b.dtype].itemsize
            for b in self.buffers
            if _kept(b, "checkpoint")
        )

    def _open_rows(self, pool: Pool, index: torch.Tensor) -> list[int]:
        """Rows whose window has records."""
        if not self.windowed:
            return []
        used = pool["cursor"][index].ne(0).any(dim=1)
        return [int(row) for row in used.nonzero().flatten()]

    def _close(self, pool: Pool, slots: torch.Tensor) -> None:
        """Flushes slots that have records as if their windows were full."""
        if not slots.numel():
            return
        index, P = slots.to(torch.int64), pool.shape.P
        position = (pool["phase"][index] + pool["cursor"][index]) % P
        pool["phase"][index] = P
        rows, values = self._rows(pool, slots, 0)
        self._launch("flush", pool, rows, {**values, **no_drafts(pool)}, check=False)
        pool["phase"][index] = position
        pool.forced += rows

    def _export(self, pool: Pool, index: torch.Tensor, kind: str) -> dict[str, Any]:
        data: dict[str, Any] = {"header": self._header(pool, kind)}
        order = self.layout.order(pool.shape, pool.device)
        for buffer in self.buffers:
            if not _kept(buffer, kind):
                continue
            values = pool[buffer.name][index]
            if buffer.role == "payload" and buffer.packed(pool.shape):
                values = self.layout.planes(values, pool.shape)
            elif buffer.role == "payload":
                values = values[..., order]
            elif buffer.role == "record":
                values = torch.where(_live(pool, buffer, index), values, torch.zeros_like(values))
                values = values[:, :, : buffer.sizes(replace(pool.shape, D=0))[1]]
            data[buffer.name] = values
        return data

    def import_(self, pool: Pool, slots: torch.Tensor, data: Mapping[str, Any]) -> None:
        """Write what `export` or `checkpoint` gave, from a pool of any arch, device and number of
        drafts. Nothing is written if anything does not fit. Synchronises."""
        index, found = self._index(pool, slots), data.get("header")
        kind = found.get("kind") if isinstance(found, Mapping) else None
        kind = kind if kind in KINDS else KINDS[0]
        if found != (header := self._header(pool, kind)):
            raise refuse("header", header, found)
        order = self.layout.order(pool.shape, pool.device)
        ready: dict[str, torch.Tensor] = {}
        for buffer in self.buffers:
            if not _kept(buffer, kind):
                continue
            heads, *tile = buffer.sizes(replace(pool.shape, D=0))
            payload = buffer.role == "payload" and not buffer.packed(pool.shape)
            sizes = (len(index), heads, *((pool.shape.K, pool.shape.V) if payload else tile))
            found = data.get(buffer.name)
            values = found.to(pool.device) if isinstance(found, torch.Tensor) else found
            values = check_tensor(buffer.name, values, sizes, DTYPES[buffer.dtype], pool.device)
            if payload:
                canonical, values = values, torch.empty_like(values).flatten(2)
                values[..., order] = canonical
            elif buffer.role == "payload":
                values = self.layout.planes(values, pool.shape, back=True)
            ready[buffer.name] = values
        if "cursor" in pool and kind == "checkpoint":
            ready["cursor"] = torch.zeros_like(pool["cursor"][index])
        for name, values in ready.items():
            if values.dim() > 2:
                pool[name][index, :, : values.shape[2]] = values
            else:
                pool[name][index] = values
        if "pending" in pool:
            pool["pending"][index] = 0

    def _header(self, pool: Pool, kind: str) -> dict[str, Any]:
        return {
            "version": EXPORT_VERSION,
            "kind": kind,
            "spec": self.spec or self.digest,
            "format": self.format,
            "layout": "canonical",
            "shape": dict(vars(replace(pool.shape, D=0))),
        }

    def _index(self, pool: Pool, slots: torch.Tensor) -> torch.Tensor:
        self._rows(pool, slots, 0)
        self._inspect(pool, slots, first_slot=0)
        if (least := min(slots.tolist(), default=0)) < 0:
            raise refuse("slots", "slots of at least 0", least)
        return slots.to(torch.int64)


def _kept(buffer: Buffer, kind: str) -> bool:
    """Whether an export of a kind has a pool tensor."""
    return kind == "slots" or buffer.role in CHECKPOINT or buffer.name == "phase"


def _live(pool: Pool, buffer: Buffer, index: torch.Tensor) -> torch.Tensor:
    """Which records of a buffer lie below the cursor, broadcast over what one record holds."""
    shape = pool.shape
    heads, entries, *rest = buffer.sizes(shape)
    token = torch.arange(entries, device=pool.device) // (entries // (shape.P + shape.D))
    live = token < pool["cursor"][index][:, :: shape.HV // heads, None]
    return live.reshape(*live.shape, *[1] * len(rest))
