"""Modules as operators of torch: one set a kernel family, through `torch.library`.

`operators(module)` registers, once a process, for a family (a spec with its picks and format)

    leapgen::<family>_step(pool tensors!, status!, slots, inputs, out!, sizes, ...) -> ()
    leapgen::<family>_load_state, _materialize, _reset

with every mutated argument declared, so that `torch.compile(fullgraph=True)` and CUDA graphs take
them, and a Meta implementation that checks sizes and does nothing. `define` and `impl` are used
and not `custom_op`, whose wrappers cost several times the launch.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leapgen.runtime.bound import BoundStep
from leapgen.runtime.host import DTYPES, STATE_AXES, ArgumentError, Module, Pool, Shape
from leapgen.runtime.host.errors import refuse
from leapgen.runtime.host.orders import Orders

NAMESPACE = "leapgen"
KEYS = ("CPU", "CUDA")
KEPT = 256
"""Bound steps that are kept; the oldest goes first."""
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_LOCK = threading.RLock()
_FAMILIES: dict[str, Family] = {}
_SIZES = tuple(Shape.__dataclass_fields__)


def family_name(module: Module) -> str:
    """Start of the names of a module's operators: its name, and eight digits of the spec with its
    format, so that two recipes of one name can live in one process."""
    words = re.sub(r"\W", "_", module.name)
    return f"{words}_{(module.spec or module.digest)[:8]}"


@dataclass(frozen=True)
class _Kept:
    """A bound step and the pool tensors that it was bound to."""

    step: BoundStep
    sizes: tuple[int, ...]
    tensors: tuple[weakref.ref[torch.Tensor], ...]

    def holds(self, pool: Sequence[torch.Tensor], sizes: Sequence[int]) -> bool:
        """Whether they are those of a call."""
        same = all(known() is tensor for known, tensor in zip(self.tensors, pool, strict=True))
        return same and self.sizes == tuple(sizes)


class Family:
    """The operators of one family and the modules that run them: `variants[i]` runs calls with
    `variant=i`; other archs and other configs of one spec are variants."""

    def __init__(self, module: Module) -> None:
        self.name = family_name(module)
        self.buffers = tuple(b.name for b in module.buffers)
        self.inputs = tuple(i.name for i in module.inputs)
        self.variants: list[Module] = []
        self._bound: dict[tuple[Any, ...], _Kept] = {}
        self._orders: dict[int, Orders | None] = {}
        slots, first = "Tensor slots", "int first_slot, int variant"
        given = ", ".join(f"Tensor in_{name}" for name in self.inputs)
        state = "Tensor state, Tensor position, bool v_first"
        self._define("step", f"{slots}, {given}, Tensor(out!) out", first, self._step)
        self._define("load_state", f"{slots}, {state}", first, self._load_state)
        self._define("reset", slots, first, self._reset)
        self._define(
            "materialize", f"{slots}, Tensor(out!) out, bool v_first", first, self._materialize
        )

    def _define(self, name: str, middle: str, end: str, run: Callable[..., None]) -> None:
        pool = ", ".join(f"Tensor(p{i}!) pool_{n}" for i, n in enumerate(self.buffers))
        full = f"{self.name}_{name}"
        schema = f"{full}({pool}, Tensor(s!) status, {middle}, int[] sizes, {end}) -> ()"
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        for key, implementation in {**dict.fromkeys(KEYS, run), "Meta": self._meta}.items():
            _LIBRARY.impl(full, implementation, key)  # type: ignore[no-untyped-call]

    def variant(self, module: Module) -> int:
        """The module's number; a new one is added."""
        for number, known in enumerate(self.variants):
            if known is module:
                return number
        if tuple(b.name for b in module.buffers) != self.buffers:
            raise refuse("module", f"buffers {self.buffers}", module.buffers)
        self.variants.append(module)
        return len(self.variants) - 1

    # -- what the operators do

    def _meta(self, *arguments: Any) -> None:
        """Nothing is allocated, and results are arguments: only their number of rows is checked."""
        slots = arguments[len(self.buffers) + 1]
        if slots.dim() != 1:
            raise refuse("slots", "an int32 tensor [rows]", list(slots.shape))

    def _step(self, *arguments: Any) -> None:
        count = len(self.buffers) + 1
        pool, (*tensors, sizes, first, variant) = arguments[:count], arguments[count:]
        slots, *inputs, out = tensors
        key = (id(pool[0]), len(slots), first, variant)
        found = self._bound.get(key)
        if found is not None and found.holds(pool, sizes):
            found.step.step(slots, *inputs, out)
            return
        module = self.variants[variant]
        # Other tensor objects on the same memory: what is kept here must not keep a pool alive.
        alias = [tensor.detach() for tensor in pool]
        bound = self._pool(alias, sizes, module)
        bound.orders = self._orders.get(id(pool[0]))
        made = BoundStep(module, bound, slots, inputs, out, first)
        if len(self._bound) >= KEPT:
            del self._bound[next(iter(self._bound))]
        gone = weakref.ref(pool[0], lambda _: self._bound.pop(key, None))
        rest = tuple(weakref.ref(tensor) for tensor in pool[1:])
        self._bound[key] = _Kept(made, tuple(sizes), (gone, *rest))
        made.run()

    def keep_orders(self, pool: Pool) -> None:
        """Steps on the pool's tensors have its orders of rows, as long as there are these tensors.
        They are allocated now: memory that a step takes would belong to the graph that torch makes
        of the step."""
        if pool.orders:
            pool.orders.allocate()
        tensor = next(iter(pool.values()))
        if id(tensor) not in self._orders:
            weakref.finalize(tensor, self._orders.pop, id(tensor), None)
        self._orders[id(tensor)] = pool.orders

    def _load_state(self, *arguments: Any) -> None:
        pool, slots, (state, position, v_first, first), module = self._unpack(arguments)
        layout = "VK" if v_first else "KV"
        module.load_state(pool, slots, state, position, layout=layout, first_slot=first)

    def _materialize(self, *arguments: Any) -> None:
        pool, slots, (out, v_first, first), module = self._unpack(arguments)
        layout = "VK" if v_first else "KV"
        module.materialize(pool, slots, layout=layout, out=out, first_slot=first)

    def _reset(self, *arguments: Any) -> None:
        pool, slots, (first,), module = self._unpack(arguments)
        module.reset(pool, slots, first_slot=first)

    def _unpack(
        self, arguments: Sequence[Any]
    ) -> tuple[Pool, torch.Tensor, tuple[Any, ...], Module]:
        count = len(self.buffers) + 1
        slots, *middle, sizes, first, variant = arguments[count:]
        module = self.variants[variant]
        pool = self._pool(arguments[:count], sizes, module)
        return pool, slots, (*middle, first), module

    def _pool(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], module: Module) -> Pool:
        """The pool over an operator's tensors, checked."""
        shape = dict(zip(_SIZES, sizes, strict=True))
        shape["window"], shape["compensators"] = shape.pop("P"), shape.pop("R")
        shape["drafts"] = shape.pop("D")
        named = dict(zip(self.buffers, tensors, strict=False))
        return module.pool(named, status=tensors[-1], **shape)


