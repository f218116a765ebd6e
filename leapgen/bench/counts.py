"""Counted bytes, for all rows and heads of a launch: each byte once, the least that must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leapgen.schedule import traffic
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan


@dataclass(frozen=True)
class Bytes:
    """Of one launch, or the mean of many."""

    read: float
    write: float

    @property
    def total(self) -> float:
        """Both."""
        return self.read + self.write


def token(plan: Plan, shape: Shape, rows: int, fused: bool = False) -> Bytes:
    """Mean of a token, its share of the window's flush included where there are windows.

    fused   the step closes windows itself
    """
    if fused:
        each = [kernel(plan, shape, "step", c, rows, fused=True) for c in range(shape.P)]
        return _mean(each)
    step = step_mean(plan, shape, rows)
    if plan.buffer("cursor") is None:
        return step
    full = kernel(plan, shape, "flush", shape.P, rows)
    idle, share = _scaled(traffic.idle_flush(plan, shape), shape, rows), 1 / shape.P
    return Bytes(
        step.read + full.read * share + idle.read * (1 - share),
        step.write + full.write * share + idle.write * (1 - share),
    )


def step_mean(plan: Plan, shape: Shape, rows: int, fused: bool = False) -> Bytes:
    """Mean of a step over the cursors of a window that stays open."""
    return _mean(
        [
            kernel(plan, shape, "step", cursor, rows, phase=-shape.P, fused=fused)
            for cursor in range(shape.P)
        ]
    )


def operation(plan: Plan, shape: Shape, name: str, rows: int) -> Bytes:
    """A call at mixed cursors; a flush at full windows."""
    if name == "flush":
        return kernel(plan, shape, name, shape.P, rows)
    return _mean([kernel(plan, shape, name, cursor, rows) for cursor in range(shape.P)])


def kernel(
    plan: Plan,
    shape: Shape,
    name: str,
    cursor: int,
    rows: int,
    *,
    phase: int = 0,
    fused: bool = False,
) -> Bytes:
    """One launch with all rows at one cursor and phase; `fused` as in `traffic.launch`."""
    found = traffic.launch(plan, shape, name, cursor, rows, phase=phase, fused=fused)
    return _scaled(found, shape, rows)


def others_token(plan: Plan, shape: Shape, rows: int, element: int) -> Bytes:
    """A token of a kernel that reads and writes the whole state, in elements of so many bytes; its
    inputs and outputs are those of the plan."""
    step = traffic.launch(plan, shape, "step", 0, rows)
    scale, state = rows * shape.HV, shape.K * shape.V * element
    return Bytes(
        (step.total("input").distinct + state) * scale,
        (step.total("output").distinct + state) * scale,
    )


def _mean(each: Sequence[Bytes]) -> Bytes:
    return Bytes(sum(b.read for b in each) / len(each), sum(b.write for b in each) / len(each))


def _scaled(launch: traffic.Traffic, shape: Shape, rows: int) -> Bytes:
    scale = rows * shape.HV
    return Bytes(*(launch.total(way=way).distinct * scale for way in ("read", "write")))
