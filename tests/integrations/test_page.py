"""A pool in pages: views of padded, poisoned memory as an engine cuts it, against an own pool."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
import torch

import leapgen
from leapgen.integrations.page import Page
from leapgen.runtime.host import ArgumentError, Pool

BLOCKS, PAD = 6, 48
SIZES = {"H": 2, "HV": 4, "K": 16, "V": 24, "window": 5}
CONV = (3, 13)  # 78 bytes: what follows must be brought to a multiple of 16


def page_of(spec: str, form: str) -> Page:
    sizes = {n: s for n, s in SIZES.items() if n != "window" or not form.endswith("step")}
    return Page(leapgen.load(spec, arch="cpu", format=form), CONV, torch.bfloat16, sizes)


def cut(page: Page, start: int = 16) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Memory full of 0x7F bytes, and the states of its pages one after the other."""
    apart = -(-page.bytes // 16) * 16 + PAD
    memory = torch.full((start + BLOCKS * apart,), 0x7F, dtype=torch.int8)
    pages = memory[start:].view(BLOCKS, apart)
    states, at = [], 0
    for shape, dtype in zip(page.shapes, page.dtypes, strict=True):
        size = prod(shape) * dtype.itemsize
        states.append(pages[:, at : at + size].view(dtype).view(BLOCKS, *shape))
        at += size
    assert at == page.bytes
    for whole, part in zip(page.cut(pages[:, :at]), states[1:], strict=True):
        assert (whole.data_ptr(), whole.shape) == (part.data_ptr(), part.shape)
    return memory, states


def inputs(page: Page, rows: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in page.module.inputs:
        sizes, dtype = i.sizes((rows,), page.shape), leapgen.runtime.host.DTYPES[i.dtype]
        seeded = torch.Generator().manual_seed(7) if i.constant else g
        made.append(torch.randn(sizes, generator=seeded).to(dtype))
    return made


def ids(*slots: int) -> torch.Tensor:
    return torch.tensor(slots, dtype=torch.int32)


def start(page: Page, pool: Pool, slots: torch.Tensor, position: int) -> None:
    s = page.shape
    g = torch.Generator().manual_seed(3)
    state = torch.randn((len(slots), s.HV, s.V, s.K), generator=g)
    page.module.load_state(pool, slots, state, position, first_slot=1)


def steps(page: Page, pool: Pool, slots: torch.Tensor, at: range) -> list[torch.Tensor]:
    rows = len(slots)
    return [
        page.module.step(pool, slots, *inputs(page, rows, t), first_slot=1, check=True) for t in at
    ]


CASES = [
    ("gdn", "leapquant-int8"),
    ("gdn", "fp32-window"),
    ("gdn", "fp32-step"),
    ("gdn", "leapquant-int4"),
    ("kda", "leapquant-int8"),
]


@pytest.mark.parametrize(("spec", "form"), CASES)
def test_steps_in_pages_are_those_of_an_own_pool(spec: str, form: str) -> None:
    page = page_of(spec, form)
    memory, states = cut(page)
    pool = page.pool(states[1:])
    own = page.module.allocate(BLOCKS, **page.sizes)
    slots = ids(4, 0, 2)  # block 0 is nobody's
    before = memory.clone()
    for where in (pool, own):
        start(page, where, slots, position=3)
    found, want = (steps(page, where, slots, range(12)) for where in (pool, own))
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    changed = (memory != before)[16:].view(BLOCKS, -1)
    assert not changed[[0, 1, 3, 5]].any()
    assert not changed[:, page.bytes :].any()  # what the engine pads is not ours
    assert not changed[:, : prod(CONV) * 2].any()


@pytest.mark.parametrize(("spec", "form"), CASES)
def test_bytes_are_exact(spec: str, form: str) -> None:
    page = page_of(spec, form)
    conv = prod(CONV) * 2
    assert page.bytes == -(-conv // 16) * 16 + page.module.bytes_per_slot(**page.sizes)
    assert sum(f.skip for f in page.fields) == -conv % 16
    _, states = cut(page)
    for name, tensor in page.pool(states[1:]).items():
        assert tensor.data_ptr() % 16 == 0, name


def moved(states: Sequence[torch.Tensor], count: int, source: int, target: int) -> None:
    """As an engine copies a request's state into its next block."""
    for state in states[:count]:
        state[target] = state[source]


@pytest.mark.parametrize("at", [2, 5])
def test_a_copy_without_records_is_whole_where_a_window_ends(at: int) -> None:
    """A start at position 3 makes the first of 7 tokens close windows of 5 at 5 and 10."""
    page = page_of("gdn", "leapquant-int8")
    outputs = []
    for count in (page.copied(True), page.copied(False)):
        _, states = cut(page)
        pool = page.pool(states[1:])
        start(page, pool, ids(2), position=3)
        steps(page, pool, ids(2), range(at))
        moved(states, count, 2, 5)
        outputs.append(torch.stack(steps(page, pool, ids(5), range(at, at + 3))).float())
    same = bool(torch.equal(*outputs))
    assert same == ((3 + at) % 5 == 0)


def test_order_of_roles() -> None:
    """What a block's end needs stands in front: a prefix of the states can be copied."""
    page = page_of("kda", "leapquant-int8")
    roles = [field.buffer.role for field in page.fields]
    assert roles == sorted(
        roles, key=["payload", "scale", "compensator", "rounding", "cursor", "record"].index
    )
    assert page.copied(True) - page.copied(False) == roles.count("record") > 0


def test_wrong_states() -> None:
    page = page_of("gdn", "leapquant-int8")
    _, states = cut(page)
    with pytest.raises(ArgumentError, match=r"states: expected \d+ of bytes, found 2"):
        page.pool(states[1:3])
    with pytest.raises(ArgumentError, match=r"states\[payload\]: expected int8 \[blocks, \d+\]"):
        page.pool([states[1][:, 1:], *states[2:]])
    _, shifted = cut(page, start=8)
    with pytest.raises(ArgumentError, match=r"states\[payload\]: expected a start of a multiple"):
        page.pool(shifted[1:])


def test_sizes_without_kernels() -> None:
    module = leapgen.load("gdn", arch="cpu")
    with pytest.raises(ArgumentError, match=r"K: expected an integer .* 8, found 20"):
        Page(module, CONV, torch.bfloat16, {**SIZES, "K": 20})
