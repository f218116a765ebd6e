"""The measurements: tokens, their parts, places in a window, and the rarer calls."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from leapgen.bench import counts
from leapgen.bench.ours import Ours, View
from leapgen.bench.results import Operation, Position
from leapgen.bench.timing import Timer, Timing
from leapgen.integrations.peers import Case, Session

LAUNCHES = 16
"""Least number of launches in one sample: what a replay costs by itself is shared by them."""
OPERATIONS = ("flush", "load_state", "copy", "materialize", "reset")


def tokens(timer: Timer, session: Session, case: Case, repeats: int) -> Timing:
    """Consecutive tokens with all that belongs to them, sets in turn, from the start states."""

    def body() -> None:
        for token in range(case.tokens):
            for chosen in range(case.sets):
                session.step(chosen, token)

    return Timing.of(timer.sample(session.restore, body, repeats), case.tokens * case.sets)


def step_alone(timer: Timer, ours: Ours, repeats: int) -> Timing | None:
    """The step at the tokens' cursors, without any flush; None where every token is a flush."""
    if not ours.windowed:
        return None
    case = ours.case
    views = [ours.mixed(token, phase=-ours.window) for token in range(case.tokens)]

    def body() -> None:
        with ours.contender.backend.without("flush"):
            for token, view in enumerate(views):
                for chosen in range(case.sets):
                    ours.step(chosen, token, view.pool)

    samples = timer.sample(lambda: _reset(views), body, repeats)
    return Timing.of(samples, case.tokens * case.sets)


def flush_alone(timer: Timer, ours: Ours, repeats: int) -> Timing | None:
    """The flush kernel at the tokens' cursors: each row is due once a window."""
    if not ours.windowed or "flush" not in ours.module.kernels:
        return None
    case = ours.case
    views = [ours.mixed(token, after=1) for token in range(case.tokens)]

    def prepare() -> None:
        ours.restore()
        _reset(views)

    def body() -> None:
        for view in views:
            for chosen in range(case.sets):
                ours.flush(chosen, view.pool)

    return Timing.of(timer.sample(prepare, body, repeats), case.tokens * case.sets)


def positions(timer: Timer, ours: Ours, repeats: int) -> tuple[Position, ...]:
    """Mean and worst token over the places in a window, for rows at mixed and at equal cursors."""
    if not ours.windowed:
        return ()
    found = []
    for at, view in (("mixed", ours.mixed), ("equal", ours.equal)):
        times = [
            _place(timer, ours, [view(place) for _ in range(_copies(ours.case))], repeats)
            for place in range(ours.window)
        ]
        found.append(Position(at, sum(times) / len(times), max(times)))
    return tuple(found)


def _copies(case: Case) -> int:
    return -(-LAUNCHES // case.sets)


def _place(timer: Timer, ours: Ours, views: list[View], repeats: int) -> float:
    """Median of one token at the views' cursors; its flushes included."""

    def prepare() -> None:
        ours.restore()
        _reset(views)

    def body() -> None:
        for token, view in enumerate(views):
            for chosen in range(ours.case.sets):
                ours.step(chosen, token, view.pool)

    calls = len(views) * ours.case.sets
    return Timing.of(timer.sample(prepare, body, repeats), calls).median


def _reset(views: Iterable[View]) -> None:
    for view in views:
        view.reset()


def operations(timer: Timer, ours: Ours, repeats: int) -> list[Operation]:
    """The rarer calls, over all rows of every set in turn; the flush is one of full windows."""
    case, module, pool = ours.case, ours.module, ours.pool
    scratch = torch.empty_like(case.states)
    full = [ours.full() for _ in range(_copies(case))] if ours.windowed else []

    def prepare() -> None:
        ours.restore()
        _reset(full)

    def run(name: str, chosen: int, turn: int) -> None:
        slots = ours.slots[chosen]
        if name == "flush":
            ours.flush(chosen, full[turn].pool)
        elif name == "load_state":
            module.load_state(pool, slots, case.states[chosen], ours.positions)
        elif name == "copy":
            module.copy(pool, slots, ours.targets[chosen])
        elif name == "materialize":
            module.materialize(pool, slots, out=scratch[chosen])
        else:
            module.reset(pool, slots)

    def time(name: str) -> Timing:
        def body() -> None:
            for turn in range(_copies(case)):
                for chosen in range(case.sets):
                    run(name, chosen, turn)

        samples = timer.sample(prepare, body, repeats)
        return Timing.of(samples, _copies(case) * case.sets)

    s, contender = case.shape, ours.contender
    shape = contender.shape(s.H, s.HV)
    found = [
        Operation(
            contender.spec.name,
            contender.name,
            name,
            case.rows,
            s.H,
            s.HV,
            time(name),
            counts.operation(contender.plan, shape, name, case.rows).total,
        )
        for name in OPERATIONS
        if name in module.kernels and (name != "flush" or full)
    ]
    ours.restore()
    return found
