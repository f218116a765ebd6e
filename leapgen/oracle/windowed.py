"""A NumPy model of pool, window and format: what the generated kernels must agree with.

The step is the definition of a windowed read, from the spec's coefficients, in FP32:

    S^T x = S0^T (2^G x) + sum_j (key_j . 2^(G - G_j) x) u_j

with S0 the stored boundary state, G the cumulative log2 decay at the read and G_j the one after
record j. It uses nothing of the algebra. Earlier tokens are read as their records were rounded;
the token's own records enter its later reads and its output unrounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.base import F32
from leapgen.formats.philox import uniforms
from leapgen.oracle.evaluate import Array, definitions, log_decay_of
from leapgen.oracle.pool import Pool
from leapgen.oracle.stepwise import SubStepValues, read, token_of
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

LOG2E = np.float32(np.log2(np.e))
LEAST_LOG2 = np.float32(-150.0)
"""Least log2 decay of one token: 2^-150 is zero in FP32, and sums of it stay exact enough."""

Ints = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Record:
    """One rank-one update [..., K] x [..., V] and the cumulative log2 decay after it [..., n]."""

    key: F32
    u: F32
    decay: F32


@dataclass
class WindowModel:
    """The kernels' contract over a pool of slots; every method takes rows of slot numbers.

    spec, plan, shape   what is modelled; `shape` fixes heads, dimensions, window and compensators
    slots               slots of the pool
    flushes             count of (slot, head) flushes since construction
    """

    spec: Spec
    plan: Plan
    shape: Shape
    slots: int
    pool: Pool = field(init=False)
    flushes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.plan.check_shape(self.shape)
        self.pool = Pool(self.plan, self.shape, self.slots)
        decays = [s.decay.kind != "none" for s in self.spec.substeps]
        # Every record has a level of its own token, if any decays: the first sub-step opens one.
        self._opens = [d or (j == 0 and any(decays)) for j, d in enumerate(decays)]
        self._level = [int(level) for level in np.cumsum(self._opens) - 1]

    # ---- one token

    def step(self, slots: Ints, inputs: Mapping[str, Array], first_slot: int = 0) -> F32:
        """One token of every row, and the flush of those whose window is then full.

        slots    [rows] slot numbers; a row below first_slot is inactive and gives zeros
        inputs   as the spec declares them: [rows, heads, axis] or [rows, heads]
        Returns the output [rows, HV, V] in FP32, before any rounding to the output's type.
        """
        out, _ = self.step_with_corrections(slots, inputs, first_slot)
        return out

    def step_with_corrections(
        self, slots: Ints, inputs: Mapping[str, Array], first_slot: int = 0
    ) -> tuple[F32, F32]:
        """As `step`, and the unrounded corrections [rows, HV, n, V]."""
        slots = np.asarray(slots)
        active = self.pool.active(slots, first_slot, self.shape.P - 1)
        rows = np.where(active.any(axis=1), slots, 0)
        count = np.where(active, self.pool["cursor"][rows], 0)
        out, us = self.advance(rows, count, active, inputs)
        row, head = np.nonzero(active)
        self.pool["cursor"][rows[row], head] += 1
        self.pool.drop_drafts(rows[active.any(axis=1)])
        self._flush(rows, active)
        return out, us

    def advance(
        self, rows: Ints, count: Ints, active: Mask, inputs: Mapping[str, Array]
    ) -> tuple[F32, F32]:
        """One token behind `count` [rows, HV] others, whose records are written there; the cursor
        stays. Returns the output and the unrounded corrections; zeros where not active."""
        scope = definitions(self.spec, inputs, self.shape.HV, np.float32)
        token = token_of(self.spec, scope)
        boundary, past = self._boundary(rows), self._past(rows)
        committed = np.arange(past.key.shape[-2]) < count[..., None] * len(self._level)
        own: list[_Record] = []
        G = first = self._decay_at(rows, count)

        def buffered(x: F32, at: F32, records: list[_Record]) -> F32:
            y = read(boundary, x * np.exp2(at)) + _pending(past, committed, x, at)
            return sum((_weight(r, x, at) * r.u for r in records), start=y)

        levels = []
        for s, opens in zip(token.substeps, self._opens, strict=True):
            after = G if s.log is None else G + _log2(s.log)
            y = None if s.read is None else buffered(s.read, after if s.decayed else G, own)
            own.append(_Record(s.key, self._correction(s, y, count.shape), after))
            levels += [after] if opens else []
            G = after
        if self.spec.output.of == "previous":
            out = buffered(token.query, first, [])
        else:
            out = buffered(token.query, G, own)
        out = token.output(out).astype(np.float32)
        self._append(rows, count, active, own, levels)
        us = np.stack([np.broadcast_to(r.u, out.shape) for r in own], axis=-2)
        live = active[..., None]
        return np.where(live, out, np.float32(0)), np.where(live[..., None], us, np.float32(0))

    def _correction(self, s: SubStepValues, y: F32 | None, heads: tuple[int, ...]) -> F32:
        zero = np.zeros((*heads, self.shape.V), np.float32)
        value = zero if s.value is None else s.value
        u: F32 = np.asarray(s.gain * (value - (zero if y is None else y)), np.float32)
        return np.broadcast_to(u, zero.shape)

    def _append(
        self, rows: Ints, count: Ints, active: Mask, own: list[_Record], levels: list[F32]
    ) -> None:
        n = len(own)
        for s, record in enumerate(own):
            self.pool.put("record_key", rows, count * n + s, active, record.key)
            self.pool.put("record_u", rows, count * n + s, active, record.u)
        for i, level in enumerate(levels if "record_decay" in self.pool else ()):
            self.pool.put("record_decay", rows, count * len(levels) + i, active, level)
        if "token_decay" in self.pool:
            first, (level,) = active & (count == 0), levels
            self.pool.put_whole("token_decay", rows, first, level)

    # ---- reading the pool

    def _boundary(self, rows: Ints) -> F32:
        """The stored boundary state [rows, HV, K, V]."""
        return self.plan.format.restore(self.pool.stored(rows))

    def _draws(self, rows: Ints) -> F32 | None:
        """Draws of every head's next store [rows, HV, K, V], where codes are rounded by them."""
        if not self.plan.format.stochastic:
            return None
        heads = np.broadcast_to(np.arange(self.shape.HV), (len(rows), self.shape.HV))
        return uniforms(self.pool["stores"][rows], heads, self.shape.K, self.shape.V)

    def _past(self, rows: Ints) -> _Record:
        """All records that a slot has room for, committed or not: [rows, HV, n*(P+D), ...]."""
        key = elements.decode(self.plan.records, self.pool.heads("record_key", rows))
        u = elements.decode(self.plan.records, self.pool["record_u"][rows])
        stored = self._decays(rows)
        if stored is None:
            return _Record(key, u, np.zeros((1, 1, 1, 1), np.float32))
        levels = max(self._level) + 1
        entry = np.add.outer(np.arange(self.shape.capacity) * levels, self._level).ravel()
        return _Record(key, u, stored[:, :, entry])

    def _decays(self, rows: Ints) -> F32 | None:
        """Cumulative log2 decays after each token's levels [rows, HV, entries, n]; None without."""
        if max(self._level) < 0:
            return None
        if "record_decay" in self.pool:
            return self.pool.column("record_decay", rows)
        if "token_decay" in self.pool:
            first = self.pool["token_decay"][rows]
            first = first[..., None, None] if first.ndim == 2 else first[..., None, :]
            tokens = np.arange(1, self.shape.capacity + 1, dtype=np.float32)
            out: F32 = tokens[:, None] * first
            return out
        key = elements.decode(self.plan.records, self.pool.heads("record_key", rows))
        with np.errstate(invalid="ignore", divide="ignore"):  # beyond the cursor lies anything
            return np.cumsum(_log2(log_decay_of(self.spec, key)), axis=2, dtype=np.float32)

    def _decay_at(self, rows: Ints, count: Ints) -> F32:
        """Cumulative log2 decay at the cursor [rows, HV, 1 or K]; 0 in an empty window."""
        stored = self._decays(rows)
        if stored is None:
            return np.zeros((1, 1, 1), np.float32)
        last = np.maximum(count * (max(self._level) + 1) - 1, 0)[..., None, None]
        G = np.take_along_axis(stored, last, axis=2)[:, :, 0]
        return np.where(count[..., None] > 0, G, np.float32(0))

    def state(self, rows: Ints) -> F32:
        """The FP32 state at the cursor [rows, HV, K, V]; the pool stays as it is."""
        count = np.clip(self.pool["cursor"][rows], 0, self.shape.capacity)
        past, G = self._past(rows), self._decay_at(rows, count)
        committed = np.arange(past.key.shape[-2]) < count[..., None] * len(self._level)
        live = committed[..., None]
        weight = np.exp2(np.where(live, G[:, :, None] - past.decay, np.float32(0)))
        key = np.where(live, past.key * weight, np.float32(0))
        u = np.where(live, past.u, np.float32(0))
        return self._boundary(rows) * np.exp2(G)[..., None] + _added(key, u)

    # ---- flush, and whole slots

    def _flush(self, rows: Ints, active: Mask) -> None:
        full = self.pool["phase"][rows] + self.pool["cursor"][rows] >= self.shape.P
        row, head = np.nonzero(active & full)
        if not len(row):
            return
        unique = np.unique(row)
        states = self.state(rows[unique])
        place = np.searchsorted(unique, row)
        comp_u = self.pool.optional("comp_u", rows)
        old = self.plan.format.no_factors(*active.shape, 0, self.shape.V)
        old = old if comp_u is None else comp_u
        draws = self._draws(rows[unique])
        chosen = None if draws is None else draws[place, head]
        stored = self.plan.format.store(states[place, head], old[row, head], chosen)
        self.pool.store((rows[row], head), stored)
        self.flushes += len(row)

    def flush(self, slots: Ints, first_slot: int = 0) -> None:
        """Fold the window of the rows that are due: phase + cursor >= P."""
        slots = np.asarray(slots)
        active = self.pool.active(slots, first_slot, self.shape.P)
        self._flush(np.where(active.any(axis=1), slots, 0), active)

    def materialize(self, slots: Ints, first_slot: int = 0) -> F32:
        """The state at the cursor [rows, HV, K, V]; zeros for inactive rows."""
        slots = np.asarray(slots)
        active = self.pool.active(slots, first_slot, self.shape.P)
        states = self.state(np.where(active.any(axis=1), slots, 0))
        return np.where(active[..., None, None], states, np.float32(0))

    def load_state(
        self, slots: Ints, state: Array, position: Ints | None = None, first_slot: int = 0
    ) -> None:
        """Start slots from states [rows, HV, K, V]; the fit starts cold.

        position   [rows] absolute positions; the phase is position mod P (absent: 0)
        """
        slots = np.asarray(slots)
        chosen = np.nonzero(self.pool.in_pool(slots, first_slot))[0]
        heads = (len(chosen), self.shape.HV)
        cold = self.plan.format.no_factors(*heads, self.shape.R, self.shape.V)
        self.pool.restart(slots[chosen])
        draws = self._draws(slots[chosen])
        stored = self.plan.format.store(np.asarray(state, np.float32)[chosen], cold, draws)
        self.pool.store((slots[chosen],), stored)
        self.pool.drop_drafts(slots[chosen])
        if position is not None and "phase" in self.pool:
            phase = np.asarray(position)[chosen] % self.shape.P
            self.pool["phase"][slots[chosen]] = phase[:, None]

    def copy(self, source: Ints, target: Ints, first_slot: int = 0) -> None:
        """Duplicate slots, row by row; a row is active if both of its slots are."""
        source, target = np.asarray(source), np.asarray(target)
        chosen = self.pool.in_pool(source, first_slot) & self.pool.in_pool(target, first_slot)
        self.pool.copy(source[chosen], target[chosen])

    def reset(self, slots: Ints, first_slot: int = 0) -> None:
        """Empty slots: zero codes, scales and compensators, cursor and phase 0."""
        slots = np.asarray(slots)
        self.pool.reset(slots[self.pool.in_pool(slots, first_slot)])

    def export(self, slots: Ints) -> dict[str, npt.NDArray[Any]]:
        """Canonical tensors by buffer name [rows, heads, tile]; the payload's tile is [K, V]."""
        return {name: self.pool[name][np.asarray(slots)].copy() for name in self.pool}


