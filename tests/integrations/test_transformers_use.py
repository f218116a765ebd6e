"""What a user does with a model that serves: turns, padding, copies, forgotten caches, compilation,
two models in one process, an end. One family; the others differ in their functions only."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

hf = pytest.importorskip("transformers")

from tiny_models import build  # noqa: E402

from leapgen.integrations import transformers_hooks as hooks  # noqa: E402
from leapgen.integrations.transformers import Unsupported, enable  # noqa: E402
from leapgen.runtime.host import ArgumentError  # noqa: E402

FAMILY = "qwen3_5"
GREEDY = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def model() -> Any:
    return build(FAMILY)


def ids(rows: int = 3, length: int = 21, seed: int = 1) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(seed))


def stock(model: Any) -> Any:
    return hf.DynamicCache(config=model.config)


def logits(model: Any, tokens: torch.Tensor, cache: Any, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens, past_key_values=cache, **more).logits
    return found.float()


def error(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found - want).norm() / want.norm())


def test_turns_and_padding(model: Any) -> None:
    """A batch padded on the left; its answer; a second turn of several tokens; and single ones.
    The control loses the states between the turns."""
    tokens, mask = ids(length=40), torch.ones(3, 40, dtype=torch.long)
    mask[0, :7], mask[1, :3] = 0, 0
    adapter, runs = enable(model, slots=6), []
    for cache, lose in ((stock(model), False), (adapter.cache(), False), (adapter.cache(), True)):
        found, at = [], 0
        for count in (21, *[1] * 4, 9, *[1] * 6):
            part = tokens[:, at : (at := at + count)]
            if lose and at > 21:
                for state in cache.states.values():
                    state.module.reset(state.pool, state.taken())
            found.append(logits(model, part, cache, attention_mask=mask[:, :at]))
        runs.append(torch.cat(found[1:], dim=1))
    assert error(runs[1], runs[0]) < 0.05
    assert error(runs[2], runs[0]) > 0.3


def test_generate_goes_on_from_its_cache(model: Any) -> None:
    """The second call gets the whole text and computes only what is new."""
    with enable(model, slots=3).cache() as cache:
        first = model.generate(ids(), past_key_values=cache, **GREEDY).sequences
        steps = cache.states[0].steps
        text = torch.cat([first, ids(length=5, seed=2)], dim=1)
        second = model.generate(text, past_key_values=cache, **GREEDY).sequences
        assert second.shape == (3, 21 + 6 + 5 + 6)
        assert (cache.states[0].steps, cache.states[0].loads) == (steps + 5, 2)


def test_a_copied_cache_is_a_fork(model: Any) -> None:
    """A prompt that serves twice, as transformers' own caches do: same bits, slots of its own."""
    adapter = enable(model, slots=6)
    cache = adapter.cache()
    logits(model, ids(), cache)
    logits(model, ids(length=1), cache)
    fork, empty = copy.deepcopy(cache), copy.deepcopy(adapter.cache())
    assert (adapter.free, empty.get_seq_length(), fork.get_seq_length()) == (0, 0, 22)
    found = []
    for kept in (cache, fork):
        found.append([logits(model, ids(length=1, seed=n), kept) for n in range(20)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    state, other = cache.states[0], fork.states[0]
    assert not set(state.taken().tolist()) & set(other.taken().tolist())
    assert (other.position, other.steps) == (state.position, state.steps) == (42, 21)
    with pytest.raises(ArgumentError, match=r"slots: expected at most 0 free ones of 6; release"):
        copy.deepcopy(cache)


def test_forgotten_caches_give_their_slots_back(model: Any) -> None:
    adapter = enable(model, slots=3)
    for _ in range(3):
        logits(model, ids(), adapter.cache())
    gc.collect()
    assert adapter.free == 3
    cache = adapter.cache()
    logits(model, ids(), cache)
    layers = cache.layers  # a shallow copy shares them
    del cache
    gc.collect()
    assert adapter.free == 0
    del layers
    gc.collect()
    assert adapter.free == 3


def test_one_adapter_ends_and_another_goes_on(model: Any) -> None:
    """Of two models of a family in one process; nothing is taken from a cache that holds states."""
    other = build(FAMILY, seed=3)
    first, second = enable(model, slots=3), enable(other, slots=3)
    unused, cache = first.cache(), first.cache()
    logits(model, ids(), cache)
    with pytest.raises(Unsupported, match="disable: expected caches that are released, found 3"):
        first.disable()
    cache.release()
    first.disable()
    assert other.generate(ids(), past_key_values=second.cache(), **GREEDY).sequences.shape[1] == 27
    for call in (first.cache, lambda: logits(model, ids(), unused)):
        with pytest.raises(Unsupported, match="adapter: expected one that is enabled"):
            call()
    gc.collect()
    second.disable()
    module = hooks.importlib.import_module(first.family.module)
    assert not hasattr(getattr(module, first.family.decode), "_leapgen_original")


def test_a_model_that_was_moved(model: Any) -> None:
    """To another device after its pools were made: refused before a state is read."""
    moved = build(FAMILY)
    adapter = enable(moved, slots=3)
    moved.to("meta")
    with pytest.raises(ArgumentError, match=r"model: expected layers on cpu.*, found meta"):
        logits(moved, ids().to("meta"), adapter.cache())


def test_inference_mode(model: Any) -> None:
    """Pools and slots that were made there serve outside, as far as transformers' caches do."""
    with torch.inference_mode():
        adapter = enable(model, slots=3)
        adapter.cache().release()
    with adapter.cache() as cache:
        want = [logits(model, ids(), cache), logits(model, ids(length=1), cache)]
    with torch.inference_mode(), adapter.cache() as cache:
        found = [model(x, past_key_values=cache).logits for x in (ids(), ids(length=1))]
    assert all(torch.equal(a.float(), b) for a, b in zip(found, want, strict=True))


def compiled_steps(model: Any, compile: Callable[[Any], Any]) -> list[torch.Tensor]:
    with enable(model, slots=3).cache() as cache:
        call = compile(model)
        return [logits(call, ids(length=21 if n == 0 else 1), cache) for n in range(4)]


@pytest.mark.slow
def test_a_compiled_model(model: Any) -> None:
    """The graph is broken at the step; the host's code is not traced."""
    torch._dynamo.reset()
    want = compiled_steps(model, lambda m: m)
    found = compiled_steps(model, lambda m: torch.compile(m, backend="eager"))
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    traced = [str(code) for code in torch._dynamo.utils.counters["graph_break"]]
    assert not any("leapgen/runtime" in text for text in traced)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_of_a_model(dtype: torch.dtype) -> None:
    made = build(FAMILY).to(dtype)
    want, found = (
        torch.cat([logits(made, ids(length=n), cache) for n in (21, 1, 1)], dim=1)
        for cache in (stock(made), enable(made, slots=3).cache())
    )
    assert error(found, want) < 0.03
