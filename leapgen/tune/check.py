"""Whether a candidate computes what it should, on scratch slots.

Two checks. `against_oracle` holds a config against the NumPy model of the window and the float64
interpreter, over random operations on a pool full of poison; it takes seconds, so it is for the
default config and for winners, with few heads. `against_default` holds any candidate against the
default config on the device, at the tuned heads, with rows at mixed cursors, an idle row, and a
second launch of one row.
"""

from __future__ import annotations

import numpy as np
import torch

from leapgen.oracle import tolerance
from leapgen.report.ledger import Ledger
from leapgen.report.operations import random_operations, step
from leapgen.report.subjects import Subject
from leapgen.report.trial import Trial
from leapgen.runtime.host import Module, Pool, Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec
from leapgen.tune.bench import Unfit
from leapgen.tune.workload import Inputs

ROUNDS = 12
SLOTS = 7
ROWS = (5, 3, -1, 0, 6)
"""Slots of the rows; -1 is idle, and slots 1, 2 and 4 are bystanders."""


def against_oracle(spec: Spec, plan: Plan, subject: Subject, shape: Shape, seed: int = 0) -> float:
    """Largest error over its bound. One key head and its value heads: heads do not meet, and the
    model is slow. Errors: Unfit, naming the check that failed."""
    few = plan.shape(shape.K, shape.V, 1, shape.HV // shape.H, shape.P, shape.R)
    trial = Trial(spec, plan, subject, few, Ledger(), seed=seed)
    random_operations(trial, ROUNDS)
    for _ in range(3 * shape.P):
        if _windowed(subject.module) and not trial.flushed:
            step(trial)
    if _windowed(subject.module):
        trial.ledger.at_least("windows that closed, of a head", trial.flushed, 1)
    for check in trial.ledger.checks.values():
        if not check.ok:
            raise Unfit(f"{check.name}: {check.measured:.3g}, bound {check.bound:.3g}")
    shares = (c.measured / c.bound for c in trial.ledger.checks.values() if c.bound and not c.least)
    return max(shares, default=0.0)


def against_default(
    spec: Spec, plan: Plan, default: Module, candidate: Module, given: Inputs, shape: Shape
) -> float:
    """Largest difference over its bound, over all heads. Errors: Unfit."""
    device = str(given.tensors[0].device)
    modules = (default, candidate)
    pools = [_loaded(module, shape, device) for module in modules]
    worst, flushed = 0.0, 0
    for turn in range(shape.P + 3):
        slots = torch.tensor(ROWS if turn % 3 else ROWS[:1], dtype=torch.int32, device=device)
        sent = given.rows(len(slots), turn)
        outs = [
            m.step(pool, slots, *sent, check=True) for m, pool in zip(modules, pools, strict=True)
        ]
        if _windowed(default):
            flushed += int((pools[0]["cursor"][slots[slots >= 0].long()] == 0).sum())
        active = (slots >= 0).cpu().numpy()
        a, b = (out.float().cpu().numpy() for out in outs)
        if b[~active].any():
            raise Unfit("an idle row gave an output that is not zero")
        bound = _bound(spec, plan, shape, spec.output.dtype, "output")
        worst = max(worst, _share("output", b[active], a[active], bound))
    if _windowed(default) and not flushed:
        raise Unfit("no window closed during the check")
    _same(pools)
    rows = torch.tensor([s for s in ROWS if s >= 0], dtype=torch.int32, device=device)
    a, b = (default.materialize(pool, rows).cpu().numpy() for pool in pools)
    bound = _bound(spec, plan, shape, "fp32", "state")
    return max(worst, _share("state", b, a, bound, axes=2))


def _windowed(module: Module) -> bool:
    return "flush" in module.kernels


def _loaded(module: Module, shape: Shape, device: str) -> Pool:
    """A pool with equal states of a decaying spectrum, whose windows close at different tokens."""
    s = shape
    pool = module.allocate(SLOTS, s.H, s.HV, s.K, s.V, s.P, s.R, device)
    rng = torch.Generator().manual_seed(1)
    left = torch.randn(SLOTS, s.HV, s.V, 6, generator=rng) * 0.5 ** torch.arange(6)
    state = (left @ torch.randn(SLOTS, s.HV, 6, s.K, generator=rng)).to(device)
    slots = torch.arange(SLOTS, dtype=torch.int32, device=device)
    module.load_state(pool, slots, state, slots * 3)
    return pool


def _bound(spec: Spec, plan: Plan, shape: Shape, output: str, what: str) -> float:
    """Twice what one side may be off after two flushes: both sides are."""
    return (
        2
        * tolerance.bounds(
            plan.format,
            plan.records,
            shape.P,
            output,
            K=shape.K,
            compensators=shape.R,
            substeps=plan.records_per_token,
            flushes=2,
            walked=True,
            tighter=spec.tolerances,
        )[what]
    )


def _share(
    what: str, found: np.ndarray, expected: np.ndarray, bound: float, axes: int = 1
) -> float:
    share = float(np.max(tolerance.distance(found, expected, axes))) / bound
    if not share <= 1:
        raise Unfit(f"{what} differs from the default config's by {share:.3g} times its bound")
    return share


def _same(pools: list[Pool]) -> None:
    """Cursors, phases, and all that bystanders hold."""
    for name in {"cursor", "phase"} & set(pools[0]):
        if not torch.equal(pools[0][name], pools[1][name]):
            raise Unfit(f"{name} differs from the default config's")
    others = [s for s in range(SLOTS) if s not in ROWS]
    for name, tensor in pools[0].items():
        a, b = (t[others].contiguous().view(torch.uint8) for t in (tensor, pools[1][name]))
        if not torch.equal(a, b):
            raise Unfit(f"{name} of a slot that no row named has changed")
    if any(bool(pool.status.any()) for pool in pools):
        raise Unfit("the status word is set")
