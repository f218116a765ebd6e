"""Timers of whole tokens: CUDA graphs on a GPU, the wall clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from leapgen.runtime.host import CompileError, Module, key_of
from leapgen.tune.bench import Configs, Lost, Unfit
from leapgen.tune.workload import Workload

LAP = 3000.0
"""Microseconds that a lap takes at least: events resolve half a microsecond."""
LAPS = 64
"""Replays of a lap at most."""


@dataclass
class WorkloadTimer:
    """Times a module at configs over a workload. Every config is warmed up before its first lap,
    and its results are seen to be finite after it."""

    work: Workload
    _ready: dict[str, Callable[[], float]] = field(default_factory=dict)

    def lap(self, configs: Configs) -> float:
        """Microseconds of one token. Errors: Unfit."""
        key = key_of(configs=configs)
        if key not in self._ready:
            module = self.work.module.with_configs(**configs)
            try:
                self._ready[key] = self._prepare(module)
            except CompileError as error:
                raise Unfit(str(error)) from error
            except RuntimeError as error:  # a launch that the driver refuses
                if not survives(self.work.device):
                    raise Lost(configs, error) from error
                raise Unfit(f"does not run: {error}") from error
            if not self.work.sound():
                raise Unfit("results are not finite, or a row was refused")
        return self._ready[key]()

    def close(self) -> None:
        """Lets go of the pool, and of all that refers to it."""
        self._ready.clear()
        del self.work

    def _prepare(self, module: Module) -> Callable[[], float]:
        calls = self.work.run(module)
        calls()

        def lap() -> float:
            start = time.perf_counter()
            calls()
            return (time.perf_counter() - start) * 1e6 / self.work.calls

        return lap


@dataclass
class GraphTimer(WorkloadTimer):
    """All calls of a workload back to back in one CUDA graph: no host time between them."""

    def _prepare(self, module: Module) -> Callable[[], float]:
        calls = self.work.run(module)
        with torch.cuda.device(self.work.device):
            graph = self._captured(calls)
            replays = self._replays(graph)

        def lap() -> float:
            return self._timed(graph, replays) / replays / self.work.calls

        return lap

    def _captured(self, calls: Callable[[], None]) -> Any:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels compile and load before the capture
            calls()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        return graph

    def _replays(self, graph: Any) -> int:
        once = max(1.0, self._timed(graph, 1))
        return max(1, min(LAPS, round(LAP / once)))

    def _timed(self, graph: Any, replays: int) -> float:
        """Microseconds of some replays, behind one that is not timed."""
        event: Callable[..., Any] = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


def survives(device: str) -> bool:
    """Whether the device still works: an illegal access spoils it for the rest of the process."""
    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True
