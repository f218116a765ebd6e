"""Drafts that do not fit a pool or a format are refused by name, before any launch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from draft_lab import draft_inputs
from lab import Lab, ints

from leapgen.runtime.host import ArgumentError

Make = Callable[..., Lab]


def test_refusals(make_lab: Make) -> None:
    """By name, with what was expected and found, before anything is touched."""
    lab, plain = (make_lab("gdn", drafts=n) for n in (3, 0))
    lab.reset(*range(5))
    given = draft_inputs(lab, 2, 4)
    slots, module = ints(3, 1), lab.module
    with lab.untouched([]):
        for message, call in (
            (
                "q: expected at most 3 tokens a row, the pool's drafts, found 4",
                lambda: module.verify(lab.pool, slots, *lab.ordered(given)),
            ),
            (
                r"q: expected shape \[2, tokens, 2, 16\], found \[2, 2, 16\]",
                lambda: module.verify(lab.pool, slots, *lab.ordered(lab.inputs(2))),
            ),
            (
                "pool: expected one allocated with drafts, found drafts=0",
                lambda: module.verify(plain.pool, slots, *lab.ordered(given)),
            ),
            (
                "pool: expected one allocated with drafts, found drafts=0",
                lambda: module.commit(plain.pool, slots, ints(1, 1)),
            ),
            (
                r"lengths: expected shape \[2\], found \[3\]",
                lambda: module.verify(lab.pool, slots, *short(lab, 2), lengths=ints(1, 1, 1)),
            ),
            (
                "accepted: expected torch.int32, found torch.int64",
                lambda: module.commit(lab.pool, slots, torch.ones(2, dtype=torch.int64)),
            ),
            (
                r"k: expected shape \[2, 2, 2, 16\], found \[2, 1, 2, 16\]",
                lambda: module.verify(lab.pool, slots, *mixed(lab)),
            ),
            (
                "pool: expected one made for .*gdn",
                lambda: module.commit(make_lab("kda", drafts=3).pool, slots, ints(1, 1)),
            ),
            ("drafts: expected at most 16, found 17", lambda: module.shape(H=2, drafts=17)),
        ):
            with pytest.raises(ArgumentError, match=message):
                call()


def short(lab: Lab, tokens: int) -> list[torch.Tensor]:
    return lab.ordered(draft_inputs(lab, 2, tokens))


def mixed(lab: Lab) -> list[torch.Tensor]:
    one, two = (draft_inputs(lab, 2, n) for n in (1, 2))
    return lab.ordered({**two, "k": one["k"]})


def test_formats_without_a_window_have_no_drafts(make_lab: Make) -> None:
    lab = make_lab("gdn", format="int8-step")
    given = lab.ordered(draft_inputs(lab, 1, 2))
    named = "format: expected one with a window, as drafts are records, found int8-step"
    with pytest.raises(ArgumentError, match=named):
        lab.module.verify(lab.pool, ints(0), *given)
    with pytest.raises(
        ArgumentError, match="drafts: expected 0, as format int8-step has no kernels for them"
    ):
        lab.module.allocate(2, 2, drafts=2)
