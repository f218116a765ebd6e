"""Operators of torch on a GPU: captured, compiled, and bound once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import MATRIX, PLAIN, WINDOW, Lab, ints

from leapgen.runtime.bound import BoundStep
from leapgen.runtime.ops import operators

each_path = pytest.mark.parametrize("dims", [PLAIN, MATRIX])
PADDED = ([4, 0, -1, 2], [2, -1, -1, 4], [0, 2, 4, -1])
"""Rows of successive tokens: requests move between rows, and some rows are padding."""


def pair(make_lab: Callable[..., Lab], arch: str, spec: str, dims: tuple[int, int]) -> list[Lab]:
    """Equal pools, whose slots stand at different places of their windows."""
    labs = [make_lab(spec, dims, arch=arch) for _ in range(2)]
    states = labs[0].random_states(3)
    for lab in labs:
        for slot, position in ((0, WINDOW - 5), (2, 3), (4, WINDOW - 1)):
            lab.load([slot], states[slot // 2][None], position=position)
    return labs


def agree(one: Lab, other: Lab) -> None:
    """Cursors, and the states to the last bit."""
    slots = ints(0, 2, 4)
    assert torch.equal(one.pool["cursor"][[0, 2, 4]], other.pool["cursor"][[0, 2, 4]])
    found = [lab.module.materialize(lab.pool, slots) for lab in (one, other)]
    assert torch.equal(*found)


@each_path
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_a_captured_operator_with_padded_rows(
    make_lab: Callable[..., Lab], arch: str, spec: str, dims: tuple[int, int]
) -> None:
    """Slots are graph inputs: rows change their requests and become padding between replays."""
    eager, graphed = pair(make_lab, arch, spec, dims)
    calls = operators(graphed.module, graphed.pool)
    given, slots = graphed.inputs(4), ints(-1, -1, -1, -1)
    calls.step(slots, *graphed.ordered(given))  # compiles, on rows that are all inactive
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = calls.step(slots, *graphed.ordered(given))
    for token in range(3 * WINDOW):
        rows, fresh = PADDED[token % len(PADDED)], eager.inputs(4)
        for name, tensor in given.items():
            tensor.copy_(fresh[name])
        slots.copy_(ints(*rows))
        graph.replay()
        assert torch.equal(out, eager.step(rows, fresh))
    agree(eager, graphed)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_operator(make_lab: Callable[..., Lab], arch: str, mode: str) -> None:
    """`reduce-overhead` captures the compiled code in graphs of torch's own."""
    eager, compiled = pair(make_lab, arch, "gdn", MATRIX)
    calls = operators(compiled.module, compiled.pool)

    def layer(slots: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return calls.step(slots, *given).float() * 2 + 1

    run = torch.compile(layer, fullgraph=True, mode=None if mode == "default" else mode)
    for token in range(2 * WINDOW):
        rows, fresh = PADDED[token % len(PADDED)], eager.inputs(4)
        torch.compiler.cudagraph_mark_step_begin()
        found = run(ints(*rows), *compiled.ordered(fresh)).clone()
        assert torch.equal(found, eager.step(rows, fresh).float() * 2 + 1)
    agree(eager, compiled)


@each_path
def test_a_captured_bound_step(
    make_lab: Callable[..., Lab], arch: str, dims: tuple[int, int]
) -> None:
    """The compiled function itself, called past its adapter, is on the stream of the capture."""
    eager, graphed = pair(make_lab, arch, "gdn", dims)
    given, slots = graphed.inputs(4), ints(-1, -1, -1, -1)
    out = torch.empty(4, graphed.HV, graphed.V, dtype=torch.bfloat16)
    bound = BoundStep(graphed.module, graphed.pool, slots, graphed.ordered(given), out)
    bound.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.run()
    for token in range(2 * WINDOW):
        rows, fresh = PADDED[token % len(PADDED)], eager.inputs(4)
        for name, tensor in given.items():
            tensor.copy_(fresh[name])
        slots.copy_(ints(*rows))
        graph.replay()
        assert torch.equal(out, eager.step(rows, fresh))
    agree(eager, graphed)
