"""Two modules of one spec, on different archs, from one canonical export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leapgen.oracle import tolerance
from leapgen.report import operations
from leapgen.report.ledger import Ledger
from leapgen.report.subjects import Subject
from leapgen.report.trial import Ints, Trial
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

ROUNDS = 40
PREPARATION = 8
"""Steps before the export, so that cursors are mixed."""


def agreement(
    spec: Spec,
    sides: Sequence[tuple[Plan, Subject]],
    shape: Shape,
    ledger: Ledger,
    seed: int,
) -> None:
    """The first side prepares a pool; both go on from its export with the same operations.

    Between the sides stand the roundings of both: bounds count each flush since the export twice.
    """
    first, second = (Trial(spec, p, s, shape, Ledger(), seed=seed) for p, s in sides)
    operations.load(first)
    for _ in range(PREPARATION):
        operations.step(first)
    data = first.module.export(first.pool, first.ids(first.all))
    second.module.import_(second.pool, second.ids(second.all), data)
    before, after = first.export(), second.export()
    wrong = sum(int(after[n].tobytes() != values.tobytes()) for n, values in before.items())
    ledger.equal("import of the other's export is exact", wrong, len(before))
    pair = _Pair(first, second, ledger, np.zeros((first.slots, shape.HV), int))
    for draw in first.rng.random(ROUNDS):
        operation = pair.step if draw < 0.85 else pair.copy if draw < 0.93 else pair.load
        operation(first.rng.permutation(first.slots)[: operations.ROWS])
    pair.states()


@dataclass
class _Pair:
    """Both sides, and the flushes of each (slot, head) since the export, of both together."""

    first: Trial
    second: Trial
    ledger: Ledger
    since: Ints

    def step(self, slots: Ints) -> None:
        inputs = self.first.inputs(len(slots))
        outs = [
            t.run_step(t.pool, slots, inputs).float().cpu().numpy()
            for t in (self.first, self.second)
        ]
        error = tolerance.distance(outs[1], outs[0])
        dtype = self.first.spec.output.dtype
        self.ledger.compare("outputs agree", error, self._bound("output", dtype)[slots])
        if not self.first.plan.windowed:
            self.since[slots] += 2
            return
        cursors = [t.export()["cursor"] for t in (self.first, self.second)]
        wrong = int((cursors[0] != cursors[1]).sum())
        self.ledger.equal("cursors agree", wrong, cursors[0].size)
        self.since[slots] += 2 * (cursors[0][slots] == 0)

    def copy(self, slots: Ints) -> None:
        for t in (self.first, self.second):
            t.module.copy(t.pool, t.ids(slots[:1]), t.ids(slots[1:2]))
        self.since[slots[1]] = self.since[slots[0]]

    def load(self, slots: Ints) -> None:
        s = self.first.shape
        values = self.first.rng.standard_normal((1, s.HV, s.V, s.K))
        state = torch.from_numpy(values.astype(np.float32))
        for t in (self.first, self.second):
            device = t.subject.device
            t.module.load_state(t.pool, t.ids(slots[:1]), state.to(device), 5)
        self.since[slots[0]] = 2

    def states(self) -> None:
        states = [t.states(t.all) for t in (self.first, self.second)]
        error = tolerance.distance(states[1], states[0], axes=2)
        self.ledger.compare("states agree", error, self._bound("state", "fp32"))

    def _bound(self, what: str, dtype: str) -> npt.NDArray[Any]:
        most = int(self.since.max())
        table = [self.first.bounds(dtype, f, walked=True)[what] for f in range(most + 1)]
        return np.asarray(table)[self.since]
