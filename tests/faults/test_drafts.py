"""Drafts: kinds 1, 2, 3, 8 and 15 of faults where tokens may be taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from draft_lab import DraftLab, draft_inputs, exact_inputs, poison_beyond_drafts
from lab import MATRIX, PLAIN, WINDOW, Lab, ints, numpy

from leapgen.oracle.tolerance import distance
from leapgen.runtime.host import ArgumentError

Make = Callable[..., Lab]
DRAFTS = 8
LOSSLESS: dict[str, Any] = {"format": "fp32-window", "records": "fp32"}


def walk(lab: Lab, rounds: int, seed: int) -> DraftLab:
    """Random rounds; prints what they did."""
    walked = DraftLab(lab, seed)
    for _ in range(rounds):
        walked.act()
    for slot in range(lab.slots):
        walked.state([slot])
    sys.stdout.write(walked.summary(rounds))
    assert walked.flushes.sum() > rounds // 10
    assert walked.overshoots > rounds // 50
    assert walked.rejected > rounds // 2
    return walked


@pytest.mark.parametrize(
    ("spec", "dims", "more"),
    [
        ("kda", PLAIN, {}),
        ("gdn", MATRIX, LOSSLESS),
        pytest.param("kda", MATRIX, {"format": "leap8"}, marks=pytest.mark.slow),
        pytest.param("gdn", PLAIN, {"format": "leap5"}, marks=pytest.mark.slow),
    ],
)
def test_random_rounds(make_lab: Make, spec: str, dims: tuple[int, int], more: Any) -> None:
    """Every mode in random order on all slots against plain decode, on the contract's flushes."""
    walk(make_lab(spec, dims, drafts=DRAFTS, seed=11, **more), 400, seed=11)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 5, WINDOW])
