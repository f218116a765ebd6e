"""The same on a real GPU, compiled by nvcc; and what only a device has: graphs and streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import MATRIX, PLAIN, WINDOW, Lab, ints, numpy
from test_emulated import (  # collected here again, with the fixtures of this folder
    test_a_copy_in_rounds,
    test_extreme_states,
    test_other_formats,
    test_pools_of_two_archs_exchange_slots,
    test_random_calls,
    test_rows_that_are_not_active,
    test_states_of_any_stride,
    test_three_value_heads_a_key_head,
    test_which_path_is_taken,
)
from test_nan import test_on_a_gpu

from leapgen.oracle.tolerance import distance

__all__ = [
    "test_a_copy_in_rounds",
    "test_extreme_states",
    "test_on_a_gpu",
    "test_other_formats",
    "test_pools_of_two_archs_exchange_slots",
    "test_random_calls",
    "test_rows_that_are_not_active",
    "test_states_of_any_stride",
    "test_three_value_heads_a_key_head",
    "test_which_path_is_taken",
]

each_path = pytest.mark.parametrize("dims", [PLAIN, MATRIX])


@each_path
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_graphs(make_lab: Callable[..., Lab], arch: str, spec: str, dims: tuple[int, int]) -> None:
    """A captured step, replayed over two windows: flushes are decided on the device."""
    eager, graphed = make_lab(spec, dims, arch=arch), make_lab(spec, dims, arch=arch)
    states = eager.random_states(3)
    for lab in (eager, graphed):
        lab.load([0, 2, 4], states, position=WINDOW - 5)
        lab.step([4, 0, -1, 2], lab.inputs(4))  # compiles
    given = graphed.inputs(4)
    slots = ints(4, 0, -1, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = graphed.module.step(graphed.pool, slots, *graphed.ordered(given))
    for _ in range(2 * WINDOW):
        token = eager.inputs(4)
        for name, tensor in given.items():
            tensor.copy_(token[name])
        graph.replay()
        assert torch.equal(out, eager.step([4, 0, -1, 2], token))
    found = [numpy(lab.module.materialize(lab.pool, ints(0, 2, 4))) for lab in (eager, graphed)]
    assert (distance(*found, axes=2) == 0).all()


def test_another_stream(make_lab: Callable[..., Lab], arch: str) -> None:
    """Kernels run on the current stream, after what it already holds."""
    lab = make_lab("gdn", MATRIX, arch=arch)
    lab.load([1], lab.random_states(1))
    given = lab.inputs(1)
    want = lab.step([1], given)
    lab.load([1], numpy(torch.zeros(1, 4, *MATRIX)) + 1)
    late = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for name, tensor in late.items():
            tensor.copy_(given[name])
        out = lab.module.step(lab.pool, ints(1), *lab.ordered(late))
    stream.synchronize()
    assert out.shape == want.shape
    check = make_lab("gdn", MATRIX, arch=arch)
    check.load([1], numpy(torch.zeros(1, 4, *MATRIX)) + 1)
    assert torch.equal(out, check.step([1], given))
