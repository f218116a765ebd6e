"""A module as operators of torch, and the step that is bound once."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from tiny_pools import SIZES, Spy, ints, sliced

import leapgen
from leapgen.runtime import bound as bound_module
from leapgen.runtime import host
from leapgen.runtime.bound import BoundStep
from leapgen.runtime.ops import operators

H, HV, K, V = 2, 4, 16, 24


@pytest.fixture(scope="module")
def gdn() -> host.Module:
    return leapgen.load("gdn", arch="cpu")


def tokens(rows: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    sizes = [(rows, H, K), (rows, H, K), (rows, HV, V), (rows, HV), (rows, HV)]
    raw = [torch.randn(s, generator=g).bfloat16() for s in sizes]
    return [*raw, torch.zeros(HV), torch.zeros(HV)]


def allocate(module: host.Module, drafts: int = 0) -> host.Pool:
    return module.allocate(8, H=H, HV=HV, K=K, V=V, drafts=drafts)


def same(a: host.Pool, b: host.Pool) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_operators_are_the_modules_calls(gdn: host.Module) -> None:
    plain, pool = allocate(gdn), allocate(gdn)
    calls, slots = operators(gdn, pool), ints(3, 0, -1, 7)
    state = torch.randn(4, HV, V, K)
    position = ints(3, 15, 0, 8)
    gdn.load_state(plain, slots, state, position)
    calls.load_state(slots, state, position)
    for token in range(40):
        given = tokens(4, token)
        assert torch.equal(calls.step(slots, *given), gdn.step(plain, slots, *given))
    for layout in ("VK", "KV"):
        found = calls.materialize(slots, layout=layout)
        assert torch.equal(found, gdn.materialize(plain, slots, layout=layout))
    assert same(pool, plain)
    calls.reset(ints(3))
    gdn.reset(plain, ints(3))
    assert same(pool, plain)


def test_a_compiled_graph_holds_the_step(gdn: host.Module) -> None:
    """No graph break; flushes, which are decided on the device, included."""
    plain, pool = allocate(gdn), allocate(gdn)
    calls, slots = operators(gdn, pool), ints(3, 0, -1, 7)

    def layer(*given: torch.Tensor) -> torch.Tensor:
        return calls.step(slots, *given).float() * 2 + 1

    compiled = torch.compile(layer, fullgraph=True)
    for token in range(20):
        given = tokens(4, token)
        assert torch.equal(compiled(*given), gdn.step(plain, slots, *given).float() * 2 + 1)
    assert same(pool, plain)


@pytest.mark.parametrize("call", ["step", "load_state", "materialize", "reset"])
def test_opcheck(gdn: host.Module, call: str) -> None:
    pool = allocate(gdn)
    calls, slots = operators(gdn, pool), ints(3, 0, -1, 7)
    state = torch.randn(4, HV, V, K)
    middle = {
        "step": [*tokens(4, 0), torch.empty(4, HV, V, dtype=torch.bfloat16)],
        "load_state": [state, ints(0, 1, 2, 3), True],
        "materialize": [state, True],
        "reset": [],
    }[call]
    given = (*calls.tensors, slots, *middle, calls.sizes, 0, calls.variant)
    checked = torch.library.opcheck(calls.calls[call], given)
    assert set(checked.values()) == {"SUCCESS"}


def test_a_pool_can_be_freed(gdn: host.Module) -> None:
    pool = allocate(gdn)
    operators(gdn, pool).step(ints(1), *tokens(1, 0))
    gone = weakref.ref(pool["payload"])
    del pool
    gc.collect()
    assert gone() is None


def test_two_variants_of_a_family(gdn: host.Module) -> None:
    """Another config of the same spec is another variant of the same operators."""
    other = gdn.with_table([], pin=True)
    first, second = (operators(m, allocate(m)) for m in (gdn, other))
    assert first.family is second.family
    assert first.variant != second.variant
    assert operators(other, allocate(other)).variant == second.variant
    given = tokens(2, 0)
    assert torch.equal(first.step(ints(0, 1), *given), second.step(ints(0, 1), *given))


def test_a_pool_of_another_module_is_refused(gdn: host.Module) -> None:
    kda = leapgen.load("kda", arch="cpu")
    with pytest.raises(host.ArgumentError, match="pool: expected one made for gdn"):
        operators(gdn, allocate(kda))


def test_bound_steps_take_any_tensors(gdn: host.Module) -> None:
    """The same, others, other strides, and data exchanged under the same object."""
    plain, pool, slots = allocate(gdn), allocate(gdn), ints(3, 0, -1, 7)
    given, out = tokens(4, 0), torch.empty(4, HV, V, dtype=torch.bfloat16)
    bound = BoundStep(gdn, pool, slots, given, out)

    def check(*tensors: torch.Tensor) -> None:
        bound.step(*tensors, out)
        assert torch.equal(out, gdn.step(plain, *tensors))

    check(slots, *given)
    check(slots, *given)
    given[2] = tokens(4, 1)[2].transpose(1, 2).contiguous().transpose(1, 2)
    check(slots, *given)
    given[0].data = tokens(4, 2)[0]
    check(ints(7, -1, 0, 3), *given)
    bound.run()
    assert torch.equal(out, gdn.step(plain, ints(7, -1, 0, 3), *given))
    assert same(pool, plain)


def test_bound_steps_refuse_what_steps_refuse(gdn: host.Module) -> None:
    pool, slots, given = allocate(gdn), ints(1, 2), tokens(2, 0)
    out = torch.empty(2, HV, V, dtype=torch.bfloat16)
    with pytest.raises(host.ArgumentError, match="inputs: expected 7"):
        BoundStep(gdn, pool, slots, given[1:], out)
    bound = BoundStep(gdn, pool, slots, given, out)
    before = {name: tensor.clone() for name, tensor in pool.items()}
    with pytest.raises(host.ArgumentError, match=r"k: expected shape \[2, 2, 16\]"):
        bound.step(slots, given[0], given[1][:, :1], *given[2:], out)
    with pytest.raises(host.ArgumentError, match=r"a: expected torch\.bfloat16"):
        bound.step(slots, *given[:3], given[3].float(), *given[4:], out)
    with pytest.raises(host.ArgumentError, match="out: expected elements that do not overlap"):
        bound.step(slots, *given, out[:1].expand(2, -1, -1))
    assert all(torch.equal(before[name], pool[name]) for name in pool)


def test_a_refused_call_leaves_a_bound_step_as_it_was(gdn: host.Module) -> None:
    """Not with the new slots and the old inputs, which `run` would then launch."""
    plain, pool, given = allocate(gdn), allocate(gdn), tokens(2, 0)
    out = torch.empty(2, HV, V, dtype=torch.bfloat16)
    bound = BoundStep(gdn, pool, ints(1, 2), given, out)
    with pytest.raises(host.ArgumentError, match="out: expected shape"):
        bound.step(ints(6, 7)[:], *tokens(2, 1), out[:1])
    with pytest.raises(ValueError, match="zip"):
        bound.step(ints(6, 7), *tokens(2, 1))
    bound.run()
    gdn.step(plain, ints(1, 2), *given)
    assert same(pool, plain)


def test_arguments_are_those_of_a_step(tiny: host.Module) -> None:
    """Every kernel, every argument, on a sliced pool: equal numbers, equal pointers."""
    spy = Spy()
    module = tiny.with_backend(spy)
    pool = module.pool(sliced(module, 5), **SIZES)
    slots, key = ints(4, -1), torch.ones(2, 2, 8, dtype=torch.bfloat16)
    given = [key, torch.ones(2, 16, 4).mT, torch.arange(4) * 100.0]
    out = module.step(pool, slots, *given)
    wanted, names = spy.calls[:], spy.launched[:]
    BoundStep(module, pool, slots, given, out).run()
    assert spy.launched == names * 2
    for one, two in zip(wanted, spy.calls[len(wanted) :], strict=True):
        for a, b in zip(one, two, strict=True):
            if isinstance(a, torch.Tensor):
                assert (a.shape, a.dtype, a.data_ptr()) == (b.shape, b.dtype, b.data_ptr())
            else:
                assert a == b


@pytest.mark.parametrize("cached", [False, True])
def test_adapters_are_passed_by(cached: bool) -> None:
    """TileLang's tvm_ffi kernels, compiled now or loaded; others are called as they are."""

    def main(*_: object) -> str:
        return "main"

    library = SimpleNamespace(main=main)
    found = library if cached else SimpleNamespace(jit=lambda: library)
    adapter = SimpleNamespace(get_exportable_executable=lambda: found, result_idx=[])
    assert bound_module._direct(SimpleNamespace(adapter=adapter)) is main  # type: ignore[arg-type]
    adapter.result_idx = [1]
    kernel = SimpleNamespace(adapter=adapter)
    assert bound_module._direct(kernel) is kernel  # type: ignore[arg-type, comparison-overlap]
    assert bound_module._direct(main) is main


