"""A replay of a reasoning workload: requests of drawn lengths, admitted to rows as rows fall free.

Lengths are known to the scheduler, not to the device: no step waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from leapgen.bench.decoder import Decoder

MEDIAN, SIGMA, SHORTEST, LONGEST = 6000.0, 0.9, 200.0, 32768.0
"""Of a reasoning model's outputs, in tokens: log-normal, clipped."""


def lengths(count: int, tokens: int, seed: int = 0) -> tuple[list[int], float]:
    """Output lengths of `count` requests that add up to about `tokens`, and the factor by which
    they are shorter than drawn: all lengths by the same one, so their distribution is kept."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SIGMA, count)
    drawn = drawn.clip(SHORTEST, LONGEST)
    factor = tokens / drawn.sum()
    return [max(1, round(x)) for x in drawn * factor], float(factor)


@dataclass(frozen=True)
class Outcome:
    """Of one replay.

    rows      of the batch: how many requests run at once
    steady    tokens a second while requests wait, that is with full batches
    overall   tokens a second until the last one is done
    occupied  mean share of rows with a request, overall
    """

    rows: int
    requests: int
    tokens: int
    steps: int
    seconds: float
    steady: float
    overall: float
    occupied: float

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class _Queue:
    """Which row works on what, and for how long."""

    def __init__(self, rows: int, wanted: Sequence[int]) -> None:
        self.left = np.zeros(rows, dtype=np.int64)
        self.wanted = list(wanted)[::-1]

    def admit(self) -> np.ndarray[Any, Any]:
        """Rows that get a new request now."""
        free = np.flatnonzero(self.left == 0)[: len(self.wanted)]
        for row in free:
            self.left[row] = self.wanted.pop()
        return free

    @property
    def active(self) -> np.ndarray[Any, Any]:
        """Rows at work."""
        return self.left > 0

    def advance(self) -> int:
        """One token of every row at work; how many those are."""
        count = int(self.active.sum())
        self.left[self.active] -= 1
        return count


def replay(decoder: Decoder, wanted: Sequence[int], seconds: float = 1e9) -> Outcome:
    """Runs all requests; stops early after some seconds of waiting for them. The decoder has been
    captured. Prompts are not prefilled: a request starts from an empty state."""
    queue = _Queue(decoder.rows, wanted)
    numbers = np.arange(decoder.rows, dtype=np.int32)
    start, full, done, steps, waiting = time.perf_counter(), 0.0, 0, 0, 0
    shown = np.full(decoder.rows, -1, dtype=np.int32)
    while True:
        fresh = queue.admit()
        if fresh.size:
            rows = torch.from_numpy(fresh.astype(np.int32)).to(decoder.device)
            for held in decoder.held.values():
                decoder.arm.reset(held, rows)
        slots = np.where(queue.active, numbers, -1).astype(np.int32)
        if not queue.active.any():
            break
        if (slots != shown).any():
            decoder.slots.copy_(torch.from_numpy(slots))
            shown = slots
        decoder.run()
        done, steps = done + queue.advance(), steps + 1
        if queue.wanted:
            waiting = done
        elif not full:
            full = _now(decoder) - start
        if steps % 64 == 0 and _now(decoder) - start > seconds:
            break
    total = _now(decoder) - start
    steady = waiting / (full or total)
    finished = len(wanted) - len(queue.wanted) - int(queue.active.sum())
    return Outcome(
        decoder.rows,
        finished,
        done,
        steps,
        total,
        steady,
        done / total,
        done / (steps * decoder.rows),
    )


def _now(decoder: Decoder) -> float:
    if decoder.device.type == "cuda":
        torch.cuda.synchronize(decoder.device)
    return time.perf_counter()
