"""Windows of floating codes: rows in plain order as operands of products, in the emulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import MATRIX, Lab, ints, numpy
from test_extremes import KINDS, states
from test_stale_records import poison_beyond_cursor
from test_windows import act

Make = Callable[..., Lab]
FORMATS = ("bf16-window", "fp16-window", "fp8-window")
ODD = (96, 96)  # runs of keys that lanes cannot load in two orders
CASES = [
    ("gdn", "fp8-window", MATRIX, 5, (2, 6), "sm90"),
    *(
        pytest.param(spec, name, dims, window, heads, arch, marks=pytest.mark.slow)
        for spec in ("gdn", "kda")
        for name in FORMATS
        for dims, window, heads, arch in (
            (MATRIX, 16, (1, 2), "sm90"),
            (ODD, 5, (1, 2), "sm100"),
            ((128, 32), 17, (1, 1), "sm80"),
            ((64, 80), 4, (1, 1), "sm90"),
            ((32, 64), 20, (1, 2), "sm120"),
        )
    ),
]


@pytest.mark.parametrize(("spec", "name", "dims", "window", "heads", "arch"), CASES)
def test_random_calls(
    make_lab: Make,
    spec: str,
    name: str,
    dims: tuple[int, int],
    window: int,
    heads: tuple[int, int],
    arch: str,
) -> None:
    """Steps that close windows at all cursors, over stale records, each call checked."""
    lab = make_lab(spec, dims, arch=arch, format=name, window=window, heads=heads, seed=5)
    rng = np.random.default_rng(5)
    lab.load([3, 1], lab.random_states(2), position=window - 2)
    position = np.zeros(lab.slots, int)
    position[[3, 1]] = window - 2
    lab.reset(0, 2, *range(4, lab.slots))
    for _ in range(24):
        poison_beyond_cursor(lab)
        act(lab, rng, position)
        assert (numpy(lab.pool.phase + lab.pool.cursor) == position[:, None]).all()
    lab.check_state(*range(lab.slots))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bf16-window", "fp8-window"])
def test_extreme_states(make_lab: Make, name: str, kind: str) -> None:
    """Over a window's end all that is stored stays finite."""
    lab = make_lab("gdn", MATRIX, arch="sm90", format=name, window=4, seed=2)
    lab.load([2], states(kind, *MATRIX), position=2)
    for _ in range(4):
        lab.module.step(lab.pool, ints(2), *lab.ordered(lab.inputs(1)))
    for tensor, values in lab.module.export(lab.pool, ints(2)).items():
        assert tensor == "header" or torch.isfinite(values.float()).all(), tensor


def test_a_launch_that_closes_equals_one_of_its_own(make_lab: Make) -> None:
    """Bits of the state do not depend on which launch closes the window."""
    pools = []
    for fused in (0, 1):
        lab = make_lab("kda", MATRIX, arch="sm90", format="bf16-window", window=3, seed=4)
        config = dict(lab.module.kernels["step"].config(*MATRIX, *lab.heads, 3, 0))
        assert config["fused"] == 1
        lab.module = lab.module.with_configs(step={**config, "fused": fused})
        lab.load([2], lab.random_states(1))
        for _ in range(3):
            lab.step([2])
        pools.append(numpy(lab.module.materialize(lab.pool, ints(2))))
    assert np.array_equal(*pools)
