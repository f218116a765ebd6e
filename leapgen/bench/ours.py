"""One of our modules at work on a case: whole tokens, and its parts alone.

Parts are launched through views of the pool: the same tensors with other cursors and phases. A
view's cursors stand where the part is to be measured, so nothing has to be set between launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from leapgen.bench.contender import Contender
from leapgen.integrations.peers import Case
from leapgen.runtime.host import Pool
from leapgen.runtime.host.orders import Orders

Cursors = Callable[[torch.Tensor], torch.Tensor]
"""Row numbers -> cursors."""


@dataclass(frozen=True)
class View:
    """A pool whose cursors and phases are its own, and what they are set to."""

    pool: Pool
    cursors: torch.Tensor
    phase: int

    def reset(self) -> None:
        """Sets both, as launches change them."""
        self.pool["cursor"].copy_(self.cursors)
        self.pool["phase"].fill_(self.phase)


class Ours:
    """A session of integrations.peers, with more to ask for.

    spare   twice the slots, as targets of copies
    """

    def __init__(self, contender: Contender, case: Case, *, spare: bool = False) -> None:
        self.contender, self.case = contender, case
        self.module, shape = contender.module, case.shape
        self.sizes = contender.sizes(shape.H, shape.HV)
        self.window = self.module.shape(**self.sizes).P
        count, device = case.sets * case.rows, case.states.device
        places = torch.arange(count, dtype=torch.int32, device=device)
        self.slots = tuple(places.reshape(case.sets, case.rows))
        self.targets = tuple((places + count).reshape(case.sets, case.rows))
        self.pool = self.module.allocate(count * (1 + spare), device=device, **self.sizes)
        self.row_numbers = torch.arange(self.pool.slots, device=device) % case.rows
        self.positions = (places % case.rows % self.window)[: case.rows].clone()
        dtype = torch.bfloat16 if self.module.output == "bf16" else torch.float32
        size = (case.rows, shape.HV, shape.V)
        self.out = torch.empty(size, dtype=dtype, device=device)
        self._start: dict[str, torch.Tensor] = {}
        # Sets stand for layers, whose pools see the same rows again: each has its own orders.
        have = self.pool.orders
        self._orders: list[Orders | None] = [have and have.serial() for _ in self.slots]
        self._settle()

    def _settle(self) -> None:
        """Start states at mixed phases; then two windows, so that cursors are mixed too and every
        record has been written. Without records, the start states as they are."""
        for slots, states in zip(self.slots, self.case.states, strict=True):
            self.module.load_state(self.pool, slots, states, self.positions)
        for token in range(2 * self.window if self.contender.records else 0):
            for chosen in range(self.case.sets):
                self.step(chosen, token)
        self._start = {name: tensor.clone() for name, tensor in self.pool.items()}

    @property
    def windowed(self) -> bool:
        """Whether there is more than one place in a window."""
        return self.contender.windowed

    def restore(self) -> None:
        """The pool as it was settled."""
        for name, tensor in self._start.items():
            self.pool[name].copy_(tensor)

    def natural(self) -> None:
        """From now on, launches take rows as they come."""
        self._orders = [None for _ in self.slots]

    def shuffle(self, seed: int) -> None:
        """Rows in random places, as in an engine: before, those that are due stand evenly apart."""
        generator = torch.Generator().manual_seed(seed)
        self.slots = tuple(
            slots[torch.randperm(len(slots), generator=generator).to(slots.device)].contiguous()
            for slots in self.slots
        )

    def inputs(self, token: int) -> Sequence[torch.Tensor]:
        """A token's tensors, in the module's order."""
        values = self.case.inputs[token % self.case.tokens]
        return [values[x.name] for x in self.module.inputs]

    def step(self, chosen: int, token: int, pool: Pool | None = None) -> torch.Tensor:
        """The module's own call; on a view if one is given."""
        where = self.pool if pool is None else pool
        if where is self.pool:
            where.orders = self._orders[chosen]
        return self.module.step(where, self.slots[chosen], *self.inputs(token), out=self.out)

    def flush(self, chosen: int, pool: Pool) -> None:
        """The flush alone."""
        self.module.flush(pool, self.slots[chosen])

    def view(self, cursors: Cursors, phase: int = 0) -> View:
        """The pool with cursors by row and one phase. A phase of -window keeps windows open."""
        wanted = cursors(self.row_numbers).to(torch.int32)
        start = wanted[:, None].expand(-1, self.pool["cursor"].shape[1]).contiguous()
        own = {name: _twin(self.pool[name]) for name in ("cursor", "phase")}
        tensors = {name: own.get(name, tensor) for name, tensor in self.pool.items()}
        shape = self.pool.shape
        pool = self.module.pool(
            tensors,
            status=self.pool.status,
            window=shape.P,
            compensators=shape.R,
            **self.sizes,
        )
        pool.orders = None  # its rows do not move on from launch to launch
        made = View(pool, start, phase)
        made.reset()
        return made

    def mixed(self, token: int, phase: int = 0, after: int = 0) -> View:
        """Rows at different cursors, as they stand some tokens on; `after`: added to each."""
        return self.view(lambda rows: (rows + token) % self.window + after, phase)

    def full(self) -> View:
        """Every window full: all rows are due for a flush."""
        return self.view(lambda rows: torch.full_like(rows, self.window))

    def equal(self, cursor: int) -> View:
        """All rows at one cursor."""
        return self.view(lambda rows: torch.full_like(rows, cursor))


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor of the same sizes and strides."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
