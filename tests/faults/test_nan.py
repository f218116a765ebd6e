"""A NaN in a row's inputs: seen in its outputs until the window ends, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lab import HV, MATRIX, PLAIN, H, Lab

Make = Callable[..., Lab]
SLOTS, ROW, HEAD = (4, 0, 2), 1, 1  # the second row is hurt, in one head
AFTER = 4  # tokens of the window after the hurt one


@pytest.fixture
def arch() -> str:
    """Of the emulated cases; tests/gpu puts the present GPU's here."""
    return "sm90"


def run(lab: Lab, name: str = "") -> torch.Tensor:
    """Outputs of the tokens from the hurt one on, over the flush: [tokens, rows, HV, V]."""
    lab.load(SLOTS, lab.random_states(3), position=lab.window - AFTER - 2)
    outs = []
    for token in range(AFTER + 4):
        given = lab.inputs(3)
        if name and token == 1:
            given[name][ROW, HEAD] = float("nan")
        slots = torch.tensor(SLOTS, dtype=torch.int32)
        outs.append(lab.module.step(lab.pool, slots, *lab.ordered(given)))
    assert not lab.pool.status.any()
    return torch.stack(outs[1:])


def check(lab: Callable[[], Lab]) -> None:
    clean = run(lab())
    assert torch.isfinite(clean).all()
    names = [x.name for x in lab().spec.inputs if not x.constant]
    assert {"q", "k", "v", "a", "b"} <= set(names)
    for name in names:
        per_key = lab().spec.input(name).per.value == "key"
        first, heads = (HEAD * HV // H, HV // H) if per_key else (HEAD, 1)
        found = run(lab(), name)
        hurt = torch.zeros(found.shape, dtype=torch.bool)
        hurt[:, ROW, first : first + heads] = True
        assert torch.equal(found[~hurt], clean[~hurt]), name
        window = found[: AFTER + 1, ROW, first : first + heads]
        if name == "q":  # nothing of it is kept
            assert window[0].isnan().all()
            assert torch.equal(found[1:], clean[1:])
        else:
            assert window.isnan().all(), name


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_on_the_cpu(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    check(lambda: make_lab(spec, dims))


@pytest.mark.parametrize(("spec", "dims"), [("gdn", PLAIN), ("kda", MATRIX)])
def test_on_a_gpu(make_lab: Make, arch: str, spec: str, dims: tuple[int, int]) -> None:
    check(lambda: make_lab(spec, dims, arch=arch))
