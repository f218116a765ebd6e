"""How a run's time is spent: shape by shape, kernel by kernel, and on races."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from leapgen.tune.bench import Bench

RACING = 0.3
"""Part of a shape's time that is kept for races, so that a short run gives records of a few
candidates rather than none of many."""
STEPS = 0.6
"""Part of the rest that steps may take; what they leave is for flushes."""
COMPILING = 0.5
"""Part of a kernel's time in which the space is compiled; in the rest, finalists are built and
checked, the best predicted first."""
FIRST = 2
"""How many times another shape's part the first one gets: later ones try its survivors only."""


@dataclass
class Times:
    """Seconds since the run began, and deadlines in them. Where times are predictions, nothing but
    compilation takes time: it may take all.

    until  when the races of the present shape end
    ready  when its checks end
    """

    bench: Bench
    budget: float
    until: float = field(default=0.0, init=False)
    ready: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._start = self.bench.clock()

    def spent(self) -> float:
        """Seconds since the run began."""
        return self.bench.clock() - self._start

    def past(self, deadline: float) -> bool:
        """Whether a deadline of what runs on a device is over."""
        return not self.bench.predicted and self.spent() >= deadline

    def shape(self, first: bool, rest: int) -> None:
        """Begins a shape. rest: those with something to do, this one included."""
        now, predicted = self.spent(), self.bench.predicted
        part = FIRST / (FIRST + rest - 1) if first else 1 / rest
        seconds = max(0.0, self.budget - now) * (1 if predicted else part)
        self.until = now + seconds
        self.ready = now + seconds * (1 if predicted else 1 - RACING)

    def kernels(self) -> Iterator[tuple[str, float]]:
        """The shape's kernels, each with the time by which its finalists are built."""
        begun, last = self.spent(), self.bench.kernels[-1]
        for kernel in self.bench.kernels:
            yield kernel, self.ready if kernel == last else begun + STEPS * (self.ready - begun)

    def compiled(self, end: float) -> float:
        """When compilation of a kernel ends, of which finalists are built by `end`."""
        now = self.spent()
        return now + (end - now) * (1 if self.bench.predicted else COMPILING)
