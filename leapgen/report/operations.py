"""Random operations on a trial: what a server does to a pool, in an order that nobody planned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from leapgen.oracle import tolerance
from leapgen.report.trial import Array, Ints, Trial
from leapgen.runtime.host import Pool

ROWS = 3
INACTIVE = -1


def step(trial: Trial) -> None:
    """One token for some slots, one row of which may be inactive."""
    slots = trial.rng.permutation(trial.slots)[:ROWS]
    if trial.rng.random() < 0.3:
        slots[trial.rng.integers(ROWS)] = INACTIVE
    live = slots >= 0
    active = slots[live]
    trial.home.poison_records(trial.module.buffers)
    before = trial.adopt()
    start = trial.model.state(active)
    twin = _twin(trial)
    inputs = trial.inputs(ROWS)
    out = trial.run_step(trial.pool, slots, inputs)
    expected, corrections = trial.model.step_with_corrections(slots, inputs)
    _compare_output(trial, slots, out, expected)
    after = trial.export()
    flushed = np.ones((len(active), trial.shape.HV), bool)
    if trial.plan.windowed:
        flushed = _compare_records(trial, active, before["cursor"], after, corrections[live])
    mine = {
        x.name: inputs[x.name] if x.constant else inputs[x.name][live] for x in trial.spec.inputs
    }
    truth, _, _ = trial.interpreter.step(start, mine)
    name = "step and flush" if trial.plan.windowed else "step"
    trial.check_state(name, active, truth, flushed, after, trial.interpreter.peak(start, mine))
    trial.follow(active, mine)
    trial.exact[active], o, _ = trial.interpreter.step(trial.exact[active], mine)
    found = tolerance.distance(out.float().cpu().numpy()[live], o)
    trial.ledger.compare("output against float64", found, trial.bound("output", active))
    trial.flushes[active] += flushed
    trial.flushed += int(flushed.sum())
    trial.anchor(active)
    trial.check_bystanders("step", active, before, after)
    _repeat(trial, twin, slots, inputs, out)


def _compare_output(trial: Trial, slots: Ints, out: torch.Tensor, expected: Array) -> None:
    found = out.float().cpu().numpy()
    live = slots >= 0
    bound = trial.bounds(trial.spec.output.dtype)["output"]
    error = tolerance.distance(found[live], expected[live])
    trial.ledger.compare("output in lockstep", error, bound)
    if not live.all():
        trial.ledger.compare("inactive rows give zero", np.abs(found[~live]), 0.0)


def _compare_records(
    trial: Trial, slots: Ints, cursor: Array, after: dict[str, Array], corrections: Array
) -> Array:
    """Cursors, phases and the new records; which (row, head) pairs were flushed."""
    model = trial.model.pool
    for name in ("cursor", "phase"):
        wrong = int((after[name][slots] != model[name][slots]).sum())
        trial.ledger.equal(f"{name} of every head", wrong, after[name][slots].size)
    flushed: Array = after["cursor"][slots] == 0
    n = trial.plan.records_per_token
    bound = trial.bounds("fp32")["correction"]
    floor = tolerance.SMALLEST.get(trial.plan.records, 0.0)
    for row, head in zip(*np.nonzero(~flushed), strict=True):
        first = int(cursor[slots[row], head]) * n
        found = after["record_u"][slots[row], head, first : first + n]
        wide = found.astype(np.float32) if found.dtype != np.uint16 else _bf16(found)
        error = tolerance.distance(wide, corrections[row, head], floor=floor)
        trial.ledger.compare("corrections in lockstep", error, bound)
    return flushed


def _bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _twin(trial: Trial) -> Pool | None:
    """Now and then, a second pool with the same content, for a repeated call."""
    if trial.rng.random() > 0.25:
        return None
    twin = trial.fresh_pool().pool
    trial.module.reset(twin, trial.ids(trial.all))
    trial.module.import_(
        twin, trial.ids(trial.all), trial.module.export(trial.pool, trial.ids(trial.all))
    )
    return twin


def _repeat(
    trial: Trial,
    twin: Pool | None,
    slots: Ints,
    inputs: dict[str, Array],
    out: torch.Tensor,
) -> None:
    """The same rows in another order, on the twin: not a bit may differ."""
    if twin is None:
        return
    order = np.roll(np.arange(len(slots)), 1)
    turned = {
        x.name: inputs[x.name] if x.constant else inputs[x.name][order] for x in trial.spec.inputs
    }
    again = trial.run_step(twin, slots[order], turned).cpu()
    wrong = int((again != out.cpu()[torch.from_numpy(order)]).sum())
    trial.ledger.equal("same bits in another row order", wrong, out.numel())


def load(trial: Trial) -> None:
    """Starts two slots from random states at random positions, over many magnitudes."""
    slots = trial.rng.permutation(trial.slots)[:2]
    s = trial.shape
    state = trial.rng.standard_normal((2, s.HV, s.K, s.V)) * 10.0 ** trial.rng.integers(-2, 2)
    state = state.astype(np.float32)
    position = trial.rng.integers(0, 1000, 2)
    before = trial.adopt()
    _load(trial, slots, state, position)
    after = trial.export()
    if trial.plan.windowed:
        phase = after["phase"][slots]
        wrong = int((phase != (position % s.P)[:, None]).sum())
        trial.ledger.equal("load_state sets the phase", wrong, phase.size)
    trial.check_state("load_state", slots, state, np.ones((2, s.HV), bool), after)
    trial.check_bystanders("load_state", slots, before, after)


def _load(trial: Trial, slots: Ints, state: Array, position: Ints) -> None:
    given = torch.from_numpy(np.ascontiguousarray(np.swapaxes(state, -1, -2)))
    where = torch.tensor(position, dtype=torch.int32)
    device = trial.subject.device
    trial.module.load_state(trial.pool, trial.ids(slots), given.to(device), where.to(device))
    trial.exact[slots], trial.scale[slots] = state, np.abs(state).max(axis=(-2, -1))
    trial.flushes[slots] = 1


def round_trip(trial: Trial) -> None:
    """A slot's state out and into another slot, as an engine moves requests; the phase goes on."""
    source, target = trial.rng.permutation(trial.slots)[:2]
    before = trial.adopt()
    state = trial.states(np.array([source]))
    position = np.zeros(1, int)
    if trial.plan.windowed:
        position = before["phase"][[source], 0] + before["cursor"][[source], 0]
    exact, flushes = trial.exact[source].copy(), trial.flushes[source].copy()
    scale = trial.scale[source].copy()
    _load(trial, np.array([target]), state, position)
    trial.exact[target], trial.flushes[target], trial.scale[target] = exact, flushes + 1, scale
    rounded = np.ones((1, trial.shape.HV), bool)
    targets, after = np.array([target]), trial.export()
    trial.check_state("materialize to load_state", targets, state, rounded, after)
    trial.check_bystanders("round trip", targets, before, after)


