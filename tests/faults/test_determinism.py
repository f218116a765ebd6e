"""Kind 14 and the contract on bits: the same slot and inputs give the same bits, always."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import HV, MATRIX, PLAIN, Lab, ints

Make = Callable[..., Lab]


def contents(lab: Lab, *slots: int) -> list[torch.Tensor]:
    data = lab.module.export(lab.pool, ints(*slots))
    return [values for name, values in data.items() if name != "header"]


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_rows_and_neighbours_do_not_matter(
    make_lab: Make, spec: str, dims: tuple[int, int]
) -> None:
    """One slot alone, and the same among others in any row while they flush at other times."""
    alone, among = make_lab(spec, dims, window=5), make_lab(spec, dims, window=5)
    states = alone.random_states(1)
    alone.load([2], states)
    among.reset(0, 1, 3)
    among.load([4], states)
    for token in range(12):
        given = alone.inputs(4)
        rows = [0, 3, 1]
        rows.insert(token % 4, 4)
        want = alone.step(
            [2],
            {
                n: x if alone.spec.input(n).constant else x[token % 4][None]
                for n, x in given.items()
            },
        )
        out = among.step(rows, given)
        assert torch.equal(out[token % 4], want[0])
        if token % 3 == 0:
            among.reset(rows[token % 4 - 1])
    for mine, other in zip(contents(alone, 2), contents(among, 4), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_five_runs_are_equal(make_lab: Make, spec: str) -> None:
    """A flush at every step (W = 1), five times."""
    runs = []
    for _ in range(5):
        lab = make_lab(spec, MATRIX, window=1)
        lab.load([1, 3], lab.random_states(2))
        outs = [lab.step([3, 1]) for _ in range(6)]
        assert not lab.pool.cursor[[1, 3]].any()
        runs.append([*outs, *contents(lab, 1, 3)])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_bits_of_heads_are_their_own(make_lab: Make) -> None:
    """What one value head receives does not change another's."""
    labs = [make_lab("gdn"), make_lab("gdn")]
    states = labs[0].random_states(1)
    for lab in labs:
        lab.load([0], states)
    for _ in range(20):
        given = labs[0].inputs(1)
        other = {n: x.clone() for n, x in given.items()}
        other["v"][:, 1] *= 3
        other["b"][:, 1] += 1
        outs = [lab.step([0], x) for lab, x in zip(labs, (given, other), strict=True)]
        kept = [head for head in range(HV) if head != 1]
        assert torch.equal(outs[0][:, kept], outs[1][:, kept])
        assert not torch.equal(outs[0][:, 1], outs[1][:, 1])
