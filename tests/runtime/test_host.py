"""The host on a hand-written module of the cpu target: binding, strides, rows, refusals."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_pools import SIZES, Spy, inputs, ints, sliced

from leapgen.runtime import host


def test_step_flushes_at_the_phase(tiny: host.Module) -> None:
    pool = tiny.allocate(5, **SIZES)
    slots = ints(1, 3, -1)
    state = torch.randint(-5, 5, (3, 4, 16, 8)).float()
    tiny.load_state(pool, slots, state, position=6, check=True)
    assert pool.phase[[1, 3]].eq(2).all()
    for token in range(2):
        out = tiny.step(pool, slots, *inputs(3, value=2.0), check=True)
        assert torch.equal(out[0, :, 0], token + torch.arange(4) * 100.0)
        assert not out[2].any()
    assert not pool.cursor.any()
    assert not pool.phase.any()
    assert torch.equal(tiny.materialize(pool, slots)[:2], state[:2] + 4)
    assert not tiny.materialize(pool, slots)[2].any()
    turned = tiny.materialize(pool, slots, layout="KV")
    assert torch.equal(turned.mT, tiny.materialize(pool, slots))


def test_allocation_is_what_bytes_per_slot_says(tiny: host.Module) -> None:
    pool = tiny.allocate(7, **SIZES)
    held = sum(t.untyped_storage().nbytes() for t in pool.values())
    assert held == 7 * tiny.bytes_per_slot(**SIZES)
    assert all(t.stride(0) * t.itemsize % 16 == 0 for t in pool.values())


def test_slices_are_used_in_place(tiny: host.Module) -> None:
    tensors = sliced(tiny, 5)
    pool = tiny.pool(tensors, **SIZES)
    slots = ints(4, 0)
    state = torch.randint(-5, 5, (2, 4, 16, 8)).float()
    tiny.load_state(pool, slots, state)
    for _ in range(4):
        tiny.step(pool, slots, *inputs(2))
    assert torch.equal(tiny.materialize(pool, slots), state + 4)
    assert not tensors["payload"][1:4].any()
    for tensor in tensors.values():
        held = torch.zeros(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=torch.bool)
        held.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
        assert tensor.as_strided(held.shape, (1,), 0)[~held].eq(1).all()


def test_kernels_receive_the_callers_pointers(tiny: host.Module) -> None:
    spy = Spy()
    module = tiny.with_backend(spy)
    tensors = sliced(tiny, 3)
    pool = module.pool(tensors, **SIZES)
    key, value, bias = inputs(2)
    value = torch.ones(16, 9, 4)[:, 1::4].permute(1, 2, 0)
    out = torch.empty(16, 4, 2).permute(2, 1, 0)
    module.step(pool, ints(0, 1), key, value, bias, out=out)
    pointers = {a.data_ptr() for call in spy.calls for a in call if isinstance(a, torch.Tensor)}
    expected = [tensors["record_u"], tensors["record_key"], tensors["cursor"], key, value, out]
    assert all(t.data_ptr() in pointers for t in expected)
    views = [a for call in spy.calls for a in call if isinstance(a, torch.Tensor)]
    assert not any(v.dtype == torch.bfloat16 for v in views)
    assert all(v.dim() == 1 for v in views)


def test_any_input_stride(tiny: host.Module) -> None:
    key, value, bias = inputs(2)
    want = tiny.step(tiny.allocate(3, **SIZES), ints(0, 2), key, value, bias)
    pool = tiny.allocate(3, **SIZES)
    slots = torch.tensor([9, 0, 9, 2, 9], dtype=torch.int32)[1::2]
    odd = torch.empty(2, 8, 2, dtype=torch.bfloat16).copy_(key.mT).mT
    out = torch.empty(16, 3, 4).permute(1, 2, 0)[:2]
    given = torch.ones(1, 4, 1).expand(2, 4, 16)
    got = tiny.step(pool, slots, odd, given, (torch.arange(8) * 50.0)[::2], out=out)
    assert got is out
    assert torch.equal(got, want)


def test_no_rows_launch_nothing(tiny: host.Module) -> None:
    spy = Spy()
    module = tiny.with_backend(spy)
    pool = module.allocate(2, **SIZES)
    none = ints()
    assert module.step(pool, none, *inputs(0)).shape == (0, 4, 16)
    assert module.materialize(pool, none).shape == (0, 4, 16, 8)
    module.reset(pool, none)
    module.copy(pool, none, none)
    module.load_state(pool, none, torch.empty(0, 4, 16, 8))
    assert not spy.compiled
    assert not spy.calls


def test_no_compensators_and_one_slot(tiny: host.Module) -> None:
    sizes = {**SIZES, "compensators": 0}
    pool = tiny.allocate(1, **sizes)
    tiny.reset(pool, ints(0), check=True)
    tiny.step(pool, ints(0), *inputs(1), check=True)
    assert pool.cursor.eq(1).all()


def test_first_slot_and_out_of_range(tiny: host.Module) -> None:
    pool = tiny.allocate(3, **SIZES)
    out = tiny.step(pool, ints(0, 1, 3), *inputs(3), first_slot=1)
    assert not out[0].any()
    assert not out[2].any()
    assert pool.cursor[:, 0].tolist() == [0, 1, 0]
    assert pool.status.tolist() == [1, 0, 0, 0]
    pool.cursor[2, 3] = 9
    tiny.step(pool, ints(2), *inputs(1))
    assert pool.status.tolist() == [1, 1, 0, 0]


def test_one_compilation_for_all_threads(tiny: host.Module) -> None:
    spy = Spy()
    module = tiny.with_backend(spy)
    pool = module.allocate(2, **SIZES)
    threads = [threading.Thread(target=module.reset, args=(pool, ints(0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spy.compiled == ["reset"]
    assert len(spy.calls) == 8
    module.reset(module.allocate(3, **{**SIZES, "V": 8}), ints(0))
    assert spy.compiled == ["reset", "reset"]
    module.with_configs(step={"unroll": 2}).step(pool, ints(0), *inputs(1))
    module.step(pool, ints(0), *inputs(1))
    assert spy.compiled == ["reset", "reset", "step", "flush", "step"]


def test_compile_errors_are_short(tiny: host.Module) -> None:
    def broken(*sizes: int) -> Any:
        raise RuntimeError("x" * 100_000)

    kernels = {**tiny.kernels, "reset": host.Kernel(broken, lambda *sizes: {})}
    module = replace(tiny, kernels=kernels, backend=Spy())
    with pytest.raises(host.CompileError, match=r"tiny for cpu, reset, .*xxx") as caught:
        module.reset(module.allocate(1, **SIZES), ints(0))
    assert len(str(caught.value)) < 2000