def copy(trial: Trial) -> None:
    """Duplicates a slot: what it exports is equal bit for bit."""
    source, target = trial.rng.permutation(trial.slots)[:2]
    before = trial.adopt()
    trial.module.copy(trial.pool, trial.ids(np.array([source])), trial.ids(np.array([target])))
    for kept in (trial.exact, trial.flushes, trial.scale):
        kept[target] = kept[source]
    after = trial.export()
    wrong = sum(int(after[n][source].tobytes() != after[n][target].tobytes()) for n in after)
    trial.ledger.equal("copy is exact", wrong, len(after))
    trial.check_bystanders("copy", np.array([target]), before, after)


def reset(trial: Trial) -> None:
    """Empties a slot."""
    slot = trial.rng.permutation(trial.slots)[:1]
    before = trial.adopt()
    trial.module.reset(trial.pool, trial.ids(slot))
    trial.exact[slot], trial.flushes[slot], trial.scale[slot] = 0, 0, 0
    trial.ledger.compare("reset: state of an empty slot", np.abs(trial.states(slot)), 0.0)
    trial.check_bystanders("reset", slot, before)


def move(trial: Trial) -> None:
    """Export and import into a pool full of poison, in which the trial goes on."""
    before = trial.export()
    data = trial.module.export(trial.pool, trial.ids(trial.all))
    trial.home = trial.fresh_pool()
    trial.module.reset(trial.pool, trial.ids(trial.all))
    trial.module.import_(trial.pool, trial.ids(trial.all), data)
    after = trial.export()
    wrong = sum(int(before[n].tobytes() != after[n].tobytes()) for n in before)
    trial.ledger.equal("export to import is exact", wrong, len(before))


def state(trial: Trial) -> None:
    """All states at their cursors, against the model and float64."""
    trial.home.poison_records(trial.module.buffers)
    before = trial.adopt()
    found = tolerance.distance(trial.states(trial.all), trial.model.state(trial.all), axes=2)
    trial.ledger.compare("state in lockstep", found, trial.bounds("fp32")["state"])
    trial.check_exact(trial.all)
    trial.check_bystanders("materialize", np.array([], int), before)


OPERATIONS: tuple[tuple[Callable[[Trial], None], float], ...] = (
    (step, 0.72),
    (state, 0.08),
    (load, 0.05),
    (round_trip, 0.05),
    (copy, 0.04),
    (reset, 0.02),
    (move, 0.04),
)
"""What happens, and how often."""


def random_operations(trial: Trial, rounds: int) -> None:
    """Each operation once, then `rounds` drawn at random, then a look at all states."""
    load(trial)
    for operation, _ in OPERATIONS:
        operation(trial)
    weights = np.array([w for _, w in OPERATIONS])
    for index in trial.rng.choice(len(OPERATIONS), rounds, p=weights / weights.sum()):
        OPERATIONS[index][0](trial)
    state(trial)
