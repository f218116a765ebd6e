"""Clocks: how long a body of launches takes, on a GPU by graph replay, elsewhere by the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Protocol

import torch

Work = Callable[[], object]


class Timer(Protocol):
    """Times a body. Tests bring their own."""

    def sample(self, prepare: Work, body: Work, repeats: int) -> list[float]:
        """Microseconds of `body`, once a repeat. `prepare` runs before each of them, untimed; the
        body runs once or twice more beforehand, so that nothing is compiled while it is timed."""


@dataclass(frozen=True)
class Timing:
    """Samples in microseconds: their median, and the least and largest."""

    median: float
    least: float
    largest: float

    @staticmethod
    def of(samples: Sequence[float], calls: int = 1) -> Timing:
        """Per call, where one sample holds `calls` of them."""
        each = [s / calls for s in samples]
        return Timing(median(each), min(each), max(each))


class WallTimer:
    """The host's clock; for targets that run where they are called."""

    def sample(self, prepare: Work, body: Work, repeats: int) -> list[float]:
        """See Timer."""
        prepare()
        body()
        found = []
        for _ in range(repeats):
            prepare()
            start = time.perf_counter()
            body()
            found.append((time.perf_counter() - start) * 1e6)
        return found


COOLING = 4
"""Least number of reads of the scratch buffer before a replay."""
FASTEST = 8e12
"""Bytes per second that no present device reads faster."""


@dataclass
class GraphTimer:
    """CUDA graphs: the body is captured once and replayed between two events.

    Before each replay a buffer larger than the cache is read, so that the cache holds neither the
    body's data nor anything that must be written back; and as often as it takes to keep the GPU
    busy until the host has queued the whole replay, so that its time is not measured.
    """

    device: torch.device
    _scratch: torch.Tensor = field(init=False, repr=False)
    _stream: torch.cuda.Stream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        self._scratch = torch.ones(cache // 2, dtype=torch.float32, device=self.device)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def sample(self, prepare: Work, body: Work, repeats: int) -> list[float]:
        """See Timer."""
        graph = self._capture(prepare, body)
        queued = self._queue(prepare, graph)
        reads = max(COOLING, ceil(2 * queued * FASTEST / self._scratch.nbytes))
        start, stop = _event(), _event()
        found = []
        for _ in range(repeats):
            prepare()
            for _ in range(reads):
                self._scratch.sum()
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize(self.device)
            found.append(start.elapsed_time(stop) * 1e3)
        return found

    def _queue(self, prepare: Work, graph: torch.cuda.CUDAGraph) -> float:
        """Seconds that the host needs to queue a replay; the first one uploads the graph."""
        taken = 0.0
        for _ in range(2):
            prepare()
            torch.cuda.synchronize(self.device)
            begin = time.perf_counter()
            graph.replay()
            taken = time.perf_counter() - begin
            torch.cuda.synchronize(self.device)
        return taken

    def _capture(self, prepare: Work, body: Work) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), self._stream
        prepare()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(stream):
            body()
            stream.synchronize()
            prepare()
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                body()
            finally:
                graph.capture_end()
        torch.cuda.synchronize(self.device)
        return graph


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def timer_for(device: torch.device) -> Timer:
    """The clock of a device."""
    return GraphTimer(device) if device.type == "cuda" else WallTimer()


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second that simple kernels reach in the same run.

    read       a sum that only reads
    in_place   a multiplication in place, bytes read plus bytes written
    bytes      size of the buffer
    """

    read: float
    in_place: float
    bytes: int


def ceilings(timer: Timer, device: torch.device, repeats: int = 20) -> Ceilings:
    """Measured on a buffer many times larger than any cache (4 GiB on a GPU)."""
    size = 4 << 30 if device.type == "cuda" else 64 << 20
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)

    def nothing() -> None:
        pass

    read = Timing.of(timer.sample(nothing, lambda: buffer.sum(), repeats))
    both = Timing.of(timer.sample(nothing, lambda: buffer.mul_(1.0000001), repeats))
    return Ceilings(size / read.median * 1e6, 2 * size / both.median * 1e6, size)
