"""A layer's state in a pool, passed through a model in place of its FP32 tensor."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from leapgen.runtime.bound import BoundStep
from leapgen.runtime.host import DTYPES, ArgumentError, Input, Module, Pool


def refused(name: str, expected: object, found: object) -> ArgumentError:
    """An argument's error in the words of the runtime's."""
    return ArgumentError(f"{name}: expected {expected}, found {found}")


class Held(ABC):
    """What a model's cache may hold in place of a state's tensor.

    inputs  of a step, in its order; H, HV: heads
    """

    inputs: Sequence[Input]
    H: int
    HV: int
    dtype = torch.float32

    def to(self, *_: object, **__: object) -> Self:
        """Itself: models convert what they take for a tensor."""
        return self

    @abstractmethod
    def step(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """One token a row; inputs [rows, heads, axis], of any float type. Returns [rows, HV, V]."""

    @abstractmethod
    def materialize(self) -> torch.Tensor:
        """FP32 [rows, HV, K, V], or [rows, HV, V, K] where the model has it so."""


@dataclass(eq=False)
class State(Held):
    """The state of one layer for all rows of a batch: what models hand from their cache to their
    kernels and back. They only store it, pass it on and call `.to`.

    layout    "KV" for states [rows, HV, K, V], "VK" for [rows, HV, V, K]
    slots     int32 [rows]; None before the first state arrives
    position  tokens so far; counted by the host, so not by replays of a CUDA graph: there it only
              decides at which phase a later `load` starts
    steps, flushes, loads  calls so far; a flush is of all rows, counted like the position
    """

    module: Module
    pool: Pool
    layout: str = "KV"
    slots: torch.Tensor | None = None
    position: int = 0
    steps: int = 0
    flushes: int = 0
    loads: int = 0
    _bound: BoundStep | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.inputs = self.module.inputs
        self.H, self.HV = self.pool.shape.H, self.pool.shape.HV

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.pool.device

    def load(self, slots: torch.Tensor, state: torch.Tensor) -> None:
        """Quantize FP32 states of `layout` at the present position. Errors: ArgumentError."""
        if not (isinstance(state, torch.Tensor) and state.shape[0] == slots.shape[0]):
            raise refused("state", f"a tensor of {slots.shape[0]} rows", getattr(state, "shape", 0))
        state = state.to(self.device, torch.float32)
        self.module.load_state(self.pool, slots, state, self.position, layout=self.layout)
        self.slots, self.loads = slots, self.loads + 1

    def materialize(self) -> torch.Tensor:
        """FP32, in `layout`; the pool stays as it is."""
        return self.module.materialize(self.pool, self.taken(), layout=self.layout)

    def step(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Held`; the module's types are taken by conversion."""
        slots, module, shape = self.taken(), self.module, self.pool.shape
        given = [x.to(DTYPES[i.dtype]) for i, x in zip(module.inputs, inputs, strict=True)]
        sizes = (slots.shape[0], shape.HV, shape.V)
        out = torch.empty(sizes, dtype=DTYPES[module.output], device=self.device)
        if self._bound is None or self._bound.rows != slots.shape[0]:
            self._bound = BoundStep(module, self.pool, slots, given, out)
            self._bound.run()
        else:
            self._bound.step(slots, *given, out)
        self.steps, self.position = self.steps + 1, self.position + 1
        # Without windows every step stores the state; no flush is a call of its own there.
        self.flushes += module.windowed and self.position % shape.P == 0
        return out

    def fork(self, slots: torch.Tensor | None) -> State:
        """The same bits in other slots, as many."""
        if self.slots is not None and slots is not None:
            self.module.copy(self.pool, self.slots, slots)
        return replace(self, slots=slots, _bound=None)

    def taken(self) -> torch.Tensor:
        """The slots. Errors: ArgumentError before any state arrived."""
        if self.slots is None:
            raise refused("state", "one that was loaded by a prefill", "an empty one")
        return self.slots

    def empty(self) -> None:
        """Reset the slots and forget them."""
        if self.slots is not None:
            self.module.reset(self.pool, self.slots)
        self.slots, self.position, self._bound = None, 0, None


class Slots:
    """Which of a number of slots are free; the same ones in all layers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))[::-1]

    @property
    def free(self) -> int:
        """How many."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Slots for a batch. Errors: ArgumentError if fewer are free."""
        if count > self.free:
            free = f"at most {self.free} free ones of {self.count}; release caches or enable more"
            raise refused("slots", free, f"a batch of {count}")
        return [self._free.pop() for _ in range(count)]

    def take_back(self, slots: list[int]) -> None:
        """Slots that are free again; empties the list."""
        self._free += slots
        slots.clear()


class Batch:
    """The slots of one cache: taken for its first batch, kept until released, or until nobody has
    the batch any more: a cache, or its layers alone."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._taken: list[int] = []
        self._rows: dict[torch.device, torch.Tensor] = {}
        weakref.finalize(self, slots.take_back, self._taken)

    def rows(self, count: int, device: torch.device) -> torch.Tensor:
        """int32 [count] on a device. Errors: ArgumentError for another number of rows than before,
        or too few free slots."""
        if not self._taken:
            self._taken += self._slots.take(count)
        if count != len(self._taken):
            raise refused("input_ids", f"{len(self._taken)} rows, as before", count)
        if device not in self._rows:
            self._rows[device] = torch.tensor(self._taken, dtype=torch.int32, device=device)
        return self._rows[device]

    def release(self) -> None:
        """All slots are free again."""
        self._slots.take_back(self._taken)
        self._rows = {}


def heads_of(value: torch.Tensor, spec: Input, held: Held) -> torch.Tensor:
    """Token 0 of [rows, 1, heads, ...] with the heads that a step wants: models may repeat key
    heads for each value head, and a view takes one of each."""
    heads = held.HV if spec.per == "value" else held.H
    repeated, rest = divmod(value.shape[2], heads)
    if value.shape[1] != 1 or rest:
        expected = f"one token and a multiple of {heads} heads"
        raise refused(spec.name, expected, list(value.shape))
    return value[:, 0, ::repeated]
