"""In place, codes that are bytes: decoded and encoded word by word, in the emulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab import Lab, ints

Make = Callable[..., Lab]
CASES = [
    ("gdn", "int8-step", (72, 40), (2, 6), "sm90"),  # chunks of 8 keys, one of them beyond the last
    *(
        pytest.param(spec, name, dims, heads, arch, marks=pytest.mark.slow)
        for spec in ("gdn", "kda")
        for name, arch in (
            ("int8-step", "sm80"),
            ("int8-step", "sm120"),
            ("fp8-step", "sm90"),
            ("mxfp8", "sm100"),
        )
        for dims, heads in (((128, 80), (1, 2)), ((96, 192), (1, 1)), ((8, 8), (1, 3)))
    ),
]


@pytest.mark.parametrize(("spec", "name", "dims", "heads", "arch"), CASES)
def test_every_call(
    make_lab: Make, spec: str, name: str, dims: tuple[int, int], heads: tuple[int, int], arch: str
) -> None:
    """Steps of rows in any order, one of them at rest, and what else writes a slot."""
    lab = make_lab(spec, dims, arch=arch, format=name, heads=heads, seed=6)
    lab.load([3, 1], lab.random_states(2))
    lab.reset(4)
    for _ in range(4):
        lab.step([4, 3, -1, 1], odd=True)
    lab.check_state(1, 3, 4)
    with lab.untouched([0]):
        lab.module.copy(lab.pool, ints(3), ints(0), check=True)
    lab.state[0], lab.roundings[0] = lab.state[3], lab.roundings[3]
    lab.step([0, 4])
    lab.check_state(0, 4)
