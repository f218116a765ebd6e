"""A laboratory for one module: poisoned pools of slices, exact states beside them, guards.

Default geometry, made to break the habits under which faults hide: 3 rows, 2 key and 4 value
heads, a window of 16, a pool of 5 slots whose tensors are slices at odd multiples of 16 bytes of
larger buffers. Gaps and fresh slots hold NaN (0x7F for codes).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leapgen
from leapgen import paths
from leapgen.formats.table import format_named
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads, stream
from leapgen.oracle.tolerance import bounds, distance
from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.spec import loader
from leapgen.spec.model import Spec

H, HV, SLOTS, WINDOW = 2, 4, 5, 16
PLAIN, MATRIX = (16, 24), (64, 32)  # (K, V): the plain payload order, and the matrix path's
GAP_CODE = 0x7F
STREAM = 256  # tokens drawn at once


@dataclass(frozen=True)
class Recipe:
    """A module: spec, picks, state options, arch.

    GPU archs run in the emulator, unless torch's default device is a GPU.
    """

    spec: str
    picks: tuple[tuple[str, str], ...] = ()
    format: str | None = None
    records: str | None = None
    arch: str = "cpu"

    def load_spec(self) -> Spec:
        options = {"format": self.format, "records": self.records}
        return loader.load(paths.spec_file(self.spec), dict(self.picks), options)


@functools.cache
def module_of(recipe: Recipe, cache: Path, device: str) -> Module:
    """Generated now, whatever generated/ holds."""
    module = leapgen.load(
        recipe.spec,
        arch=recipe.arch,
        format=recipe.format,
        records=recipe.records or "fp16",
        cache=cache,
        **dict(recipe.picks),
    )
    emulated = recipe.arch != "cpu" and device == "cpu"
    return module.with_backend(Emulator()) if emulated else module


def ints(*values: int) -> torch.Tensor:
    """A slot list."""
    return torch.tensor(values, dtype=torch.int32)


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or 0x7F bytes where there is none."""
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return tensor.fill_(GAP_CODE if tensor.itemsize == 1 else -(2**30))


def slices(module: Module, slots: int, **sizes: int) -> dict[str, torch.Tensor]:
    """Poisoned pool tensors, each a slice of a poisoned buffer."""
    out = {}
    for odd, (name, tensor) in enumerate(module.allocate(slots, **sizes).items()):
        unit = 16 // tensor.itemsize
        stride = tensor.stride(0) + (2 * odd + 1) * unit
        base = poison(torch.empty(slots * stride + 6 * unit, dtype=tensor.dtype))
        out[name] = base.as_strided(tensor.shape, (stride, *tensor.stride()[1:]), 3 * unit)
    return out


