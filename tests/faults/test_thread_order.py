"""Kind 14 on the GPU's code: no result depends on the order of blocks and threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import HV, MATRIX, WINDOW, Lab, ints

from leapgen.runtime.emulated import Emulator


@pytest.mark.parametrize("seed", [0, 5])
def test_thread_order_does_not_matter(make_lab: Callable[..., Lab], seed: int) -> None:
    """Blocks and threads in another order (a race check): the same bits, flushes included."""
    labs = [make_lab("gdn", MATRIX, arch="sm90") for _ in range(2)]
    labs[1].module = labs[1].module.with_backend(Emulator(seed=seed))
    given = labs[0].random_states(2)
    for lab in labs:
        lab.load([0, 3], given, position=WINDOW - 3)
    for _ in range(4):
        tokens = labs[0].inputs(2)
        assert torch.equal(*(lab.step([3, 0], tokens) for lab in labs))
    exports = [lab.module.export(lab.pool, ints(0, 3)) for lab in labs]
    for name, values in exports[0].items():
        assert name == "header" or torch.equal(values, exports[1][name]), name
    assert values.shape[1] == HV
