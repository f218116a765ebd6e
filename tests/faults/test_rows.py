"""Kinds 3 and 15: padding rows, slots out of range, empty and mixed batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, Lab, ints

from leapgen.runtime.host import ArgumentError

Make = Callable[..., Lab]
SPECS = ("gdn", "kda")


def everywhere(lab: Lab, slots: torch.Tensor, first_slot: int) -> list[torch.Tensor]:
    """Every mode on these rows; what they return."""
    given = lab.ordered(lab.inputs(len(slots)))
    state = torch.ones(len(slots), HV, lab.V, lab.K)
    module, pool = lab.module, lab.pool
    module.reset(pool, slots, first_slot=first_slot)
    module.load_state(pool, slots, state, first_slot=first_slot)
    module.flush(pool, slots, first_slot=first_slot)
    module.copy(pool, slots, torch.full_like(slots, 1), first_slot=first_slot)
    module.copy(pool, torch.full_like(slots, 1), slots, first_slot=first_slot)
    return [
        module.step(pool, slots, *given, first_slot=first_slot),
        module.materialize(pool, slots, first_slot=first_slot),
    ]


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", SPECS)
def test_inactive_rows_touch_nothing(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    lab = make_lab(spec, dims)
    lab.reset(*range(5))
    for slots, first_slot in ((ints(-1, -7, -(2**31)), 0), (ints(0, -1, 1), 2), (ints(4, 3), 5)):
        with lab.untouched([]):
            for result in everywhere(lab, slots, first_slot):
                assert not result.any()
    assert not lab.pool.status.any()


@pytest.mark.parametrize("spec", SPECS)
def test_slots_beyond_the_pool(make_lab: Make, spec: str) -> None:
    lab = make_lab(spec)
    lab.reset(*range(5))
    with lab.untouched([]):
        for result in everywhere(lab, ints(5, 2**31 - 1, 6), 0):
            assert not result.any()
    assert lab.pool.status.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("cursor", [-1, WINDOW + 1, 2**31 - 1, -(2**31)])
def test_cursors_out_of_range(make_lab: Make, cursor: int) -> None:
    """(A cursor of exactly the window is a full window: a flush folds it.)"""
    lab = make_lab("gdn")
    lab.reset(*range(5))
    lab.pool.cursor[3, 1] = cursor
    given = lab.ordered(lab.inputs(2))
    with lab.untouched([3, 0]):
        out = lab.module.step(lab.pool, ints(3, 0), *given)
    assert not out[0, 1].any()
    assert out[1].any()
    assert lab.pool.cursor[:, 1].tolist() == [1, 0, 0, cursor, 0]
    assert lab.pool.status.tolist() == [0, 1, 0, 0]
    with pytest.raises(ArgumentError, match=rf"slots\[0\]: expected cursors in 0..15, .*{cursor}"):
        lab.module.step(lab.pool, ints(3, 0), *given, check=True)


@pytest.mark.parametrize("spec", SPECS)
def test_mixed_rows(make_lab: Make, spec: str) -> None:
    """Fresh slots, half-full windows, closing windows and padding in one batch."""
    lab = make_lab(spec)
    lab.reset(1)
    lab.load([2], lab.random_states(1), position=WINDOW - 1)
    lab.load([4], lab.random_states(1))
    for _ in range(9):
        lab.step([4])
    for _ in range(2 * WINDOW):
        lab.step([-1, 2, 0, 4, 1, -3], first_slot=1)
    lab.check_state(1, 2, 4)


def test_no_rows(make_lab: Make) -> None:
    lab = make_lab("gdn")
    with lab.untouched([]):
        for result in everywhere(lab, ints(), 0):
            assert len(result) == 0
    assert lab.module.export(lab.pool, ints())["payload"].shape == (0, HV, lab.K, lab.V)
    assert not lab.pool.status.any()


def test_duplicates_are_named(make_lab: Make) -> None:
    lab = make_lab("gdn")
    lab.reset(*range(5))
    with (
        lab.untouched([]),
        pytest.raises(
            ArgumentError, match=r"slots\[2\]: expected each slot once, found 3, as in row 0"
        ),
    ):
        lab.module.step(lab.pool, ints(3, -1, 3), *lab.ordered(lab.inputs(3)), check=True)
