"""The model of kernels that keep no window: every token reads, changes and stores the whole state.

The step is the recurrence itself, sub-step by sub-step in FP32, between a restored and a stored
state; it uses nothing of the algebra, whose step reads the state once for all sub-steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from leapgen.formats.base import F32
from leapgen.oracle.evaluate import Array, definitions
from leapgen.oracle.stepwise import Stepwise, token_of
from leapgen.oracle.windowed import Ints, WindowModel
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec


@dataclass
class StepModel(WindowModel):
    """As WindowModel, for a format that stores the state at every step; `flushes` counts stores."""

    def step_with_corrections(
        self, slots: Ints, inputs: Mapping[str, Array], first_slot: int = 0
    ) -> tuple[F32, F32]:
        """One token of every row: its output [rows, HV, V] and its corrections [rows, HV, n, V]."""
        slots = np.asarray(slots)
        active = self.pool.active(slots, first_slot, 0)
        rows = np.where(active.any(axis=1), slots, 0)
        scope = definitions(self.spec, inputs, self.shape.HV, np.float32)
        token = token_of(self.spec, scope)
        after, out, us = Stepwise(self.spec).advance(self.state(rows), token)
        chosen = np.nonzero(active.any(axis=1))[0]
        none = self.plan.format.no_factors(len(chosen), self.shape.HV, 0, self.shape.V)
        draws = self._draws(rows[chosen])
        stored = self.plan.format.store(np.asarray(after[chosen], np.float32), none, draws)
        self.pool.store((rows[chosen],), stored)
        self.flushes += len(chosen) * self.shape.HV
        live = active[..., None]
        wide = np.stack([np.broadcast_to(u, out.shape) for u in us], axis=-2)
        zero = np.float32(0)
        return (
            np.where(live, out, zero).astype(np.float32),
            np.where(live[..., None], wide, zero).astype(np.float32),
        )

    def state(self, rows: Ints) -> F32:
        """The stored state [rows, HV, K, V]."""
        return self._boundary(rows)

    def flush(self, slots: Ints, first_slot: int = 0) -> None:
        """There is nothing to fold."""


def model_of(spec: Spec, plan: Plan, shape: Shape, slots: int) -> WindowModel:
    """The model of a plan's kernels over a pool of slots."""
    return (WindowModel if plan.windowed else StepModel)(spec, plan, shape, slots)
