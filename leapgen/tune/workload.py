"""Decoding as it is: a scratch pool of random slots, rows at mixed cursors, inputs that rotate.

Slots come in sets of `rows`; call i takes set i mod sets and other inputs than the call before, so
that a small batch does not run out of the last-level cache. Windows of the rows are spread evenly:
in each call 1/P of the rows close theirs, or, with fewer rows, in each round over all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from leapgen.oracle.streams import Heads, stream
from leapgen.runtime.host import DTYPES, Module, Pool, Shape
from leapgen.spec.model import Spec

CALLS = 16
"""Calls in a row that are timed, at least: a window's."""
SETS = 128
INPUT_SETS = 16
TOKENS = 64
"""Tokens of the stream that inputs are taken from."""


@dataclass(frozen=True)
class Inputs:
    """A stream of a spec on a device: tensor by tensor [tokens, heads, axis], constants without
    tokens. One serves all numbers of rows."""

    spec: Spec
    tensors: tuple[torch.Tensor, ...]

    def rows(self, rows: int, turn: int) -> list[torch.Tensor]:
        """Inputs of one call, contiguous."""
        device = self.tensors[0].device
        places = (torch.arange(rows, device=device) * 37 + turn * 11) % TOKENS
        return [
            tensor if x.constant else tensor[places].contiguous()
            for x, tensor in zip(self.spec.inputs, self.tensors, strict=True)
        ]


def inputs(spec: Spec, shape: Shape, device: str, seed: int = 0) -> Inputs:
    """The stream for a shape."""
    drawn = stream(spec, TOKENS, Heads(shape.H, shape.HV, shape.K, shape.V), seed)
    tensors = (torch.from_numpy(drawn[x.name]).to(DTYPES[x.dtype]).to(device) for x in spec.inputs)
    return Inputs(spec, tuple(tensors))


@dataclass
class Workload:
    """Calls of one module at one shape and number of rows, on a pool of its own.

    cache   bytes of the last-level cache; the pool holds about twice that, if so many sets do
    """

    module: Module
    given: Inputs
    shape: Shape
    rows: int
    cache: int = 0
    device: str = "cpu"
    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        s = self.shape
        sizes = {"H": s.H, "HV": s.HV, "K": s.K, "V": s.V, "window": s.P, "compensators": s.R}
        held = self.rows * self.module.bytes_per_slot(**sizes)
        self.sets = 1
        while self.sets * held < 2 * self.cache and self.sets < SETS:
            self.sets *= 2
        count = self.sets * self.rows
        self.pool = self.module.allocate(count, device=self.device, **sizes)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        self.slots = order.to(torch.int32).to(self.device).view(self.sets, self.rows)
        self.inputs = [self.given.rows(self.rows, t) for t in range(min(INPUT_SETS, self.calls))]
        sizes_out = (self.rows, s.HV, s.V)
        self.out = torch.empty(sizes_out, dtype=DTYPES[self.module.output], device=self.device)
        # Sets stand for layers, whose pools see the same rows again: each has its own orders.
        have = self.pool.orders
        self._orders = [have and have.serial() for _ in range(self.sets)]
        self._spread()

    @property
    def calls(self) -> int:
        """Calls after which every set has been visited equally often."""
        return max(CALLS, self.sets)

    def call(self, module: Module, turn: int) -> None:
        """One token of a set, by the module or by it at other configs."""
        given, chosen = self.inputs[turn % len(self.inputs)], turn % self.sets
        self.pool.orders = self._orders[chosen]
        module.step(self.pool, self.slots[chosen], *given, out=self.out)

    def run(self, module: Module) -> Callable[[], None]:
        """All calls once."""

        def calls() -> None:
            for turn in range(self.calls):
                self.call(module, turn)

        return calls

    def sound(self) -> bool:
        """Whether the last output is finite and no row was refused."""
        return bool(torch.isfinite(self.out.float()).all()) and not bool(self.pool.status.any())

    def _spread(self) -> None:
        """Phases 0..P-1 in turn; after P tokens a set, so stand the cursors, and the phases at 0.
        One more window fills states and compensators."""
        if "phase" not in self.pool:  # no windows
            self.run(self.module)()
            return
        index = torch.arange(self.sets * self.rows, dtype=torch.int32, device=self.device)
        phase = (index % self.shape.P)[:, None].expand(-1, self.shape.HV)
        self.pool["phase"][self.slots.flatten().long()] = phase
        for turn in range(2 * self.shape.P * self.sets):
            self.call(self.module, turn)


def cursors(pool: Pool, slots: torch.Tensor) -> Sequence[int]:
    """Cursor of the first head of each row."""
    found: list[int] = pool["cursor"][slots.long(), 0].tolist()
    return found