@pytest.mark.parametrize("format", ["leapquant-int8", "bf16-window", "fp32-window", "leap8"])
@pytest.mark.parametrize(
    "spec", ["gdn", "kda", "gated_deltaproduct", "hgrn2", "retnet", "mamba2", "rwkv7"]
)
def test_many_random_rounds(make_lab: Make, spec: str, format: str, window: int) -> None:
    """Sub-steps, decays of every kind, all formats with a window, drafts longer than windows."""
    records = "fp32" if format == "fp32-window" else None
    lab = make_lab(spec, format=format, records=records, window=window, drafts=DRAFTS, seed=window)
    walk(lab, 1000, seed=window)


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_a_lossless_verify_is_plain_steps(make_lab: Make, spec: str) -> None:
    """D = 1..8 drafts at every cursor: to FP32's rounding what D plain FP32 steps give, before the
    output's own rounding to BF16."""
    lab = make_lab(spec, drafts=DRAFTS, **LOSSLESS)
    plain = make_lab(spec, **LOSSLESS)
    errors = dict.fromkeys(range(1, DRAFTS + 1), 0.0)
    for cursor in range(WINDOW):
        for tokens in range(1, DRAFTS + 1):
            states = lab.random_states(2)
            for one in (lab, plain):
                one.load([1, 3], states, position=0)
            for _ in range(cursor):
                given = lab.inputs(2)
                for one in (lab, plain):
                    one.step([1, 3], given)
            given = draft_inputs(lab, 2, tokens)
            out = lab.module.verify(lab.pool, ints(1, 3), *lab.ordered(given), check=True)
            exact = plain.state[[1, 3]].copy()
            for t in range(tokens):
                token = {n: x if lab.spec.input(n).constant else x[:, t] for n, x in given.items()}
                exact, want, _ = lab.oracle.step(exact, exact_inputs(lab, token, [0, 1]))
                apart = distance(numpy(out[:, t]), want)
                assert (apart < 2**-8).all()  # one rounding to BF16, of the largest
                step = plain.module.step(plain.pool, ints(1, 3), *lab.ordered(token))
                assert (
                    numpy((out[:, t].float() - step.float()).abs())
                    <= numpy(2**-7 * step.float().abs() + 1e-6 * step.float().abs().max())
                ).all()
            lab.module.commit(lab.pool, ints(1, 3), ints(tokens, tokens))
            states = [
                numpy(m.module.materialize(m.pool, ints(1, 3), layout="KV")) for m in (lab, plain)
            ]
            errors[tokens] = max(errors[tokens], float(distance(states[0], exact, axes=2).max()))
            assert (distance(*states, axes=2) < 2e-6).all()
    shown = ", ".join(f"D={t} {e:.1e}" for t, e in errors.items())
    sys.stdout.write(f"\n{spec}: state after D accepted drafts against float64: {shown}")
    assert max(errors.values()) < 3e-6


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_later_drafts_change_nothing(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    """Outputs of a prefix, and the slot once it is committed, are equal to the bit whatever came
    behind: other tokens, NaN, none. Once they are rejected, NaN of drafts is nowhere."""
    check_prefix(make_lab(spec, dims, drafts=DRAFTS))


PACKED = ("leap6", "leap4", "leap4-levels", "leapquant-int4")
OTHERS = ("leap8", *PACKED, "int8-window-comp", "fp8-window")


@pytest.mark.parametrize(
    "format", ["leap5", *(pytest.param(f, marks=pytest.mark.slow) for f in OTHERS)]
)
def test_drafts_are_steps_from_the_same_slot(make_lab: Make, format: str) -> None:
    """Of formats whose noise would hide a fault: no rounding lies between drafts and tokens."""
    check_same_slot(make_lab("kda", (64, 32), format=format, records="fp32", drafts=DRAFTS))


def check_same_slot(lab: Lab) -> None:
    """Eight drafts of one slot and eight tokens of another that holds the same, behind records."""
    lab.load([1, 3], np.repeat(lab.random_states(1), 2, 0), position=0)
    for _ in range(2):
        lab.step([1, 3], same_rows(lab, lab.inputs(1)))
    given = draft_inputs(lab, 1, DRAFTS)
    out = lab.module.verify(lab.pool, ints(1), *lab.ordered(given))
    worst = 0.0
    for t in range(DRAFTS):
        token = {n: x if lab.spec.input(n).constant else x[:, t] for n, x in given.items()}
        step = numpy(lab.module.step(lab.pool, ints(3), *lab.ordered(token)))
        gap, peak = np.abs(numpy(out[:, t]) - step), np.abs(step).max()
        worst = max(worst, float(gap.max() / peak))
        assert (gap <= 2**-7 * np.abs(step) + 1e-5 * peak).all(), (t, gap.max() / peak)
    lab.module.commit(lab.pool, ints(1), ints(DRAFTS), check=True)
    one, other = (numpy(lab.module.materialize(lab.pool, ints(s), layout="KV")) for s in (1, 3))
    apart = float(distance(one, other, axes=2).max())
    sys.stdout.write(f"\n{lab.spec.state.format}: outputs {worst:.1e}, state {apart:.1e} apart")
    assert apart < 2e-6


def same_rows(lab: Lab, given: dict[str, torch.Tensor], rows: int = 2) -> dict[str, torch.Tensor]:
    """One row's token for several rows."""
    return {
        n: x if lab.spec.input(n).constant else x.repeat(rows, *[1] * (x.dim() - 1))
        for n, x in given.items()
    }


def check_prefix(lab: Lab) -> None:
    lab.load([0, 1, 2, 3], np.repeat(lab.random_states(1), 4, 0), position=WINDOW - 9)
    for _ in range(5):
        lab.step([0, 1, 2, 3], same_rows(lab, lab.inputs(1), 4))
    tokens, kept = 6, 4
    rows = draft_inputs(lab, 4, tokens)
    for name, x in rows.items():
        if not lab.spec.input(name).constant:
            x[1:, :kept] = x[:1, :kept]
            x[1, kept:] = float("nan")
    out = lab.module.verify(
        lab.pool, ints(0, 1, 2, 3), *lab.ordered(rows), lengths=ints(tokens, tokens, kept, tokens)
    )
    assert out[1, kept:].isnan().any()
    assert not out[:, :kept].isnan().any()
    for row in (1, 2, 3):
        assert torch.equal(out[row, :kept], out[0, :kept])
    lab.module.commit(lab.pool, ints(0, 1, 2, 3), ints(*[kept] * 4), check=True)
    assert (lab.pool.cursor[:4] == 0).all()  # the window has closed
    data = lab.module.export(lab.pool, ints(0, 1, 2, 3))
    for name, values in data.items():
        for row in (1, 2, 3):
            assert name == "header" or torch.equal(values[row], values[0]), (name, row)


def test_one_draft_is_a_step(make_lab: Make) -> None:
    """A plain row of a mixed batch has one token, which the next call accepts."""
    lab, plain = (make_lab("kda", drafts=n) for n in (DRAFTS, 0))
    for one in (lab, plain):
        one.load([4, 2], np.full((2, lab.HV, *PLAIN), 0.25), position=3)
    accepted = None
    for _ in range(2 * WINDOW):
        token = lab.inputs(2)
        drafts = {n: x if lab.spec.input(n).constant else x[:, None] for n, x in token.items()}
        out = lab.module.verify(
            lab.pool, ints(4, 2), *lab.ordered(drafts), lengths=ints(1, 1), accepted=accepted
        )
        accepted = ints(1, DRAFTS)  # more than there are
        assert (distance(numpy(out[:, 0]), numpy(plain.step([4, 2], token))) < 2**-7).all()
    lab.module.commit(lab.pool, ints(4, 2), accepted)
    assert torch.equal(lab.pool.cursor[[4, 2]], plain.pool.cursor[[4, 2]])
    lab.state, lab.roundings = plain.state, plain.roundings
    lab.check_state(4, 2)


def test_slots_move_between_pools_with_and_without_drafts(make_lab: Make) -> None:
    """An export has the records of one window, whatever the reserve, and no drafts."""
    lab, plain = (make_lab("kda", drafts=n) for n in (DRAFTS, 0))
    plain.load([1, 4], plain.random_states(2), position=5)
    plain.step([1, 4])
    lab.reset(*range(5))
    lab.module.verify(lab.pool, ints(0, 3), *lab.ordered(draft_inputs(lab, 2, 3)))
    data = plain.module.export(plain.pool, ints(1, 4))
    with lab.untouched([3, 0]):
        lab.module.import_(lab.pool, ints(3, 0), data)
    assert not lab.pool.pending.any()
    lab.module.verify(lab.pool, ints(3, 0), *lab.ordered(draft_inputs(lab, 2, 3)))
    back = lab.module.export(lab.pool, ints(3, 0))
    assert back["header"] == data["header"]
    for name, values in data.items():
        assert name == "header" or torch.equal(values, back[name]), name


def test_empty_rows_and_batches(make_lab: Make) -> None:
    """No rows, no tokens, a length of zero; a committed round of none."""
    lab = make_lab("gdn", drafts=DRAFTS)
    lab.reset(*range(5))
    for rows, tokens in ((0, 3), (2, 0)):
        given = (
            draft_inputs(lab, rows, tokens)
            if rows * tokens
            else {
                x.name: torch.zeros(x.sizes((rows, tokens), lab.pool.shape)).to(
                    lab.inputs(1)[x.name].dtype
                )
                for x in lab.module.inputs
            }
        )
        with lab.untouched([0, 1]):
            out = lab.module.verify(lab.pool, ints(*range(rows)), *lab.ordered(given), check=True)
        assert out.shape == (rows, tokens, lab.HV, lab.V)
    given = draft_inputs(lab, 2, 3)
    lab.module.verify(lab.pool, ints(0, 1), *lab.ordered(given), lengths=ints(0, 2))
    lab.module.commit(lab.pool, ints(0, 1), ints(3, 0), check=True)
    assert not lab.pool.cursor.any()
    lab.check_state(0, 1)


def test_what_the_device_sees(make_lab: Make) -> None:
    """A length or cursor out of range: the row is inactive, its slot untouched, and status says so;
    with check=True the row is named before anything runs."""
    lab = make_lab("kda", drafts=DRAFTS)
    lab.reset(*range(5))
    given = lab.ordered(draft_inputs(lab, 2, 3))
    for bad in (-1, 4, 2**31 - 1, -(2**31)):
        lab.pool.status.zero_()
        with lab.untouched([1]):
            out = lab.module.verify(lab.pool, ints(3, 1), *given, lengths=ints(bad, 3))
        assert not out[0].any()
        assert out[1].any()
        assert lab.pool.status.tolist() == [0, 0, 1, 0]
        with pytest.raises(
            ArgumentError, match=rf"lengths\[0\]: expected a number in 0..3, found {bad}"
        ):
            lab.module.verify(lab.pool, ints(3, 1), *given, lengths=ints(bad, 3), check=True)
    lab.pool.status.zero_()
    lab.pool.cursor[3] = WINDOW
    with lab.untouched([1]):
        out = lab.module.verify(
            lab.pool,
            ints(3, 1, 9),
            *[torch.cat([x, x[:1]]) if x.dim() > 2 else x for x in given],
            accepted=ints(1, 1, 1),
        )
    assert not out[[0, 2]].any()
    assert lab.pool.status.tolist() == [1, 1, 0, 0]
    lab.pool.cursor[3] = 0
    for call in (
        lambda: lab.module.verify(lab.pool, ints(3, 3), *given, check=True),
        lambda: lab.module.commit(lab.pool, ints(3, 3), ints(1, 1), check=True),
    ):
        with pytest.raises(ArgumentError, match=r"slots\[1\]: expected each slot once, found 3"):
            call()
    with pytest.raises(ArgumentError, match=r"accepted\[1\]: expected a number of at least 0"):
        lab.module.commit(lab.pool, ints(3, 1), ints(1, -1), check=True)


def test_other_calls_drop_drafts(make_lab: Make) -> None:
    """A step, a load, a reset and a copy into a slot forget its drafts, which a commit then cannot
    accept; a copy out of it and a materialize leave them."""
    lab = make_lab("kda", drafts=DRAFTS)
    lab.reset(*range(5))
    lab.module.verify(lab.pool, ints(0, 1, 2, 3, 4), *lab.ordered(draft_inputs(lab, 5, 3)))
    poison_beyond_drafts(lab)
    lab.step([0])
    lab.reset(1)
    lab.load([2], lab.random_states(1), position=2)
    with lab.untouched([3]):
        lab.module.copy(lab.pool, ints(4), ints(3), check=True)
        lab.module.copy(lab.pool, ints(-1, 0), ints(4, 9))  # inactive: 4 keeps its drafts
    lab.check_state(4)
    assert lab.pool.pending[:, 0].tolist() == [0, 0, 0, 0, 3]
    lab.module.commit(lab.pool, ints(0, 1, 2, 3, 4), ints(2, 2, 2, 2, 2))
    assert lab.pool.cursor[:, 0].tolist() == [1, 0, 0, 0, 2]
    lab.check_state(0, 1, 2, 3)
