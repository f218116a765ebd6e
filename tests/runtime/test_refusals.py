"""Every argument that the host can judge is refused before a launch, by a message that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_pools import SIZES, Spy, inputs, ints, sliced

import leapgen
from leapgen.runtime import host

Call = Callable[[host.Module, host.Pool], object]


def state(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


def with_input(index: int, tensor: Any) -> Call:
    def call(module: host.Module, pool: host.Pool) -> object:
        given = inputs(2)
        given[index] = tensor
        return module.step(pool, ints(0, 1), *given)

    return call


def stepped(**keywords: Any) -> Call:
    return lambda module, pool: module.step(pool, ints(0, 1), *inputs(2), **keywords)


BAD: dict[str, tuple[Call, str]] = {
    "rows": (with_input(0, inputs(3)[0]), r"key: expected shape \[2, 2, 8\], found \[3, 2, 8\]"),
    "heads": (with_input(1, state(2, 3, 16)), r"value: expected shape \[2, 4, 16\]"),
    "axis": (with_input(1, state(2, 4, 8)), r"value: expected shape \[2, 4, 16\]"),
    "dtype": (with_input(0, state(2, 2, 8)), r"key: expected torch.bfloat16, found torch.float32"),
    "constant": (with_input(2, state(2, 4)), r"bias: expected shape \[4\], found \[2, 4\]"),
    "no tensor": (with_input(2, 1.0), r"bias: expected a dense torch tensor, found float"),
    "device": (
        with_input(1, torch.empty(2, 4, 16, device="meta")),
        r"value: expected device cpu, found meta",
    ),
    "too few": (
        lambda m, p: m.step(p, ints(0, 1), *inputs(2)[:2]),
        r"inputs: expected 3 \(key, value, bias\), found 2",
    ),
    "slots dtype": (
        lambda m, p: m.step(p, torch.tensor([0, 1]), *inputs(2)),
        r"slots: expected torch.int32, found torch.int64",
    ),
    "slots shape": (
        lambda m, p: m.reset(p, ints(0, 1)[:, None]),
        r"slots: expected an int32 tensor \[rows\], found \[2, 1\]",
    ),
    "slots list": (lambda m, p: m.reset(p, [0]), r"slots: expected an int32 tensor .* found list"),  # type: ignore[arg-type]
    "first slot": (stepped(first_slot=-1), r"first_slot: expected an integer of at least 0"),
    "first slot bool": (stepped(first_slot=True), r"first_slot: .* found True"),
    "out shape": (stepped(out=state(2, 4, 8)), r"out: expected shape \[2, 4, 16\]"),
    "out dtype": (
        stepped(out=state(2, 4, 16, dtype=torch.float16)),
        r"out: expected torch.float32, found torch.float16",
    ),
    "out overlap": (
        stepped(out=state(1, 4, 16).expand(2, 4, 16)),
        r"out: expected elements that do not overlap, found strides \[0, 16, 1\]",
    ),
    "state layout": (
        lambda m, p: m.materialize(p, ints(0), layout="VV"),
        r"layout: expected VK or KV, found VV",
    ),
    "state shape": (
        lambda m, p: m.load_state(p, ints(0), state(1, 4, 8, 16)),
        r"state: expected shape \[1, 4, 16, 8\], found \[1, 4, 8, 16\]",
    ),
    "state dtype": (
        lambda m, p: m.load_state(p, ints(0), state(1, 4, 16, 8, dtype=torch.bfloat16)),
        r"state: expected torch.float32, found torch.bfloat16",
    ),
    "position": (
        lambda m, p: m.load_state(p, ints(0), state(1, 4, 16, 8), -1),
        r"position: expected an integer of at least 0, found -1",
    ),
    "positions": (
        lambda m, p: m.load_state(p, ints(0), state(1, 4, 16, 8), ints(1, 2)),
        r"position: expected shape \[1\], found \[2\]",
    ),
    "copy rows": (
        lambda m, p: m.copy(p, ints(0), ints(1, 2)),
        r"target: expected shape \[1\], found \[2\]",
    ),
    "not a pool": (lambda m, p: m.reset({}, ints(0)), r"pool: expected a Pool, found dict"),  # type: ignore[arg-type]
    "other plan": (
        lambda m, p: replace(m, digest="other").reset(p, ints(0)),
        r"pool: expected one made for tiny-cpu:other.*, found tiny-cpu:0123",
    ),
    "other order": (
        lambda m, p: replace(m, layout=host.Layout("keyed", lambda k, v, K, V: k * V + v)).reset(
            p, ints(0)
        ),
        r"pool: expected one made for .*keyed-.*, found .*plain-",
    ),
    "export slots": (
        lambda m, p: m.export(p, ints(-1)),
        r"slots: expected slots of at least 0, found -1",
    ),
    "import header": (
        lambda m, p: m.import_(
            p, ints(0), m.export(m.allocate(1, **{**SIZES, "window": 8}), ints(0))
        ),
        r"header: expected .*'P': 4.*, found .*'P': 8",
    ),
    "import rows": (
        lambda m, p: m.import_(p, ints(0, 1), m.export(p, ints(0))),
        r"payload: expected shape \[2, 4, 8, 16\], found \[1, 4, 8, 16\]",
    ),
    "config": (
        lambda m, p: m.with_configs(stepp={}),
        r"configs: expected one of step, flush, .*, found stepp",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_calls(tiny: host.Module, case: str) -> None:
    spy = Spy()
    module = tiny.with_backend(spy)
    call, message = BAD[case]
    with pytest.raises(host.ArgumentError, match=message):
        call(module, module.allocate(3, **SIZES))
    assert not spy.calls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"H": 3}, "HV: expected a multiple of H = 3, found 4"),
        ({"H": None}, "H: expected an integer of at least 1, found None"),
        ({"K": 12}, "K: expected an integer of at least 8, a multiple of 8, found 12"),
        ({"V": 8.0}, "V: expected an integer"),
        ({"K": 264}, "K: expected at most 256, found 264"),
        ({"window": 0}, "window: expected an integer of at least 1, found 0"),
        ({"compensators": 9}, "compensators: expected at most 8, found 9"),
        ({"drafts": 1}, "drafts: expected 0, as format exact has no kernels for them, found 1"),
        ({"slots": 0}, "slots: expected an integer of at least 1, found 0"),
        ({"device": "meta"}, r"device: expected cpu \(the module is for cpu\), found meta"),
    ],
)
def test_shapes(tiny: host.Module, change: dict[str, Any], message: str) -> None:
    with pytest.raises(host.ArgumentError, match=message):
        tiny.allocate(**{"slots": 2, **SIZES, **change})


def test_limits_of_a_module(tiny: host.Module) -> None:
    module = replace(tiny, limits=lambda K, V, H, HV, P, R: "K above 64" if K > 64 else None)
    module.allocate(1, **SIZES)
    with pytest.raises(host.ArgumentError, match="tiny for cpu: K above 64"):
        module.allocate(1, **{**SIZES, "K": 72})


def test_limits_of_drafts(tiny: host.Module) -> None:
    """The window that a flush sees has the drafts in it; what verifies them is told of both."""

    def limits(K: int, V: int, H: int, HV: int, P: int, R: int, D: int = 0) -> str | None:
        asked.append((P, D))
        return "too many drafts" if D > 3 else None

    asked: list[tuple[int, int]] = []
    kernels = {**tiny.kernels, "verify": tiny.kernels["step"]}
    module = replace(tiny, kernels=kernels, limits=limits)
    module.shape(**SIZES, drafts=3)
    assert asked == [(4, 3)]
    with pytest.raises(host.ArgumentError, match="tiny for cpu: too many drafts"):
        module.shape(**SIZES, drafts=4)


@pytest.mark.parametrize(
    ("spec", "arch", "sizes", "most"),
    [
        ("gdn", "sm120", {"K": 256, "V": 256, "compensators": 0}, 8),
        ("kda", "sm120", {"K": 128, "V": 128, "window": 64}, 8),
        ("gdn", "sm90", {"K": 128, "V": 128}, 16),
        ("gdn", "sm120", {"K": 128, "V": 128}, 16),
    ],
)
def test_drafts_that_a_block_cannot_hold(
    spec: str, arch: str, sizes: dict[str, int], most: int
) -> None:
    """By the kernel's own count of its shared memory, before anything is compiled."""
    module = leapgen.load(spec, arch=arch)
    for drafts in (0, 8, 16):
        if drafts <= most:
            module.shape(H=2, drafts=drafts, **sizes)
    if most < 16:
        with pytest.raises(host.ArgumentError, match=r"16 drafts, .* verify takes \d+ bytes"):
            module.shape(H=2, drafts=16, **sizes)


