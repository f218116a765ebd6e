"""Windows of composed formats that are closed with the state as words of two FP16 numbers: beside
exact states, and against what the format's own model loses. Emulated; all of them take minutes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import MATRIX, SLOTS, Lab, ints
from test_words import windows

from leapgen import pipeline
from leapgen.bench.check import _bits
from leapgen.oracle.in_place import model_of
from leapgen.oracle.tolerance import half_steps
from leapgen.oracle.windowed import WindowModel

Make = Callable[..., Lab]
FORMATS = (
    "int8-window",
    "leap8",
    "leap6",
    "leap5",
    "leap4",
    "leap4-levels",
    "leapquant-int6",
    "leapquant-int4",
)
WINDOW = 5
SLOT_LIST = [4, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dims", [MATRIX, (96, 32), (128, 64)])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
@pytest.mark.parametrize("format", FORMATS)
def test_windows(make_lab: Make, format: str, spec: str, dims: tuple[int, int]) -> None:
    """Runs of 32 keys of which 2, 1 and 4 are rotated together.

    Each load and each flush is held to half a code, element by element, and the exact states go on
    from what it stored: tokens mix the errors of one into sums that no code bounds."""
    more = {"format": format, "arch": "sm90", "window": WINDOW, "seed": sum(dims)}
    lab = make_lab(spec, dims, anchored=True, **more)
    chain = pipeline.compile(spec, "sm90", None, format)
    shape = chain.plan.shape(*dims, 2, 4, WINDOW)
    model = model_of(chain.spec, chain.plan, shape, SLOTS)
    assert isinstance(model, WindowModel)
    windows(lab, 12, lambda slots: anchor(lab, model, slots))


def anchor(lab: Lab, model: WindowModel, slots: list[int]) -> None:
    """Sets the exact states of slots without records to the module's, seen to be right."""
    adopt(model, lab)
    codes, found = model.pool.stored(np.array(slots)).codes, model.state(np.array(slots))
    lab.roundings[slots] = 0
    noise = lab.bounds(slots)["state"][:, None, None, None]
    peak = np.abs(lab.state[slots]).max((2, 3), keepdims=True)
    allowed = half_steps(model.plan.format, codes) + noise * peak
    over = np.abs(found - lab.state[slots]) - allowed
    assert (over <= 0).all(), f"state off by {over.max():.2e} more than half a code and noise"
    lab.state[slots] = found


def adopt(model: WindowModel, lab: Lab) -> None:
    """Puts what the module's pool holds into the model's."""
    data = lab.module.export(lab.pool, ints(*range(SLOTS)))
    for buffer in model.plan.buffers:
        model.pool[buffer.name][...] = _bits(data[buffer.name])


def give(lab: Lab, model: WindowModel) -> None:
    """The other way, for the slots that are looked at."""
    data = lab.module.export(lab.pool, ints(*SLOT_LIST))
    for buffer in model.plan.buffers:
        raw = np.ascontiguousarray(model.pool[buffer.name][SLOT_LIST])
        there = data[buffer.name]
        bits = raw.view(np.int16) if raw.dtype == np.uint16 else raw
        data[buffer.name] = torch.from_numpy(bits).view(there.dtype).reshape(there.shape)
    lab.module.import_(lab.pool, ints(*SLOT_LIST), data)


def lost(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Squared error over squared size, of each slot."""
    gap = found.astype(np.float64) - exact
    share: np.ndarray = (gap**2).sum((1, 2, 3)) / (exact**2).sum((1, 2, 3))
    return share


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["gdn", "kda"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_flush_loses_what_the_model_loses(make_lab: Make, format: str, spec: str) -> None:
    """Whatever else it rounds: words carry 11 bits, which is less than any of these formats."""
    lab = make_lab(spec, MATRIX, format=format, arch="sm90", window=WINDOW, seed=7)
    chain, rows = pipeline.compile(spec, "sm90", None, format), np.array(SLOT_LIST)
    model, found = (
        model_of(chain.spec, chain.plan, chain.plan.shape(*MATRIX, 2, 4, WINDOW), SLOTS)
        for _ in range(2)
    )
    start = lab.random_states(3) + 0.02 * lab.rng.standard_normal((3, 4, *MATRIX))
    lab.load(SLOT_LIST, start)
    model.load_state(rows, start.astype(np.float32))
    adopt(found, lab)
    assert (lost(found.state(rows), start) <= 1.2 * lost(model.state(rows), start) + 2e-7).all()
    for _ in range(2):
        for token in range(WINDOW):
            # The last token closes no window of the model's: its phase is as if one began.
            model.pool["phase"][...] = -WINDOW if token == WINDOW - 1 else 0
            given = {name: x.float().numpy() for name, x in lab.inputs(3).items()}
            model.step(rows, given)
        model.pool["phase"][...] = 0
        exact = model.state(rows).astype(np.float64)
        give(lab, model)
        lab.module.flush(lab.pool, ints(*SLOT_LIST))
        assert not lab.pool.cursor[SLOT_LIST].any()
        adopt(found, lab)
        row = chain.plan.format
        old = model.pool["comp_u"][rows] if "comp_u" in model.pool else row.no_factors(3, 4, 0, 32)
        stored = row.store(exact.astype(np.float32), old)
        allowed = 1.2 * lost(row.restore(stored), exact) + 2e-7
        assert (lost(found.state(rows), exact) <= allowed).all()
        for buffer in model.plan.buffers:
            model.pool[buffer.name][...] = found.pool[buffer.name]
