"""The same on a real GPU, compiled by nvcc; and what only a device has: graphs and streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from draft_lab import draft_inputs
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
from test_emulated_drafts import (
    test_drafts_are_steps_from_the_same_slot,
    test_later_drafts_change_nothing,
    test_random_rounds,
)
from test_nan import test_on_a_gpu

from leapgen.oracle.tolerance import distance

__all__ = [
    "test_a_copy_in_rounds",
    "test_drafts_are_steps_from_the_same_slot",
    "test_extreme_states",
    "test_later_drafts_change_nothing",
    "test_on_a_gpu",
    "test_other_formats",
    "test_pools_of_two_archs_exchange_slots",
    "test_random_calls",
    "test_random_rounds",
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


@each_path
def test_graphs_of_drafts(make_lab: Callable[..., Lab], arch: str, dims: tuple[int, int]) -> None:
    """A captured verify that commits the round before: lengths, accepted counts, cursors and
    flushes are the device's, so replays over changing ones equal eager calls."""
    eager, graphed = (make_lab("gdn", dims, arch=arch, drafts=8) for _ in range(2))
    states, slots = eager.random_states(3), ints(4, 0, -1, 2)
    given, lengths, accepted = draft_inputs(eager, 4, 5), ints(5, 5, 5, 5), ints(0, 0, 0, 0)

    def verify(lab: Lab) -> torch.Tensor:
        return lab.module.verify(
            lab.pool, slots, *lab.ordered(given), lengths=lengths, accepted=accepted
        )

    for lab in (eager, graphed):
        lab.load([0, 2, 4], states, position=WINDOW - 5)
        verify(lab)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = verify(graphed)
    for turn in range(2 * WINDOW):
        for name, tensor in draft_inputs(eager, 4, 5).items():
            given[name].copy_(tensor)
        lengths.copy_(torch.randint(0, 6, (4,)))
        accepted.fill_(turn % 5)
        graph.replay()
        assert torch.equal(out, verify(eager))
        assert torch.equal(eager.pool.cursor, graphed.pool.cursor)
    assert torch.equal(eager.pool.payload, graphed.pool.payload)
