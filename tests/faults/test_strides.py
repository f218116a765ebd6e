"""Kinds 4 and 10: any stride that is allowed, any offset; nothing is lost in a copy."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, H, Lab, ints, numpy, shaken

from leapgen.oracle.tolerance import distance
from leapgen.runtime.host import DTYPES

Make = Callable[..., Lab]
SPECS = ("gdn", "kda")
MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for it


@pytest.mark.parametrize("dims", [PLAIN, MATRIX])
@pytest.mark.parametrize("spec", SPECS)
def test_odd_views_give_the_same_bits(make_lab: Make, spec: str, dims: tuple[int, int]) -> None:
    plain, odd = make_lab(spec, dims), make_lab(spec, dims)
    states = plain.random_states(3)
    for lab in (plain, odd):
        lab.load([0, 2, 4], states, position=10)
    for _ in range(WINDOW):
        given = plain.inputs(3)
        want = plain.step([4, 0, 2], given)
        assert torch.equal(odd.step([4, 0, 2], given, odd=True), want)
    out = shaken(torch.zeros(3, HV, dims[1], dtype=want.dtype), 3)
    given = plain.inputs(3)
    slots = torch.tensor([[4, -1], [0, -1], [2, -1]], dtype=torch.int32)[:, 0]
    got = odd.module.step(odd.pool, slots, *odd.ordered(given), out=out)
    assert got is out
    assert torch.equal(out, plain.step([4, 0, 2], given))
    state = shaken(torch.zeros(3, HV, dims[1], dims[0]), 5)
    odd.module.materialize(odd.pool, slots, out=state)
    assert torch.equal(state, plain.module.materialize(plain.pool, slots))
    other = odd.module.materialize(odd.pool, slots, layout="KV")
    assert torch.equal(other.mT, state)


@pytest.mark.parametrize("spec", SPECS)
def test_one_value_for_all(make_lab: Make, spec: str) -> None:
    """Inputs with strides of zero, as `expand` makes them."""
    lab = make_lab(spec)
    lab.reset(0, 1)
    given = {
        x.name: torch.full(
            (1,) * len(x.sizes(1, lab.pool.shape)), 0.25, dtype=DTYPES[x.dtype]
        ).expand(x.sizes(2, lab.pool.shape))
        for x in lab.module.inputs
    }
    lab.step([1, 0], given)
    lab.check_state(0, 1)


@pytest.mark.parametrize("spec", SPECS)
def test_offsets_beyond_32_bits(make_lab: Make, spec: str) -> None:
    """Slots that lie 2^30 elements apart, in memory that is reserved but never all used."""
    lab = make_lab(spec)
    apart = 2**30
    space = mmap.mmap(
        -1, 5 * 4 * apart, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    )
    whole = torch.frombuffer(space, dtype=torch.uint8)
    tensors = {}
    for index, buffer in enumerate(lab.module.buffers):
        dtype = DTYPES[buffer.dtype]
        base = whole[index << 20 :].view(dtype)
        _, *inner = buffer.strides(lab.pool.shape)
        tensors[buffer.name] = base.as_strided((5, *buffer.sizes(lab.pool.shape)), (apart, *inner))
    pool = lab.module.pool(tensors, **lab.sizes)
    slots = ints(4, 3)
    lab.load([4, 3], lab.random_states(2))
    lab.module.load_state(pool, slots, torch.tensor(lab.state[[4, 3]]).float().mT)
    for _ in range(WINDOW + 3):
        given = lab.inputs(2)
        out = lab.module.step(pool, slots, *lab.ordered(given))
        assert torch.equal(out, lab.step([4, 3], given))
    lab.module.copy(pool, ints(4), ints(2))
    found = lab.module.materialize(pool, ints(2, 3), layout="KV")
    assert (distance(numpy(found), lab.state[[4, 3]], axes=2) < 0.05).all()
    lab.module.reset(pool, slots)
    assert not lab.module.materialize(pool, slots).any()
    del pool, tensors, base, whole


def test_heads_may_be_padded(make_lab: Make) -> None:
    """A head stride larger than the tile; slots inside heads."""
    lab = make_lab("gdn")
    tensors = {}
    for buffer in lab.module.buffers:
        dtype = DTYPES[buffer.dtype]
        unit = 16 // dtype.itemsize
        heads, *tile = buffer.sizes(lab.pool.shape)
        _, head, *inner = buffer.strides(lab.pool.shape)
        if buffer.tile:
            sizes, strides = (heads, 5, *tile), (5 * (head + unit), head + unit, *inner)
            base = torch.zeros(heads * strides[0], dtype=dtype)
            tensors[buffer.name] = base.as_strided(sizes, strides).transpose(0, 1)
        else:
            tensors[buffer.name] = torch.zeros(5, 4 * unit, dtype=dtype)[:, :heads]
    assert heads in (H, HV)
    lab.pool = lab.module.pool(tensors, **lab.sizes)
    lab.load([1, 4], lab.random_states(2))
    for _ in range(WINDOW + 1):
        lab.step([4, 1])
    lab.check_state(1, 4)
