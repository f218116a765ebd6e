"""Whole states: emptied, read and written in FP32, duplicated."""

from __future__ import annotations

import torch

from .checks import check_tensor, integer
from .descriptors import ALIGNMENT, STATE_AXES
from .drafts import Drafts
from .errors import refuse
from .pool import Pool


class States(Drafts):
    """Adds reset, materialize, load_state and copy."""

    def reset(
        self, pool: Pool, slots: torch.Tensor, *, first_slot: int = 0, check: bool = False
    ) -> None:
        """Empty the slots: a zero state, cursor and phase 0."""
        rows, values = self._rows(pool, slots, first_slot)
        if check:
            self._inspect(pool, slots, first_slot)
        self._begin("reset", pool, rows, values, check)

    def materialize(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *,
        layout: str = "VK",
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """The state at the cursor, FP32 [rows, HV, V, K] (layout "KV": [rows, HV, K, V]); the pool
        stays as it is, and drafts that are pending count for nothing. Zeros in inactive rows."""
        rows, values = self._rows(pool, slots, first_slot)
        out = self._result("out", out, _state_sizes(layout, rows, pool), torch.float32, pool)
        values |= self._view("state", out, ("row", "head", *STATE_AXES[layout]))
        values["state_whole"] = int(_whole(out))
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P)
        self._launch("materialize", pool, rows, values, check)
        return out

    def load_state(
        self,
        pool: Pool,
        slots: torch.Tensor,
        state: torch.Tensor,
        position: torch.Tensor | int | None = None,
        *,
        layout: str = "VK",
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Start slots from FP32 states in `materialize`'s layout.

        position  tokens so far, int32 [rows] or one number >= 0; phase = position mod window
        """
        rows, values = self._rows(pool, slots, first_slot)
        check_tensor("state", state, _state_sizes(layout, rows, pool), torch.float32, pool.device)
        values |= self._view("state", state, ("row", "head", *STATE_AXES[layout]))
        if not isinstance(position, torch.Tensor):
            number = integer("position", position or 0, 0) % pool.shape.P
            position = torch.full((1,), number, dtype=torch.int32, device=pool.device).expand(rows)
        check_tensor("position", position, (rows,), torch.int32, pool.device)
        values |= self._view("position", position, ("row",))
        if check:
            self._inspect(pool, slots, first_slot)
        self._begin("load_state", pool, rows, values, check)

    def copy(
        self,
        pool: Pool,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Duplicate slots, bit for bit, without the drafts that are pending in a source (they stay
        there). A row is active iff both its slots are; a slot that is written in one row may stand
        in no other."""
        rows, values = self._rows(pool, source, first_slot, "source")
        values |= self._rows(pool, target, first_slot, "target")[1]
        check_tensor("target", target, (rows,), torch.int32, pool.device)
        if check:
            self._inspect(pool, target, first_slot, "target")
            self._inspect(pool, source, first_slot, "source", limit=pool.shape.P, unique=False)
            both = {s for s in source.tolist() if s >= first_slot} & set(target.tolist())
            if both:
                raise refuse("source", "no slot that is a target too", sorted(both))
        self._launch("copy", pool, rows, values, check)
        if pool.shape.D:
            both_active = (source >= first_slot) & (source < pool.slots)
            dropped = torch.where(both_active, target, -1)
            self._drop(pool, rows, self._rows(pool, dropped, first_slot)[1], check)


def _state_sizes(layout: str, rows: int, pool: Pool) -> tuple[int, ...]:
    if layout not in STATE_AXES:
        raise refuse("layout", " or ".join(STATE_AXES), layout)
    shape = pool.shape
    axes = (shape.V, shape.K) if layout == "VK" else (shape.K, shape.V)
    return (rows, shape.HV, *axes)


def _whole(state: torch.Tensor) -> bool:
    """Whether runs of 4 channels along its contiguous axis are aligned accesses of 16 bytes."""
    row, head, *axes = state.stride()
    aligned = state.data_ptr() % ALIGNMENT == 0
    return aligned and min(axes) == 1 and not any(s % 4 for s in (row, head, max(axes)))
