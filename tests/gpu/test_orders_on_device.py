"""Orders of rows on a GPU: launches that overlap on one pool, outside and inside of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from lab import WINDOW

import leapgen
from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.runtime.host.orders import multiprocessors

H, HV, TOKENS = 16, 32, 8
TURNS = 6 * WINDOW

Step = Callable[[int, int], None]


class Halves:
    """A pool whose slots are stepped as two batches that share none, each on a stream of its own,
    and one that is stepped in natural order, call by call."""

    def __init__(self, arch: str) -> None:
        self.module: Module = leapgen.load("gdn", arch=arch)
        shape = self.module.shape(H=H, HV=HV)
        blocks = self.module.config("step", shape)["min_blocks"]
        rows = 3 * blocks * multiprocessors(torch.empty(0).device) // HV
        self.pools = [self.module.allocate(2 * rows, H=H, HV=HV) for _ in range(2)]
        self.pools[0].orders = None
        every = torch.randperm(2 * rows).int()
        self.slots = every.view(2, rows).unbind()
        state = torch.randn(2 * rows, HV, shape.V, shape.K)
        position = torch.randint(0, WINDOW, (2 * rows,), dtype=torch.int32)
        for pool in self.pools:
            self.module.load_state(pool, every, state, position)
        self.given = [[self._inputs(rows) for _ in range(TOKENS)] for _ in range(2)]
        self.out = torch.empty(2, rows, HV, shape.V, dtype=DTYPES[self.module.output])
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def _inputs(self, rows: int) -> list[torch.Tensor]:
        shape = self.pools[0].shape
        return [torch.randn(x.sizes(rows, shape)).to(DTYPES[x.dtype]) for x in self.module.inputs]

    def step(self, pool: Pool, half: int, turn: int) -> None:
        """One token of one batch, on the current stream."""
        given = self.given[half][turn % TOKENS]
        self.module.step(pool, self.slots[half], *given, out=self.out[half])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Both streams begin at once, and have ended afterwards."""
        torch.cuda.synchronize()
        for stream in self.streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
        yield
        torch.cuda.synchronize()

    def check(self) -> None:
        """Nothing differs."""
        plain, ordered = self.pools
        for name in plain:
            same = plain[name].contiguous().view(torch.uint8), ordered[name].contiguous()
            assert torch.equal(same[0], same[1].view(torch.uint8)), name


@pytest.fixture
def halves(arch: str) -> Halves:
    """Both pools have made the first turns already, one call behind the other."""
    made = Halves(arch)
    for turn in range(TOKENS):
        for half in range(2):
            for pool in made.pools:
                made.step(pool, half, turn)
    made.check()
    return made


def test_two_streams(halves: Halves) -> None:
    plain, ordered = halves.pools
    with halves.apart():
        for turn in range(TURNS):
            for half, stream in enumerate(halves.streams):
                with torch.cuda.stream(stream):
                    halves.step(ordered, half, turn)
    for turn in range(TURNS):
        for half in range(2):
            halves.step(plain, half, turn)
    halves.check()
    assert ordered.orders
    assert len(ordered.orders._eager) == 3


def test_two_graphs(halves: Halves) -> None:
    plain, ordered = halves.pools
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for half, graph in enumerate(graphs):
        with torch.cuda.graph(graph):
            for turn in range(TOKENS):
                halves.step(ordered, half, turn)
    with halves.apart():
        for _ in range(TURNS // TOKENS):
            for graph, stream in zip(graphs, halves.streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
    for turn in range(TURNS):
        for half in range(2):
            halves.step(plain, half, turn)
    halves.check()
    assert ordered.orders
    assert len(ordered.orders._captured) == 2
    assert all(order.any() for order in ordered.orders._captured.values())