def broken(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A pool tensor that kernels could not address."""
    sizes, strides = tensor.shape, list(tensor.stride())
    room = torch.zeros(4 * tensor.untyped_storage().nbytes(), dtype=tensor.dtype)
    if name == "base":
        return room.as_strided(sizes, strides, 1)
    if name == "slot":
        return room.as_strided(sizes, [strides[0] + 1, *strides[1:]], 0)
    if name == "head":
        return room.as_strided(sizes, [8 * strides[0], strides[1] + 1, *strides[2:]], 0)
    if name == "tile":
        return room.as_strided(sizes, [8 * strides[0], 4 * strides[1], 2 * strides[2], 2], 0)
    if name == "overlap":
        return room.as_strided(sizes, [0, *strides[1:]], 0)
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("base", "record_u: expected a base aligned to 16 bytes"),
        ("slot", "record_u: expected a slot stride of a multiple of 16 bytes"),
        ("head", "record_u: expected a head stride of a multiple of 16 bytes"),
        ("tile", "record_u: expected a contiguous tile of one slot and head"),
        ("overlap", "record_u: expected elements that do not overlap"),
    ],
)
def test_pool_layouts(tiny: host.Module, what: str, message: str) -> None:
    tensors = sliced(tiny, 3)
    tensors["record_u"] = broken(what, tensors["record_u"])
    with pytest.raises(host.ArgumentError, match=message):
        tiny.pool(tensors, **SIZES)


def test_pool_tensors(tiny: host.Module) -> None:
    tensors = sliced(tiny, 3)
    with pytest.raises(host.ArgumentError, match=r"tensors: expected payload, .*, found factor"):
        tiny.pool({"factor": tensors["factor"]}, **SIZES)
    with pytest.raises(host.ArgumentError, match=r"cursor: expected shape \[3, 4\]"):
        tiny.pool({**tensors, "cursor": tensors["cursor"][:2]}, **SIZES)
    with pytest.raises(host.ArgumentError, match=r"status: expected torch\.int32"):
        tiny.pool(tensors, status=torch.zeros(4), **SIZES)
    spread = torch.zeros(3, 16, dtype=torch.int32)[:, ::4]
    with pytest.raises(host.ArgumentError, match="cursor: expected a contiguous tile"):
        tiny.pool({**tensors, "cursor": spread}, **SIZES)
    with pytest.raises(AttributeError, match="the pool has no 'codes'; its tensors: payload"):
        _ = tiny.pool(tensors, **SIZES).codes


def test_check_names_row_and_cause(tiny: host.Module) -> None:
    pool = tiny.allocate(3, **SIZES)
    cases: list[tuple[torch.Tensor, str]] = [
        (ints(0, 3), r"slots\[1\]: expected a slot below 3, found 3"),
        (ints(2, -1, 2), r"slots\[2\]: expected each slot once, found 2, as in row 0"),
        (ints(0, 1), r"slots\[1\]: expected cursors in 0..3, found \[0, 0, 4, 0\] in slot 1"),
    ]
    pool.cursor[1, 2] = 4
    for slots, message in cases:
        with pytest.raises(host.ArgumentError, match=message):
            tiny.step(pool, slots, *inputs(len(slots)), check=True)
    assert not pool.status.any()
    with pytest.raises(host.ArgumentError, match=r"source\[0\]: expected one cursor for each 2"):
        tiny.copy(pool, ints(1), ints(2), check=True)
    pool.cursor[1] = 0
    with pytest.raises(host.ArgumentError, match=r"target\[1\]: expected each slot once"):
        tiny.copy(pool, ints(0, 0), ints(1, 1), check=True)
    with pytest.raises(host.ArgumentError, match=r"source: expected no slot that is a target"):
        tiny.copy(pool, ints(0, 1), ints(1, 2), check=True)
    pool.cursor[1] = 5
    with pytest.raises(host.ArgumentError, match=r"source\[0\]: expected cursors in 0..4, found"):
        tiny.copy(pool, ints(1), ints(2), check=True)
    tiny.copy(pool, ints(0, -1, 0), ints(1, -1, 2), check=True)
    assert pool.cursor[1].eq(0).all()


def test_strides_that_kernels_cannot_take(
    tiny: host.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels take 32 bits of a stride; where there is one element, any stride will do."""
    pool = tiny.allocate(3, **SIZES)
    monkeypatch.setattr(host.checks, "LARGEST_STRIDE", 16)
    with pytest.raises(host.ArgumentError, match="key: expected a row stride below 16, found 16"):
        tiny.step(pool, ints(0, 1), *inputs(2))
    with pytest.raises(host.ArgumentError, match="payload: expected a slot stride below 16, found"):
        tiny.allocate(3, **SIZES)
    assert host.checks.stride_argument("key", "row", 1, 1 << 40) == 0


def test_heads_that_share_keys_share_a_cursor(tiny: host.Module) -> None:
    """Their record keys are one tensor a key head."""
    pool = tiny.allocate(3, **SIZES)
    pool.cursor[1] = ints(2, 2, 1, 1)
    tiny.step(pool, ints(0, 1), *inputs(2), check=True)
    pool.cursor[1] = ints(2, 2, 1, 2)
    said = r"\[1\]: expected one cursor for each 2 heads that share keys, found \[2, 2, 1, 2\] in"
    with pytest.raises(host.ArgumentError, match="slots" + said):
        tiny.step(pool, ints(0, 1), *inputs(2), check=True)
    with pytest.raises(host.ArgumentError, match="source" + said):
        tiny.copy(pool, ints(0, 1), ints(-1, 2), check=True)
    records = [replace(b, heads="HV") if b.role == "record" else b for b in tiny.buffers]
    apart = replace(tiny, buffers=tuple(records), backend=Spy())
    pool = apart.allocate(3, **SIZES)
    pool.cursor[1] = ints(2, 2, 1, 2)
    apart.step(pool, ints(0, 1), *inputs(2), check=True)  # each head has keys of its own
