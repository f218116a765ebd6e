"""Random calls on a pool with drafts, each checked: outputs and states against the float64
interpreter, counts against a model of the flush schedule, and what is stored against itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lab import Lab, ints, numpy, poison, shaken

from leapgen.oracle.drafts import Speculation
from leapgen.oracle.tolerance import distance

Array = np.ndarray[Any, Any]
STORED = ("payload", "scale", "compensator")
MODES = {
    "verify": 60,
    "step": 8,
    "commit": 12,
    "state": 8,
    "flush": 4,
    "copy": 4,
    "reset": 2,
    "load": 2,
}


def draft_inputs(lab: Lab, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """The next tokens [rows, tokens, ...] of every row."""
    drawn = lab.inputs(rows * tokens)
    return {
        x.name: drawn[x.name]
        if x.constant
        else drawn[x.name].reshape(rows, tokens, *drawn[x.name].shape[1:])
        for x in lab.spec.inputs
    }


def exact_inputs(
    lab: Lab, given: Mapping[str, torch.Tensor], rows: Sequence[int]
) -> dict[str, Array]:
    """The same in float64, some rows only."""
    return {
        n: numpy(x) if lab.spec.input(n).constant else numpy(x)[list(rows)]
        for n, x in given.items()
    }


def poison_beyond_drafts(lab: Lab) -> None:
    """NaN in every record that is neither committed nor pending."""
    for buffer in lab.module.buffers:
        if buffer.role == "record":
            tensor = lab.pool[buffer.name]
            each = tensor.shape[2] // (lab.window + lab.drafts)
            group = lab.HV // tensor.shape[1]
            used = (lab.pool.cursor + lab.pool.pending)[:, ::group, None] * each
            live = torch.arange(tensor.shape[2]) < used
            live = live.reshape(*live.shape, *[1] * (tensor.dim() - 3))
            tensor.copy_(torch.where(live, tensor, poison(torch.empty_like(tensor))))


@dataclass
class DraftLab:
    """A lab whose pool has drafts, and what every slot must hold.

    cursor, phase, pending   of each slot, by the contract alone
    flushes                  of each slot so far; `overshoots` of them folded more than a window
    worst                    largest relative error of an output so far, by number of drafts
    """

    lab: Lab
    seed: int
    exact: Speculation = field(init=False)
    worst: dict[int, float] = field(default_factory=dict)
    overshoots: int = 0
    rejected: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.exact = Speculation(self.lab.spec, self.lab.state)
        slots = self.lab.slots
        self.cursor, self.phase, self.pending, self.flushes = np.zeros((4, slots), int)
        self.lab.reset(*range(slots))

    # -- one call of each kind

    def act(self) -> None:
        """One random call on random slots, over stale records."""
        poison_beyond_drafts(self.lab)
        chances = np.array(list(MODES.values())) / sum(MODES.values())
        mode = str(self.rng.choice(list(MODES), p=chances))
        slots = [int(s) for s in self.rng.permutation(self.lab.slots)[: self.rng.integers(1, 5)]]
        before = self._stored()
        changed = getattr(self, mode)(slots) or []
        after = self._stored()
        for slot in set(range(self.lab.slots)) - set(changed):
            for name, tensor in after.items():
                assert torch.equal(tensor[slot], before[name][slot]), (mode, name, slot)
        for name in ("cursor", "phase", "pending"):
            want = getattr(self, name)[:, None]
            assert (numpy(self.lab.pool[name]) == want).all(), (mode, name)
        assert not self.lab.pool.status.any()

    def step(self, slots: list[int]) -> list[int]:
        for slot in slots:
            self.exact.pending.pop(slot, None)
        self.lab.step(slots, odd=bool(self.rng.integers(2)))
        self.pending[slots] = 0
        return self._advance(slots, np.ones(len(slots), int))

    def verify(self, slots: list[int]) -> list[int]:
        lab, rng = self.lab, self.rng
        rows = [*slots, -1]  # a row that is not active
        tokens = int(rng.integers(1, lab.drafts + 1))
        lengths = None if rng.integers(2) == 0 else rng.integers(0, tokens + 1, len(rows))
        accepted = None if rng.integers(8) == 0 else rng.integers(0, lab.drafts + 2, len(rows))
        given = draft_inputs(lab, len(rows), tokens)
        sent = {n: shaken(x, i) for i, (n, x) in enumerate(given.items())}
        with lab.untouched(slots):
            out = lab.module.verify(
                lab.pool,
                ints(*rows),
                *lab.ordered(sent),
                lengths=_ints(lengths),
                accepted=_ints(accepted),
            )
        kept = [None if x is None else x[:-1] for x in (lengths, accepted)]
        changed = self._commit(slots, kept[1] if kept[1] is not None else 0 * np.array(slots))
        inputs = exact_inputs(lab, given, range(len(slots)))
        want = self.exact.verify(np.array(slots), inputs, kept[0])
        self.pending[slots] = tokens if kept[0] is None else kept[0]
        found = numpy(out)
        beyond = np.arange(tokens) >= self.pending[slots][:, None]
        assert not found[-1].any()
        assert not found[:-1][beyond].any()
        gap = np.where(beyond[..., None], 0, distance(found[:-1], want))
        limit = lab.bounds(slots)["output"][:, None, None]
        assert (gap <= limit).all(), f"output off by {gap.max():.2e} > {limit.min():.2e}"
        for t in range(tokens):
            self.worst[t + 1] = max(self.worst.get(t + 1, 0.0), float(gap[:, t].max()))
        return changed

    def commit(self, slots: list[int]) -> list[int]:
        accepted = self.rng.integers(-1, self.lab.drafts + 2, len(slots))
        with self.lab.untouched(slots):
            self.lab.module.commit(self.lab.pool, ints(*slots), _given(accepted))
        return self._commit(slots, accepted)

    def state(self, slots: list[int]) -> None:
        """Pending drafts show nowhere in the state and survive its being read."""
        self.lab.check_state(*slots)

    def flush(self, slots: list[int]) -> None:
        """Nothing is due between calls."""
        self.lab.module.flush(self.lab.pool, ints(*slots), check=True)

    def copy(self, slots: list[int]) -> list[int]:
        lab, (source, *targets) = self.lab, slots
        for target in targets:
            with lab.untouched([target]):
                lab.module.copy(lab.pool, ints(source), ints(target), check=True)
            for kept in (lab.roundings, self.cursor, self.phase):
                kept[target] = kept[source]
            self.pending[target] = 0
            self.exact.copy(np.array([source]), np.array([target]))
            one, other = (lab.module.export(lab.pool, ints(s)) for s in (source, target))
            for name, values in one.items():
                same = name == "header" or torch.equal(_bits(values), _bits(other[name]))
                assert same, name
        return targets

    def reset(self, slots: list[int]) -> list[int]:
        self.lab.reset(*slots)
        return self._begin(slots, 0)

    def load(self, slots: list[int]) -> list[int]:
        position = int(self.rng.integers(0, 1000))
        self.lab.load(slots, self.lab.random_states(len(slots)), position)
        return self._begin(slots, position)

    # -- what must follow

    def _begin(self, slots: list[int], position: int) -> list[int]:
        self.cursor[slots] = self.pending[slots] = 0
        self.phase[slots] = position % self.lab.window
        for slot in slots:
            self.exact.pending.pop(slot, None)
        return slots

    def _commit(self, slots: list[int], accepted: Array) -> list[int]:
        kept = np.clip(accepted, 0, self.pending[slots])
        self.rejected += int((self.pending[slots] - kept).sum())
        self.exact.commit(np.array(slots), accepted)
        self.pending[slots] = 0
        changed = self._advance(slots, kept)
        self.lab.roundings[changed] += 1
        return changed

    def _advance(self, slots: list[int], tokens: Array) -> list[int]:
        """Moves cursors; the slots whose window closes."""
        self.cursor[slots] += tokens
        closed = [s for s in slots if self.cursor[s] + self.phase[s] >= self.lab.window]
        self.overshoots += sum(self.cursor[s] + self.phase[s] > self.lab.window for s in closed)
        self.cursor[closed] = self.phase[closed] = 0
        self.flushes[closed] += 1
        return closed

    def _stored(self) -> dict[str, torch.Tensor]:
        """Bits of all stored states."""
        return {
            b.name: _bits(self.lab.pool[b.name]).clone()
            for b in self.lab.module.buffers
            if b.role in STORED
        }

    def summary(self, rounds: int) -> str:
        """What a run did, for people."""
        errors = ", ".join(f"D={t} {e:.1e}" for t, e in sorted(self.worst.items()))
        return (
            f"\n{self.lab.recipe.spec} {self.lab.spec.state.format} {self.lab.recipe.arch}: "
            f"{rounds} rounds, seed {self.seed}, {self.flushes.sum()} windows closed, "
            f"{self.overshoots} overshoots, {self.rejected} drafts rejected; errors {errors}"
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Comparable even where there are NaN."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.contiguous().view(kinds[tensor.itemsize])


def _given(numbers: Array) -> torch.Tensor:
    return ints(*(int(n) for n in numbers))


def _ints(numbers: Array | None) -> torch.Tensor | None:
    return None if numbers is None else _given(numbers)
