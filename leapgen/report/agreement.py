"""Two modules of one spec, on different archs, from one canonical export."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leapgen.oracle import tolerance
from leapgen.report import operations
from leapgen.report.ledger import Ledger
from leapgen.report.subjects import Subject
from leapgen.report.trial import Trial
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

ROUNDS = 40


def agreement(
    spec: Spec,
    sides: Sequence[tuple[Plan, Subject]],
    shape: Shape,
    ledger: Ledger,
    seed: int,
) -> None:
    """The first side prepares a pool; both go on from its export with the same operations.

    Between the sides stand the roundings of both, so that bounds count the flushes since the
    export twice.
    """
    first, second = (
        Trial(spec, plan, subject, shape, Ledger(), seed=seed) for plan, subject in sides
    )
    for _ in range(shape.P // 2):
        operations.load(first) if _ == 0 else operations.step(first)
    ids = first.ids(first.all)
    data = first.module.export(first.pool, ids)
    second.module.import_(second.pool, second.ids(second.all), data)
    same = second.export()
    wrong = sum(int(same[n].tobytes() != values.tobytes()) for n, values in first.export().items())
    ledger.equal("import of the other's export is exact", wrong, len(same))
    since = np.zeros((first.slots, shape.HV), int)
    for _ in range(ROUNDS):
        slots = first.rng.permutation(first.slots)[: operations.ROWS]
        inputs = first.inputs(operations.ROWS)
        outs = [t.run_step(t.pool, slots, inputs).float().cpu().numpy() for t in (first, second)]
        bound = [
            [2 * first.bounds(spec.output.dtype, int(f))["output"] for f in row]
            for row in since[slots]
        ]
        ledger.compare("outputs agree", tolerance.distance(outs[1], outs[0]), bound)
        cursors = [t.export()["cursor"] for t in (first, second)]
        ledger.equal("cursors agree", int((cursors[0] != cursors[1]).sum()), cursors[0].size)
        since[slots] += 2 * (cursors[0][slots] == 0)
    states = [t.states(t.all) for t in (first, second)]
    bound = [[2 * first.bounds("fp32", int(f))["state"] for f in row] for row in since]
    ledger.compare("states agree", tolerance.distance(states[1], states[0], axes=2), bound)
