"""Kinds 2 and 8: cursor, flush and snapshot agree, in any order of modes; flushes are counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lab import HV, MATRIX, PLAIN, WINDOW, H, Lab, ints, numpy

from leapgen.oracle.tolerance import distance

SPECS = ("gdn", "kda")
Make = Callable[..., Lab]


def act(lab: Lab, rng: np.random.Generator, position: np.ndarray) -> None:
    """One random call, with what it must do to the position within the window."""
    mode = rng.choice(["step", "step", "step", "state", "copy", "reset", "load"])
    slots = [int(s) for s in rng.permutation(lab.slots)[: rng.integers(1, 4)]]
    if mode == "step":
        lab.step(slots, odd=bool(rng.integers(2)))
        position[slots] = (position[slots] + 1) % lab.window
    elif mode == "state":
        lab.check_state(*slots)
    elif mode == "copy" and len(slots) > 1:
        source, target = slots[:1], slots[1:2]
        with lab.untouched(target):
            lab.module.copy(lab.pool, ints(*source), ints(*target), check=True)
        for kept in (lab.state, lab.roundings, position):
            kept[target] = kept[source]
    elif mode == "reset":
        lab.reset(*slots)
        position[slots] = 0
    elif mode == "load":
        start = int(rng.integers(0, 1000))
        lab.load(slots, lab.random_states(len(slots)), start)
        position[slots] = start % lab.window


@pytest.mark.parametrize("window", [1, 2, 5, 16, 32])
@pytest.mark.parametrize("spec", SPECS)
def test_random_calls_against_plain_decode(make_lab: Make, spec: str, window: int) -> None:
    lab = make_lab(spec, window=window, seed=window)
    rng = np.random.default_rng(window)
    lab.reset(*range(lab.slots))
    position = np.zeros(lab.slots, int)
    for _ in range(200):
        act(lab, rng, position)
        where = numpy(lab.pool.phase + lab.pool.cursor)
        assert (where == position[:, None]).all()


@pytest.mark.parametrize("spec", SPECS)
def test_a_lossless_window_is_plain_decode(make_lab: Make, spec: str) -> None:
    """FP32 payload and records: all windows, W = 1 included, agree with the exact steps."""
    lab = {w: make_lab(spec, format="fp32-window", records="fp32", window=w) for w in (1, 5)}
    for one in lab.values():
        one.load([0, 3], np.full((2, HV, *PLAIN), 0.5))
    for _ in range(23):
        given = lab[1].inputs(2)
        outs = [one.step([0, 3], given) for one in lab.values()]
        assert (distance(*(numpy(o) for o in outs)) < 2**-7).all()  # two roundings to BF16
    states = [numpy(one.module.materialize(one.pool, ints(0, 3))) for one in lab.values()]
    assert (distance(*states, axes=2) < 1e-5).all()
    for one in lab.values():
        one.check_state(0, 3)


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("position", [0, 1, WINDOW - 1, WINDOW, 5 * WINDOW + 7])
def test_windows_close_at_multiples(make_lab: Make, position: int, dims: tuple[int, int]) -> None:
    """With a position, flushes fall where the absolute position is a multiple of the window."""
    lab = make_lab("gdn", dims)
    lab.load([2], lab.random_states(1), position)
    for token in range(position + 1, position + 2 * WINDOW + 1):
        lab.step([2])
        assert (lab.pool.cursor[2] == 0).all() == (token % WINDOW == 0)
        assert (
            lab.pool.phase[2]
            .eq(0 if token // WINDOW > position // WINDOW else position % WINDOW)
            .all()
        )


@pytest.mark.parametrize("spec", SPECS)
def test_flushes_of_1000_tokens(make_lab: Make, spec: str) -> None:
    """One a window and no other, whatever else happens in between; per head, all together."""
    lab = make_lab(spec, window=WINDOW)
    lab.reset(0, 1)
    flushes = 0
    for token in range(1000):
        before = lab.pool.cursor[0].clone()
        lab.step([0])
        assert lab.pool.cursor[0].unique().numel() == 1
        flushes += int((lab.pool.cursor[0] <= before).all())
        if token % 7 == 0:
            with lab.untouched([1]):
                lab.module.materialize(lab.pool, ints(0))
                lab.module.copy(lab.pool, ints(0), ints(1))
                lab.module.flush(lab.pool, ints(0), check=True)
    assert flushes == 1000 // WINDOW


def test_a_key_head_in_a_window_of_its_own(make_lab: Make) -> None:
    """Cursors belong to heads: those that stand elsewhere are flushed when their own is full. Value
    heads that share keys stand at one cursor."""
    lab = make_lab("kda", dims=PLAIN)
    lab.load([1], lab.random_states(1))
    group = slice(HV // H, None)
    lab.pool.phase[1, group] = 11
    for token in range(1, 9):
        lab.step([1])
        cursors = [token] * (HV // H) + [token % 5] * (HV - HV // H)
        assert lab.pool.cursor[1].tolist() == cursors
    lab.check_state(1)