class Operators:
    """A module's calls on one pool, as operators; usable inside `torch.compile`.

    Calls are as those of `Module`, without `check`; the results' tensors are new ones unless given.
    """

    def __init__(self, module: Module, pool: Pool) -> None:
        if not isinstance(pool, Pool):
            raise refuse("pool", "a Pool", type(pool).__name__)
        if pool.shape.D:
            raise refuse("pool", "one without drafts", f"drafts={pool.shape.D}")
        module.flush(pool, torch.empty(0, dtype=torch.int32, device=pool.device))  # it fits
        with _LOCK:
            name = family_name(module)
            if name not in _FAMILIES:
                _FAMILIES[name] = Family(module)
            self.family = _FAMILIES[name]
            self.variant = self.family.variant(module)
            self.family.keep_orders(pool)
        self.tensors = [*pool.values(), pool.status]
        self.sizes = list(vars(pool.shape).values())
        self.shape = pool.shape
        self.output = DTYPES[module.output]
        calls = {}
        for word in ("step", "load_state", "materialize", "reset"):
            calls[word] = getattr(getattr(torch.ops, NAMESPACE), f"{name}_{word}").default
        self.calls = calls
        self._step = calls["step"]

    def step(
        self,
        slots: torch.Tensor,
        *inputs: torch.Tensor,
        out: torch.Tensor | None = None,
        first_slot: int = 0,
    ) -> torch.Tensor:
        """See `Module.step`: [rows, HV, V]."""
        if out is None:
            sizes = (slots.shape[0], self.shape.HV, self.shape.V)
            out = torch.empty(sizes, dtype=self.output, device=slots.device)
        self._step(*self.tensors, slots, *inputs, out, self.sizes, first_slot, self.variant)
        return out

    def materialize(
        self,
        slots: torch.Tensor,
        *,
        layout: str = "VK",
        out: torch.Tensor | None = None,
        first_slot: int = 0,
    ) -> torch.Tensor:
        """See `Module.materialize`: FP32 [rows, HV, V, K], or [rows, HV, K, V] for "KV"."""
        v_first = _v_first(layout)
        if out is None:
            axes = (self.shape.V, self.shape.K) if v_first else (self.shape.K, self.shape.V)
            sizes = (slots.shape[0], self.shape.HV, *axes)
            out = torch.empty(sizes, dtype=torch.float32, device=slots.device)
        call = self.calls["materialize"]
        call(*self.tensors, slots, out, v_first, self.sizes, first_slot, self.variant)
        return out

    def load_state(
        self,
        slots: torch.Tensor,
        state: torch.Tensor,
        position: torch.Tensor,
        *,
        layout: str = "VK",
        first_slot: int = 0,
    ) -> None:
        """See `Module.load_state`; the position is an int32 tensor [rows]."""
        call, v_first = self.calls["load_state"], _v_first(layout)
        call(*self.tensors, slots, state, position, v_first, self.sizes, first_slot, self.variant)

    def reset(self, slots: torch.Tensor, *, first_slot: int = 0) -> None:
        """See `Module.reset`."""
        self.calls["reset"](*self.tensors, slots, self.sizes, first_slot, self.variant)


def _v_first(layout: str) -> bool:
    if layout not in STATE_AXES:
        raise ArgumentError(f"layout: expected VK or KV, found {layout}")
    return layout == "VK"


def operators(module: Module, pool: Pool) -> Operators:
    """The module's operators on a pool; those of its family are registered by the first call.

    Errors: ArgumentError for a pool that was made for another module, or for one with drafts.
    """
    return Operators(module, pool)
