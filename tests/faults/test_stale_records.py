"""Kind 1: what lies at or beyond the cursor is never looked at, in any mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import MATRIX, PLAIN, WINDOW, Lab, ints, poison

SPECS = ("gdn", "kda")


def poison_beyond_cursor(lab: Lab) -> None:
    """NaN in every record that is not committed."""
    for buffer in lab.module.buffers:
        if buffer.role == "record":
            tensor = lab.pool[buffer.name]
            entries = tensor.shape[2] // lab.window
            group = lab.HV // tensor.shape[1]
            first = lab.pool.cursor[:, ::group, None] * entries
            live = torch.arange(tensor.shape[2]) < first
            live = live.reshape(*live.shape, *[1] * (tensor.dim() - 3))
            tensor.copy_(torch.where(live, tensor, poison(torch.empty_like(tensor))))


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", SPECS)
def test_every_cursor(make_lab: Callable[..., Lab], spec: str, dims: tuple[int, int]) -> None:
    """Slots at three different cursors through one and a half windows, re-poisoned before each
    call."""
    lab = make_lab(spec, dims)
    slots = (4, 0, 2)
    lab.load(slots, lab.random_states(3))
    for row, slot in enumerate(slots):
        for _ in range(5 * row):
            lab.step([slot])
    for _ in range(WINDOW + WINDOW // 2):
        poison_beyond_cursor(lab)
        lab.step(slots)
        poison_beyond_cursor(lab)
        lab.check_state(*slots)


@pytest.mark.parametrize("spec", SPECS)
def test_a_recycled_slot_forgets(make_lab: Callable[..., Lab], spec: str) -> None:
    """Reset and load over a slot full of NaN with any cursor in it."""
    lab = make_lab(spec)
    lab.pool.cursor.copy_(torch.randint(-5, 99, lab.pool.cursor.shape))
    lab.reset(1, 3)
    lab.load([0], lab.random_states(1))
    for _ in range(3):
        lab.step([3, 0, 1])
    lab.check_state(0, 1, 3)
    for tensor in lab.pool.values():
        poison(tensor[3])
    lab.reset(3)
    lab.step([3])
    lab.check_state(3)


@pytest.mark.parametrize("spec", SPECS)
def test_copies_of_a_half_full_window(make_lab: Callable[..., Lab], spec: str) -> None:
    lab = make_lab(spec)
    lab.load([1], lab.random_states(1))
    for _ in range(7):
        lab.step([1])
    with lab.untouched([4, 2]):
        lab.module.copy(lab.pool, ints(1, 1), ints(4, 2), check=True)
    lab.state[[4, 2]] = lab.state[1]
    lab.roundings[[4, 2]] = lab.roundings[1]
    data = lab.module.export(lab.pool, ints(1, 4, 2))
    for name, values in data.items():
        if name != "header":
            assert torch.equal(values[0], values[1]), name
            assert torch.equal(values[0], values[2]), name
    poison_beyond_cursor(lab)
    for _ in range(WINDOW):
        lab.step([2, 4])
    lab.check_state(2, 4, 1)


@pytest.mark.parametrize("spec", SPECS)
def test_exports_hold_no_stale_values(make_lab: Callable[..., Lab], spec: str) -> None:
    lab = make_lab(spec)
    lab.load([1], lab.random_states(1), position=3)
    lab.step([1])
    data = lab.module.export(lab.pool, ints(1))
    for name, values in data.items():
        if name != "header":
            assert np.isfinite(values.double().numpy()).all(), name
    assert not data["record_u"][:, :, 1:].any()
    assert data["record_u"][:, :, :1].any()
    with lab.untouched([2]):
        lab.module.import_(lab.pool, ints(2), data)
    lab.state[2], lab.roundings[2] = lab.state[1], lab.roundings[1]
    for _ in range(WINDOW):
        lab.step([2, 1])
    lab.check_state(2, 1)
