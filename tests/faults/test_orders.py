"""Orders of rows: whatever order a step takes its rows in, the bits are the same, and rows whose
window closes in the last part of a launch trade places with rows of the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, WINDOW, H, Recipe, ints, module_of

from leapgen.oracle.streams import Heads, stream
from leapgen.runtime.bound import BoundStep
from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import DTYPES, Pool, orders

K, V = MATRIX
SLOTS, ROWS, FRONT = 14, 12, 5
STREAM = 64
MODES = ("plain", "bound", "watched")


class Twins:
    """Two pools with the same content, stepped side by side: one in natural order.

    mode   "bound": the other's steps are bound ones; "watched": races and bounds are looked for
    """

    def __init__(self, spec: str, cache: Path, set_front: Callable[[int], None], mode: str) -> None:
        recipe = Recipe(spec, arch="sm90")
        module = module_of(recipe, cache, torch.get_default_device().type)
        self.module = module.with_backend(Emulator(checked=True)) if mode == "watched" else module
        self.set_front, self.bound = set_front, mode == "bound"
        sizes = {"H": H, "HV": HV, "K": K, "V": V, "window": WINDOW}
        assert self.module.config("step", self.module.shape(**sizes))["fused"]
        self.pools = [self.module.allocate(SLOTS, **sizes) for _ in range(2)]
        self.pools[1].orders = orders.Orders(ROWS, HV, self.pools[1].device)
        draw = torch.Generator().manual_seed(1)
        state = torch.randn(SLOTS, HV, V, K, generator=draw)
        position = torch.randint(0, WINDOW, (SLOTS,), generator=draw, dtype=torch.int32)
        for pool in self.pools:
            self.module.load_state(pool, ints(*range(SLOTS)), state, position)
        drawn = stream(recipe.load_spec(), STREAM, Heads(H, HV, K, V), 0)
        self.inputs = {
            x.name: torch.from_numpy(drawn[x.name]).to(DTYPES[x.dtype]) for x in self.module.inputs
        }
        self.token = 0

    def step(self, slots: torch.Tensor, front: int = FRONT) -> None:
        """One token in both; nothing may differ."""
        self.token += 1
        places = (self.token + 37 * torch.arange(len(slots))) % STREAM
        given = [
            self.inputs[x.name] if x.constant else self.inputs[x.name][places]
            for x in self.module.inputs
        ]
        self.set_front(0)
        natural = self.module.step(self.pools[0], slots, *given)
        self.set_front(front)
        ordered = torch.empty_like(natural)
        if self.bound:
            BoundStep(self.module, self.pools[1], slots, given, ordered).run()
        else:
            self.module.step(self.pools[1], slots, *given, out=ordered)
        assert torch.equal(natural, ordered)
        for name, tensor in self.pools[0].items():
            assert torch.equal(bits(tensor), bits(self.pools[1][name])), name
        assert torch.equal(self.pools[0].status, self.pools[1].status)

    def due(self, slots: torch.Tensor) -> np.ndarray:
        """Which rows the next step closes."""
        at = (self.pools[1]["cursor"] + self.pools[1]["phase"])[:, 0].numpy()
        found = slots.numpy()
        active = (found >= 0) & (found < SLOTS)
        return active & (at[np.where(active, found, 0)] + 1 == WINDOW)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def words_of(pool: Pool, rows: int) -> torch.Tensor:
    """Those of the blocks; all zero where no launch has had an order."""
    found = pool.orders and pool.orders._eager.get((0, rows))
    return torch.zeros(rows * HV, dtype=torch.int32) if found is None else found[: rows * HV]


def places(pool: Pool, rows: int) -> np.ndarray:
    """Place -> row of the next launch; each row trades with at most one."""
    words = words_of(pool, rows).reshape(rows, HV).numpy()
    assert len(np.unique(words & 3)) == 1
    found = np.arange(rows)[:, None] ^ words >> 2
    assert (found == found[:, :1]).all()
    found = found[:, 0]
    assert (found[found] == np.arange(rows)).all()
    return found


@pytest.fixture
def set_front(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the number of front rows of the launches that follow."""
    return lambda front: monkeypatch.setattr(orders, "front_rows", lambda rows, HV, held: front)


each_spec = pytest.mark.parametrize("spec", ["gdn", pytest.param("kda", marks=pytest.mark.slow)])
each_mode = pytest.mark.parametrize(
    "mode", [MODES[0], *(pytest.param(m, marks=pytest.mark.slow) for m in MODES[1:])]
)


@each_mode
@each_spec
def test_rows_that_are_due_come_early(
    spec: str, mode: str, cache: Path, set_front: Callable[[int], None]
) -> None:
    """With the same rows from launch to launch, rows of the back that are due stand in front as
    far as rows there can wait, and no other row has moved."""
    twins = Twins(spec, cache, set_front, mode)
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2))[:ROWS].int()
    moved = 0
    for launch in range(12):
        if launch > 2:  # the first has no order
            due, back = twins.due(slots), np.arange(ROWS) >= FRONT
            trading = min((due & back).sum(), (~due & ~back).sum())
            found = places(twins.pools[1], ROWS)
            away = found != np.arange(ROWS)
            assert away.sum() == 2 * trading
            assert due[away & back].all()
            assert not due[away & ~back].any()
            moved += trading
        twins.step(slots)
    assert moved


@pytest.mark.slow
@each_mode
@each_spec
def test_no_order_changes_a_bit(
    spec: str, mode: str, cache: Path, set_front: Callable[[int], None]
) -> None:
    """Batches that change, padding, slots out of range, slots that are loaded anew, another front,
    no front at all, and words that no launch has written."""
    twins = Twins(spec, cache, set_front, mode)
    draw = np.random.default_rng(3)
    for launch in range(5 * WINDOW):
        if launch % 7 == 0:
            slots = torch.from_numpy(draw.permutation(SLOTS)[:ROWS].astype(np.int32))
            slots[draw.integers(ROWS)], slots[draw.integers(ROWS)] = -1, SLOTS + 3
        if launch % 11 == 0:
            emptied = ints(int(draw.integers(SLOTS)))
            for pool in twins.pools:
                twins.module.reset(pool, emptied)
        rows = ROWS if launch % 5 else 7
        if launch % 13 == 12:
            pairs = draw.permutation(ROWS).reshape(-1, 2)
            found = np.empty(ROWS, np.int32)
            found[pairs], words = pairs[:, ::-1], words_of(twins.pools[1], ROWS)
            other = torch.from_numpy((found ^ np.arange(ROWS)).astype(np.int32))
            words.copy_(words & 3 | other.repeat_interleave(HV) << 2)
        twins.step(slots[:rows], [FRONT, FRONT, ROWS, 1, 0][draw.integers(5)])
        places(twins.pools[1], rows)
