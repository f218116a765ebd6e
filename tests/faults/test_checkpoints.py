"""Compact checkpoints of slots: what they hold, where they may be taken, what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from draft_lab import draft_inputs
from lab import MATRIX, PLAIN, WINDOW, Lab, ints

from leapgen.runtime.host import ArgumentError

Make = Callable[..., Lab]


def tensors(data: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in data.items() if isinstance(x, torch.Tensor)}


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_a_boundary_is_all_that_a_slot_is(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    """Taken where a window has closed, put into a used slot of a pool with drafts: it decodes on to
    the bit, and takes the bytes that are said."""
    lab, other = make_lab(spec, dims), make_lab(spec, dims, drafts=4)
    lab.load([0, 2], lab.random_states(2), position=WINDOW - 3)
    for _ in range(3):
        lab.step([0, 2])
    data = lab.module.checkpoint(lab.pool, ints(2, 0))
    assert data["forced"] == []
    assert not [n for n in data if "record" in n or n == "cursor"]
    size = sum(x.nbytes for x in tensors(data).values())
    assert size == 2 * lab.module.checkpoint_bytes(**lab.sizes)
    other.reset(*range(5))
    other.module.verify(other.pool, ints(1, 3), *other.ordered(draft_inputs(other, 2, 4)))
    with other.untouched([3, 1]):
        other.module.import_(other.pool, ints(3, 1), data)
    assert not other.pool.pending.any()
    for _ in range(WINDOW):
        token = lab.ordered(lab.inputs(2))
        outs = [
            one.module.step(one.pool, slots, *token)
            for one, slots in ((lab, ints(2, 0)), (other, ints(3, 1)))
        ]
        assert torch.equal(*outs)
    one, two = (m.module.export(m.pool, s) for m, s in ((lab, ints(2, 0)), (other, ints(3, 1))))
    for name, values in one.items():
        assert name == "header" or torch.equal(values, two[name]), name


def test_open_windows_are_refused_or_forced_and_counted(make_lab: Make) -> None:
    """A forced slot is flushed once, early, and its next window ends where this one would have."""
    lab = make_lab("kda", drafts=4)
    lab.load([0, 1, 2], lab.random_states(3), position=5)
    for _ in range(4):
        lab.step([1])
    lab.module.verify(lab.pool, ints(1, 2), *lab.ordered(draft_inputs(lab, 2, 3)))
    with lab.untouched([]):
        refused = (
            r"slots\[1\]: expected a slot whose window is closed, or force=True, found cursors"
        )
        with pytest.raises(ArgumentError, match=refused):
            lab.module.checkpoint(lab.pool, ints(2, 1, 0))
        lab.module.checkpoint(lab.pool, ints(2, 0))
    assert lab.pool.forced == 0
    with lab.untouched([1]):
        data = lab.module.checkpoint(lab.pool, ints(2, 1, 0), force=True)
    assert data["forced"] == [1]
    assert lab.pool.forced == 1
    assert "forced=1" in repr(lab.pool)
    lab.roundings[1] += 1
    lab.check_state(1)
    assert lab.pool.pending[:3, 0].tolist() == [0, 0, 3]
    for token in range(9, WINDOW + 1):
        assert (lab.pool.phase[1] + lab.pool.cursor[1] == token % WINDOW).all()
        lab.step([1])


def test_what_does_not_fit_is_refused(make_lab: Make) -> None:
    """Another format, spec, version, kind or shape, a tensor missing: nothing is written."""
    lab = make_lab("gdn")
    lab.load([0], lab.random_states(1))
    data = lab.module.checkpoint(lab.pool, ints(0))
    whole = lab.module.export(lab.pool, ints(0))
    others = [make_lab("gdn", format="bf16-window"), make_lab("kda"), make_lab("gdn", window=5)]
    for other in others:
        with other.untouched([]), pytest.raises(ArgumentError, match="header: expected"):
            other.module.import_(other.pool, ints(0), data)
    for change in ({"version": 0}, {"kind": "slots"}, {"kind": "page"}, {"layout": "fragment"}):
        wrong = {**data, "header": {**data["header"], **change}}
        expected = "header: expected|cursor: expected|record_decay: expected"
        with lab.untouched([]), pytest.raises(ArgumentError, match=expected):
            lab.module.import_(lab.pool, ints(0), wrong)
    for given in (data, whole):
        for name in tensors(given):
            wrong = {n: x for n, x in given.items() if n != name}
            with lab.untouched([]), pytest.raises(ArgumentError, match=f"{name}: expected"):
                lab.module.import_(lab.pool, ints(0), wrong)


def test_states_that_are_always_stored(make_lab: Make) -> None:
    """Without a window every slot is at a boundary."""
    lab = make_lab("gdn", format="int8-step")
    lab.load([3], lab.random_states(1))
    lab.step([3])
    data = lab.module.checkpoint(lab.pool, ints(3))
    lab.module.import_(lab.pool, ints(1), data)
    lab.state[1], lab.roundings[1] = lab.state[3], lab.roundings[3]
    lab.check_state(1, 3)
    assert np.array_equal(lab.pool.payload[1].numpy(), lab.pool.payload[3].numpy())