def shaken(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The same values at odd strides and offsets, as a view of a larger buffer of NaN."""
    order = list(np.random.default_rng(seed).permutation(tensor.dim()))
    room = [n + 1 for n in tensor.shape]
    base = poison(torch.empty([room[axis] for axis in order] + [3], dtype=tensor.dtype))
    back = base[..., 1].permute(*(order.index(axis) for axis in range(tensor.dim())))
    view = back[tuple(slice(1, None) for _ in tensor.shape)]
    return view.copy_(tensor)


def numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().to(torch.float64).cpu().numpy()


@dataclass
class Lab:
    """One module at one shape, and the exact state of every slot.

    state     float64 [slots, HV, K, V]
    roundings boundary roundings of each slot since its exact state was last set
    anchored  the test goes on from the module's states where windows close: records alone differ
    """

    recipe: Recipe
    cache: Path
    K: int = PLAIN[0]
    V: int = PLAIN[1]
    window: int = WINDOW
    compensators: int | None = None
    slots: int = SLOTS
    seed: int = 0
    heads: tuple[int, int] = (H, HV)
    drafts: int = 0
    anchored: bool = False
    state: np.ndarray[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.spec = self.recipe.load_spec()
        device = torch.get_default_device().type
        self.module = module_of(self.recipe, self.cache, device)
        self.window = self.window if self.module.windowed else 1
        self.H, self.HV = self.heads
        sizes = {"H": self.H, "HV": self.HV, "K": self.K, "V": self.V, "window": self.window}
        if self.compensators is not None:
            sizes["compensators"] = self.compensators
        if self.drafts:
            sizes["drafts"] = self.drafts
        self.sizes = sizes
        self.pool: Pool = self.module.pool(slices(self.module, self.slots, **sizes), **sizes)
        self.state = np.zeros((self.slots, self.HV, self.K, self.V))
        self.roundings = np.zeros(self.slots, int)
        self.oracle = Stepwise(self.spec)
        self.rng = np.random.default_rng(self.seed)
        self.drawn = 0
        self._tokens: dict[str, np.ndarray[Any, Any]] = {}

    # -- inputs

    def inputs(self, rows: int) -> dict[str, torch.Tensor]:
        """The next token of every row: values like a trained layer's, in the declared types."""
        if not self._tokens or self.drawn + rows > STREAM:
            heads = Heads(self.H, self.HV, self.K, self.V)
            constants = {n: x for n, x in self._tokens.items() if self.spec.input(n).constant}
            self._tokens = {**stream(self.spec, STREAM, heads, self.seed), **constants}
            self.drawn = 0
        first, self.drawn = self.drawn, self.drawn + rows
        return {
            x.name: torch.tensor(
                self._tokens[x.name] if x.constant else self._tokens[x.name][first : first + rows],
                dtype=DTYPES[x.dtype],
            )
            for x in self.spec.inputs
        }

    def ordered(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """In the module's order."""
        return [inputs[x.name] for x in self.spec.inputs]

    # -- calls, each checked against the exact states

    def reset(self, *slots: int) -> None:
        with self.untouched(slots):
            self.module.reset(self.pool, ints(*slots), check=True)
        self.state[list(slots)] = 0
        self.roundings[list(slots)] = 0

    def load(self, slots: Sequence[int], states: np.ndarray[Any, Any], position: int = 0) -> None:
        """States [rows, HV, K, V]."""
        given = torch.tensor(states, dtype=torch.float32).mT
        with self.untouched(slots):
            self.module.load_state(self.pool, ints(*slots), shaken(given, 1), position, check=True)
        self.state[list(slots)] = numpy(given.mT)
        self.roundings[list(slots)] = 1

    def random_states(self, rows: int) -> np.ndarray[Any, Any]:
        """States with a decaying spectrum."""
        left = self.rng.standard_normal((rows, self.HV, self.K, 6))
        right = self.rng.standard_normal((rows, self.HV, 6, self.V))
        return (left * 0.5 ** np.arange(6)) @ right

    def step(
        self,
        slots: Sequence[int],
        inputs: Mapping[str, torch.Tensor] | None = None,
        first_slot: int = 0,
        odd: bool = False,
    ) -> torch.Tensor:
        """One token of every row, compared with the exact step; `odd` gives odd input strides."""
        given = self.inputs(len(slots)) if inputs is None else dict(inputs)
        sent = {n: shaken(x, i) for i, (n, x) in enumerate(given.items())} if odd else given
        active = [row for row, slot in enumerate(slots) if slot >= first_slot]
        touched = [slots[row] for row in active]
        before = self.cursors(touched)
        with self.untouched(touched):
            out = self.module.step(
                self.pool, ints(*slots), *self.ordered(sent), first_slot=first_slot
            )
        assert not self.pool.status.any()
        idle = [row for row in range(len(slots)) if row not in active]
        assert not out[idle].any()
        exact = {
            n: numpy(x) if self.spec.input(n).constant else numpy(x)[active]
            for n, x in given.items()
        }
        after, want, _ = self.oracle.step(self.state[touched], exact)
        self.state[touched] = after
        limit = self.bounds(touched)["output"]
        gap = distance(numpy(out[active]), want)
        assert (gap <= limit[:, None]).all(), f"output off by {gap.max():.2e} > {limit.min():.2e}"
        self.roundings[touched] += (self.cursors(touched) <= before).all(axis=1)
        if not self.module.windowed:
            self._anchor(touched)
        return out

    def _anchor(self, slots: Sequence[int]) -> None:
        """Goes on from the module's own states, once they are seen to be right: what every token
        rounds is no random walk."""
        self.check_state(*slots)
        found = self.module.materialize(self.pool, ints(*slots), layout="KV")
        self.state[list(slots)], self.roundings[list(slots)] = numpy(found), 0

    def cursors(self, slots: Sequence[int]) -> np.ndarray[Any, Any]:
        """[slots, HV]; zero where every step stores the state."""
        if not self.module.windowed:
            return np.zeros((len(slots), self.HV), int)
        return self.pool.cursor[list(slots)].cpu().numpy()

    def check_state(self, *slots: int) -> None:
        """The materialized states of slots against the exact ones; changes nothing."""
        with self.untouched(()):
            found = self.module.materialize(self.pool, ints(*slots), layout="KV", check=True)
        gap = distance(numpy(found), self.state[list(slots)], axes=2)
        limit = self.bounds(slots)["state"]
        assert (gap <= limit[:, None]).all(), f"state off by {gap.max():.2e} > {limit.min():.2e}"

    def bounds(self, slots: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        """What leapgen's one function of tolerances allows, row by row."""
        found = [
            bounds(
                format_named(self.spec.state.format),
                self.spec.state.records,
                self.window + self.drafts,  # records that a commit may leave to one flush
                self.spec.output.dtype,
                K=self.K,
                compensators=self.pool.shape.R,
                substeps=len(self.spec.substeps),
                flushes=int(self.roundings[slot]),
                # From reset or anchored slots on, where only records are rounded.
                walked=self.drafts > 0 or self.anchored,
            )
            for slot in slots
        ]
        return {name: np.array([b[name] for b in found]) for name in ("output", "state")}

    # -- guards

    def bytes_of(self, slots: Sequence[int]) -> dict[str, torch.Tensor]:
        """Every byte of the pool's buffers, gaps included; those of these slots are zero."""
        out = {}
        for name, tensor in self.pool.items():
            raw = (
                torch.empty(0, dtype=torch.uint8, device=tensor.device)
                .set_(tensor.untyped_storage())
                .clone()
            )
            view = raw.view(tensor.dtype)
            view = view.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            view[list(slots)] = 0
            out[name] = raw
        return out

    def untouched(self, slots: Sequence[int]) -> _Untouched:
        """Asserts that a block of code changes no byte outside these slots."""
        return _Untouched(self, list(slots))


@dataclass
class _Untouched:
    lab: Lab
    slots: list[int]

    def __enter__(self) -> None:
        self.before = self.lab.bytes_of(self.slots)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for name, after in self.lab.bytes_of(self.slots).items():
                assert torch.equal(after, self.before[name]), f"{name} changed outside {self.slots}"