def test_no_rows_launch_nothing(gdn: host.Module) -> None:
    """In any number of calls, with the same tensors and with others."""
    pool = allocate(gdn)
    calls = operators(gdn, pool)
    out = torch.empty(0, HV, V, dtype=torch.bfloat16)
    bound = BoundStep(gdn, pool, ints(), tokens(0, 0), out)
    for seed in range(3):
        assert calls.step(ints(), *tokens(0, seed)).shape == (0, HV, V)
        bound.step(ints(), *tokens(0, seed), out.clone())
    bound.run()
    with pytest.raises(host.ArgumentError, match=r"q: expected shape \[0, 2, 16\]"):
        bound.step(ints(), *tokens(1, 0), out)


def test_a_bound_step_drops_drafts(gdn: host.Module) -> None:
    """As the module's step does: a commit that follows finds none."""
    plain, pool = allocate(gdn, drafts=4), allocate(gdn, drafts=4)
    slots, given = ints(3, 0), tokens(2, 0)
    drafts = [torch.stack([x, x, x], dim=1) for x in given[:5]]
    out = torch.empty(2, HV, V, dtype=torch.bfloat16)
    for each in (plain, pool):
        gdn.verify(each, ints(0, 3, 5), *(torch.cat([x, x[:1]]) for x in drafts), *given[5:])
    gdn.step(plain, slots, *given)
    BoundStep(gdn, pool, slots, given, out).run()
    assert pool.pending[[0, 3, 5], 0].tolist() == [0, 0, 3]
    for each in (plain, pool):
        gdn.commit(each, slots, ints(3, 3))
    assert pool.cursor[[0, 3, 5], 0].tolist() == [1, 1, 0]
    assert same(pool, plain)


def test_operators_refuse_pools_with_drafts(gdn: host.Module) -> None:
    with pytest.raises(host.ArgumentError, match="pool: expected one without drafts, found drafts"):
        operators(gdn, allocate(gdn, drafts=2))
