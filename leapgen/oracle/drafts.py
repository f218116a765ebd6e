"""Drafts in the models: verify and commit, of the window model and of the float64 interpreter.

A draft is a token whose records stand beyond the cursor. Later drafts read it there, as later
tokens read a committed one, and nothing else does: until a commit moves the cursor over it, no
state has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from leapgen.formats.base import F32
from leapgen.oracle.evaluate import Array
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.windowed import Ints, WindowModel
from leapgen.spec.model import Spec


class DraftModel(WindowModel):
    """The window model of a shape with D > 0 drafts."""

    def verify(
        self,
        slots: Ints,
        inputs: Mapping[str, Array],
        lengths: Ints | None = None,
        accepted: Ints | None = None,
        first_slot: int = 0,
    ) -> F32:
        """Outputs of draft tokens that stand behind the cursor, which does not move.

        inputs     [rows, tokens, heads, axis] or [rows, tokens, heads]; constants as in a step
        lengths    [rows] tokens of each row, the rest is zero in the output (absent: all)
        accepted   [rows] how many of the drafts before are committed first (absent: none)
        Returns [rows, tokens, HV, V] in FP32.
        """
        slots = np.asarray(slots)
        self.commit(slots, np.zeros(len(slots), int) if accepted is None else accepted, first_slot)
        active = self.pool.active(slots, first_slot, self.shape.P - 1)
        rows = np.where(active.any(axis=1), slots, 0)
        count = np.where(active, self.pool["cursor"][rows], 0)
        varying = [x.name for x in self.spec.inputs if not x.constant]
        tokens = inputs[varying[0]].shape[1]
        length = np.full(len(slots), tokens) if lengths is None else np.asarray(lengths)
        outs = [np.zeros((len(slots), 0, self.shape.HV, self.shape.V), np.float32)]
        for t in range(tokens):
            token = token_at(self.spec, inputs, t)
            live = active & (t < length)[:, None]
            outs.append(self.advance(rows, count + t, live, token)[0][:, None])
        row, head = np.nonzero(active)
        self.pool["pending"][rows[row], head] = length[row]
        return np.concatenate(outs, axis=1)

    def commit(self, slots: Ints, accepted: Ints, first_slot: int = 0) -> None:
        """Keep the first `accepted` [rows] pending drafts of every row, or all if there are fewer,
        and forget the others; then flush the rows whose window is full."""
        slots = np.asarray(slots)
        active = self.pool.active(slots, first_slot, self.shape.P - 1)
        rows = np.where(active.any(axis=1), slots, 0)
        row, head = np.nonzero(active)
        place = (rows[row], head)
        kept = np.clip(np.asarray(accepted)[row], 0, self.pool["pending"][place])
        self.pool["cursor"][place] += kept
        self.pool["pending"][place] = 0
        self._flush(rows, active)


def token_at(spec: Spec, inputs: Mapping[str, Array], token: int) -> dict[str, Array]:
    """One token of [rows, tokens, ...] inputs; constants have no tokens and stay."""
    return {
        x.name: inputs[x.name][:, token] if not x.constant else inputs[x.name] for x in spec.inputs
    }


@dataclass
class Speculation:
    """The float64 interpreter over slots, plain decode beside which everything else is compared.

    state     [slots, HV, K, V] after all committed tokens
    pending   slot -> states after each of its drafts
    """

    spec: Spec
    state: Array
    pending: dict[int, list[Array]] = field(default_factory=dict)

    def step(self, slots: Ints, inputs: Mapping[str, Array]) -> Array:
        """One committed token a row; returns the outputs [rows, HV, V]."""
        for slot in slots:
            self.pending.pop(int(slot), None)
        self.state[slots], out, _ = Stepwise(self.spec).step(self.state[slots], inputs)
        return out

    def verify(
        self,
        slots: Ints,
        inputs: Mapping[str, Array],
        lengths: Ints | None = None,
        accepted: Ints | None = None,
    ) -> Array:
        """As DraftModel.verify, of rows that are all active."""
        self.commit(slots, np.zeros(len(slots), int) if accepted is None else accepted)
        varying = next(x.name for x in self.spec.inputs if not x.constant)
        tokens = inputs[varying].shape[1]
        length = np.full(len(slots), tokens) if lengths is None else np.asarray(lengths)
        state = self.state[slots]
        outs = np.zeros((len(slots), tokens, state.shape[1], state.shape[3]))
        for slot in slots:
            self.pending[int(slot)] = []
        for t in range(tokens):
            state, out, _ = Stepwise(self.spec).step(state, token_at(self.spec, inputs, t))
            for row in np.nonzero(t < length)[0]:
                outs[row, t] = out[row]
                self.pending[int(slots[row])].append(state[row])
        return outs

    def commit(self, slots: Ints, accepted: Ints) -> None:
        """As DraftModel.commit."""
        for slot, number in zip(slots, accepted, strict=True):
            states = self.pending.pop(int(slot), [])
            if kept := min(max(int(number), 0), len(states)):
                self.state[int(slot)] = states[kept - 1]

    def copy(self, source: Ints, target: Ints) -> None:
        """Duplicate slots without their drafts."""
        self.put(target, self.state[source])

    def put(self, slots: Ints, states: Array) -> None:
        """Set the states of slots."""
        self.state[slots] = states
        for slot in slots:
            self.pending.pop(int(slot), None)