def _log2(log: Array) -> F32:
    """One token's log2 decay from its natural log, clamped."""
    out: F32 = np.maximum(np.asarray(log, np.float32) * LOG2E, LEAST_LOG2)
    return out


def _weight(record: _Record, x: F32, at: F32) -> F32:
    """key . (2^(at - decay) x), with a last axis of one."""
    out: F32 = (record.key * np.exp2(at - record.decay) * x).sum(axis=-1, keepdims=True)
    return out


def _pending(past: _Record, committed: Mask, x: F32, at: F32) -> F32:
    """What the committed records add to a read of x; the others may hold NaN and are not used."""
    live = committed[..., None]
    decay = np.where(live, at[:, :, None] - past.decay, np.float32(0))
    products = np.where(live, past.key, np.float32(0)) * np.exp2(decay) * x[:, :, None]
    weight = products.sum(axis=-1)
    u = np.where(live, past.u, np.float32(0))
    return _added(weight[..., None], u)[..., 0, :]


def _added(left: F32, right: F32) -> F32:
    """Sum [..., a, b] of the records' products of [..., N, a] and [..., N, b], one after another: a
    matrix product's order depends on the CPU and on N, which spare records are part of."""
    out = np.zeros((*left.shape[:-2], left.shape[-1], right.shape[-1]), np.float32)
    for i in range(left.shape[-2]):
        out += left[..., i, :, None] * right[..., i, None, :]
    return out
