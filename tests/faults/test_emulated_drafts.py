"""Drafts in the GPU's code, in the emulator: both payload orders, every arch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab import MATRIX, PLAIN, Lab
from test_drafts import LOSSLESS, OTHERS, check_prefix, check_same_slot, walk

Make = Callable[..., Lab]


@pytest.fixture
def arch() -> str:
    """Of the modules that are tested; test_device.py puts the present GPU's here."""
    return "sm90"


@pytest.mark.parametrize(
    ("spec", "dims", "more"),
    [
        ("kda", MATRIX, {"window": 5}),
        pytest.param("gdn", PLAIN, {}, marks=pytest.mark.slow),
        pytest.param("gdn", MATRIX, LOSSLESS, marks=pytest.mark.slow),
        pytest.param("gdn", PLAIN, {"format": "bf16-window"}, marks=pytest.mark.slow),
        pytest.param("gated_deltaproduct", MATRIX, {"window": 5}, marks=pytest.mark.slow),
        pytest.param("gdn", MATRIX, {"format": "leap8"}, marks=pytest.mark.slow),
        pytest.param("kda", PLAIN, {"format": "leap5"}, marks=pytest.mark.slow),
        pytest.param("hgrn2", MATRIX, {}, marks=pytest.mark.slow),
        pytest.param("retnet", PLAIN, {}, marks=pytest.mark.slow),
        pytest.param("mamba2", MATRIX, {"window": 1}, marks=pytest.mark.slow),
    ],
)
def test_random_rounds(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int], more: Any
) -> None:
    """Every mode in random order on all slots against plain decode, on the contract's flushes."""
    walk(make_lab(spec, dims, arch=arch, drafts=8, seed=3, **more), 100, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["sm100", "sm120"])
def test_other_archs(make_lab: Make, other: str) -> None:
    walk(make_lab("kda", MATRIX, arch=other, drafts=8, window=5, seed=4), 60, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "more"),
    [("kda", {}), ("gdn2", {}), ("linear_attention", {"picks": {"normaliser": "column"}})],
)
def test_more_drafts_than_registers_hold(make_lab: Make, arch: str, spec: str, more: Any) -> None:
    """Their reads are kept eight drafts at a time; outputs that are quotients too."""
    walk(make_lab(spec, PLAIN, arch=arch, drafts=11, seed=5, **more), 40, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
def test_later_drafts_change_nothing(make_lab: Make, arch: str, dims: tuple[int, int]) -> None:
    """Outputs of a prefix, and the slot once it is committed, are equal to the bit."""
    check_prefix(make_lab("kda", dims, arch=arch, drafts=8))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["leap5", *OTHERS])
def test_drafts_are_steps_from_the_same_slot(make_lab: Make, arch: str, format: str) -> None:
    """Outputs and state, without the formats' noise."""
    check_same_slot(make_lab("kda", MATRIX, arch=arch, format=format, records="fp32", drafts=8))
