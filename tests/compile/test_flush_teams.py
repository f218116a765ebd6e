"""Blocks of a separate flush share the heads that are due, in any order of the blocks.

That no two blocks close one head is seen where every access is watched: test_generated_emulated.py.
"""

from __future__ import annotations

import functools

import pytest
import torch
from generated_modules import file_of, module_at

from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import Module, Pool

ROWS, HV, WINDOW = 300, 2, 16
TEAMS = {"threads": 32, "slices": 1, "min_blocks": 1, "tiles": 0}
"""32 threads look at 128 rows in a turn: three turns."""


@functools.cache
def emulated(blocks: int = HV, seed: int = 0) -> Module:
    """With so many blocks of a flush, which run in the seed's order."""
    module = module_at(file_of("gdn", "sm90")).with_backend(Emulator(seed=seed))
    return module.with_configs(flush={**TEAMS, "blocks": blocks})


def emptied(module: Module) -> Pool:
    return module.allocate(ROWS, H=1, HV=HV, K=16, V=24)


def mixed(module: Module, generator: torch.Generator) -> tuple[Pool, torch.Tensor]:
    """Slots at all cursors and phases, some due; rows in another order, of which some rest."""
    pool = emptied(module)
    for name, tensor in pool.items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + 0.25)
        elif name not in ("cursor", "phase"):
            codes = torch.randint(-50, 50, tensor.shape, generator=generator)
            tensor.copy_(codes.to(tensor.dtype))
    phase = (
        torch.randint(0, WINDOW, (ROWS, 1), generator=generator)
        * (torch.arange(ROWS) % 3 == 0)[:, None]
    )
    cursor = (torch.rand((ROWS, HV), generator=generator) * (WINDOW - phase + 1)).int()
    due = torch.rand((ROWS, HV), generator=generator) < 0.3
    pool["phase"].copy_(phase.expand(-1, HV))
    pool["cursor"].copy_(torch.where(due, WINDOW - phase, cursor))
    slots = torch.randperm(ROWS, generator=generator).int()
    slots[torch.rand(ROWS, generator=generator) < 0.1] = -1
    return pool, slots


def flushed(blocks: int, seed: int, pool: Pool, slots: torch.Tensor) -> Pool:
    """A copy of the pool after a flush."""
    module = emulated(blocks, seed)
    copy = emptied(module)
    for name, tensor in pool.items():
        copy[name].copy_(tensor)
    module.flush(copy, slots)
    return copy


@pytest.mark.parametrize("seed", [0, 7])
def test_a_team_closes_every_window_that_is_due(seed: int) -> None:
    """Seed 0: a block ends before the next one looks. Blocks without teams give the same."""
    pool, slots = mixed(emulated(), torch.Generator().manual_seed(seed + 1))
    one = flushed(HV, 0, pool, slots)
    team = flushed(7, seed, pool, slots)
    for name, tensor in one.items():
        assert torch.equal(tensor, team[name]), name
    chosen = slots[slots >= 0].long()
    due = torch.zeros((ROWS, HV), dtype=torch.bool)
    due[chosen] = (pool["cursor"] + pool["phase"] >= WINDOW)[chosen]
    assert 50 < due.sum() < ROWS
    assert torch.equal(team["cursor"], torch.where(due, 0, pool["cursor"]))
    assert torch.equal(team["phase"], torch.where(due, 0, pool["phase"]))
    assert not team.status.any()


def test_bad_rows_change_no_share() -> None:
    """A slot out of range and a cursor beyond the window are reported and left as they are."""
    pool, slots = mixed(emulated(), torch.Generator().manual_seed(3))
    slots[5], slots[130] = ROWS, 17
    pool["cursor"][17] = WINDOW + 1
    one = flushed(HV, 0, pool, slots)
    team = flushed(7, 0, pool, slots)
    assert team.status.tolist() == one.status.tolist() == [1, 1, 0, 0]
    assert (team["cursor"][17] == WINDOW + 1).all()
    for name, tensor in one.items():
        assert torch.equal(tensor, team[name]), name
