"""Committed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .compilation import Launch
from .drafts import LEAVE, Drafts, no_drafts
from .orders import order_of
from .pool import Pool


class Steps(Drafts):
    """Adds step and flush."""

    def step(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *inputs: torch.Tensor,
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """One committed token a row; then the slots whose window is full are flushed. Drafts that
        are pending in these slots are dropped.

        slots   int32 [rows]; rows with a slot below `first_slot` are inactive
        inputs  in the module's order
        check   synchronise, and name the row of a bad slot or cursor
        Returns `out`, [rows, HV, V]; zeros in inactive rows.
        """
        rows, values = self._rows(pool, slots, first_slot)
        out = self._operands(pool, {"row": rows}, inputs, out, values)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
        kernels = self.step_kernels(pool, rows)
        self._run(kernels, pool, {**values, **own_arguments(pool, rows, kernels)}, check)
        return out

    def step_kernels(self, pool: Pool, rows: int) -> list[Launch]:
        """What a step of so many rows launches, in order."""
        if rows == 0:
            return []
        step = self.kernel("step", pool, rows)
        flushes = self.windowed and not step.fused
        # A flush forgets drafts too.
        return [step, self.kernel("flush", pool, rows)] if flushes or pool.shape.D else [step]

    def flush(
        self, pool: Pool, slots: torch.Tensor, *, first_slot: int = 0, check: bool = False
    ) -> None:
        """Flush the slots whose window is full. `step` has done it already; rarely needed, and
        without windows there is nothing to do."""
        rows, values = self._rows(pool, slots, first_slot)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P)
        if self.windowed:
            self._launch("flush", pool, rows, {**values, **no_drafts(pool, LEAVE)}, check)


def own_arguments(pool: Pool, rows: int, kernels: Sequence[Launch]) -> dict[str, Any]:
    """What the kernels of a step receive that no caller gives."""
    return {**no_drafts(pool), **order_of(pool, rows, kernels)}
