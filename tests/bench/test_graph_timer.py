"""CUDA graphs as a clock; needs a GPU."""

from __future__ import annotations

import pytest
import torch

from leapgen.bench.timing import GraphTimer, Timing, ceilings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_graph_replays_are_timed() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    timer = GraphTimer(device)
    small, large = (torch.ones(n << 20, device=device) for n in (64, 256))
    prepared: list[int] = []
    times = []
    for x in (small, large):
        samples = timer.sample(lambda: prepared.append(1), lambda x=x: [x.mul_(1.0)] * 4, 5)  # type: ignore[misc]
        assert len(samples) == 5
        times.append(Timing.of(samples).median)
    assert 2 < times[1] / times[0] < 8
    assert len(prepared) == 2 * (2 + 2 + 5)  # warming up, queueing, samples
    top = ceilings(timer, device, 3)
    assert top.read > 1e11
    assert top.in_place > 1e11
