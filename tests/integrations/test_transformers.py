"""Tiny models of transformers with a quantized state, against the same models with their own.

Every comparison has a control: the same run with the state broken on purpose. Numbers are printed
(pytest -s) and kept as properties of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

hf = pytest.importorskip("transformers")

from tiny_models import FAMILIES, build  # noqa: E402

from leapgen.integrations.transformers import Adapter, StateCache, enable  # noqa: E402

ROWS, PROMPT, LENGTH, WINDOW = 3, 21, 80, 16
Break = Callable[[StateCache], None]
each_family = pytest.mark.parametrize("family", list(FAMILIES))


def ids(seed: int = 1, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(2, 64, (ROWS, length), generator=torch.Generator().manual_seed(seed))


def stock(model: Any) -> Any:
    return hf.DynamicCache(config=model.config)


def forced(
    model: Any, tokens: torch.Tensor, cache: Any, broken: Break | None = None, chunk: int = 1
) -> torch.Tensor:
    """Logits of every token after the prompt, given the right ones before it."""
    found = []
    with torch.no_grad():
        model(tokens[:, :PROMPT], past_key_values=cache)
        for at in range(PROMPT, tokens.shape[1], chunk):
            if broken is not None:
                broken(cache)
            found.append(model(tokens[:, at : at + chunk], past_key_values=cache).logits)
    return torch.cat(found, dim=1).float()


def error(found: torch.Tensor, want: torch.Tensor) -> float:
    """Relative, in the Euclidean norm."""
    return float((found - want).norm() / want.norm())


def agreement(found: torch.Tensor, want: torch.Tensor) -> float:
    """Share of equal best tokens."""
    return float((found.argmax(-1) == want.argmax(-1)).float().mean())


def zeroed(cache: StateCache) -> None:
    """Every state lost before every token."""
    for state in cache.states.values():
        state.module.reset(state.pool, state.taken())


def exchanged(cache: StateCache) -> None:
    """In one layer of several, requests have each other's state, once in a window."""
    state = cache.states[0]
    if state.position % WINDOW == 5:
        whole = state.materialize().roll(1, dims=0)
        state.module.load_state(
            state.pool, state.taken(), whole, state.position, layout=state.layout
        )


def report(record: Callable[[str, object], None], **numbers: object) -> None:
    for name, number in numbers.items():
        record(name, number)
    print(", ".join(f"{name} {number}" for name, number in numbers.items()))  # noqa: T201


@each_family
def test_teacher_forced(family: str, record_property: Callable[[str, object], None]) -> None:
    """The error beside those of broken states; decode calls and flushes as many as there are."""
    model, tokens = build(family), ids()
    want = forced(model, tokens, stock(model))
    adapter = enable(model, slots=ROWS)
    runs = {}
    for name, broken in {"found": None, "zeroed": zeroed, "exchanged": exchanged}.items():
        with adapter.cache() as cache:
            logits = forced(model, tokens, cache, broken)
            runs[name] = (error(logits, want), agreement(logits, want))
            states = list(cache.states.values())
            for state in states if broken is None else ():
                assert state.pool["cursor"].eq(LENGTH % WINDOW).all()
                assert state.steps == LENGTH - PROMPT
                assert state.flushes == LENGTH // WINDOW - PROMPT // WINDOW
                assert state.loads == 1
    counts = {"decodes": sum(s.steps for s in states), "layers": len(states)}
    rounded = {n: f"error {e:.3f} agreement {a:.3f}" for n, (e, a) in runs.items()}
    report(record_property, family=family, **rounded, **counts)
    assert runs["found"][0] < 0.05
    assert runs["found"][1] > 0.94
    assert runs["zeroed"][0] > 0.5
    assert runs["zeroed"][1] < 0.4
    assert runs["exchanged"][0] > 3 * runs["found"][0]


@each_family
def test_greedy_generation(family: str, record_property: Callable[[str, object], None]) -> None:
    """What `generate` picks is what the stock model finds best there, nearly always."""
    model, prompt = build(family), ids()[:, :PROMPT]
    adapter = enable(model, slots=ROWS)

    def generate(cache: Any) -> torch.Tensor:
        out: torch.Tensor = model.generate(
            prompt, past_key_values=cache, max_new_tokens=40, do_sample=False
        )
        assert out.shape == (ROWS, PROMPT + 40)
        return out

    def best(tokens: torch.Tensor) -> float:
        logits = forced(model, tokens, stock(model))
        # The logits at one place choose the token at the next.
        return float((logits[:, :-1].argmax(-1) == tokens[:, PROMPT + 1 :]).float().mean())

    with adapter.cache() as cache:
        found = best(generate(cache))
        steps = cache.states[0].steps
    plain = best(generate(stock(model)))
    lost = adapter.cache()
    step = type(lost.states[0]).step
    for state in lost.states.values():
        state.step = lambda x, s=state: (s.module.reset(s.pool, s.taken()), step(s, x))[1]
    broken = best(generate(lost))
    report(record_property, family=family, found=found, stock=plain, broken=broken)
    assert steps == 39
    assert found > 0.94
    assert plain > 0.94
    assert broken < 0.5


@each_family
def test_several_tokens_go_on_from_a_state(family: str) -> None:
    """A second prompt: materialized, run by the model's own function, quantized again."""
    model, tokens = build(family), ids()
    adapter = enable(model, slots=ROWS)
    want = forced(model, tokens, stock(model), chunk=7)
    with adapter.cache() as cache:
        found = forced(model, tokens, cache, chunk=7)
        state = cache.states[0]
        assert state.loads == 1 + -(-(LENGTH - PROMPT) // 7)
        assert state.position == LENGTH
    with adapter.cache() as cache:
        bad = error(forced(model, tokens, cache, zeroed, chunk=7), want)
    assert error(found, want) < 0.05 < 0.4 < bad


def test_lossless_records_change_nothing_but_roundings() -> None:
    """FP32 payload and records: what is left is the models' own bfloat16."""
    model, tokens = build("qwen3_next"), ids()
    want = forced(model, tokens, stock(model))
    with enable(model, format="fp32-window", slots=ROWS).cache() as cache:
        assert error(forced(model, tokens, cache), want) < 0.03


def test_requests_share_pools(record_property: Callable[[str, object], None]) -> None:
    """Two caches in turns, at different places, in the slots that are free; then their reuse."""
    model, tokens = build("qwen3_5"), ids()
    adapter = enable(model, slots=4)
    alone = []
    for rows in (slice(0, 2), slice(2, 3)):
        with adapter.cache() as cache:
            alone.append(forced(model, tokens[rows], cache))
    one, two = adapter.cache(), adapter.cache()
    found: list[list[torch.Tensor]] = [[], []]
    with torch.no_grad():
        model(tokens[:2, :PROMPT], past_key_values=one)
        for at in range(PROMPT, LENGTH):
            found[0].append(model(tokens[:2, at : at + 1], past_key_values=one).logits)
            if at == 30:
                assert adapter.free == 2
                model(tokens[2:, :PROMPT], past_key_values=two)
            if at >= 30:
                other = at - 30 + PROMPT
                given = tokens[2:, other : other + 1]
                found[1].append(model(given, past_key_values=two).logits)
    assert adapter.free == 1
    first, second = (torch.cat(x, dim=1).float() for x in found)
    assert torch.equal(first, alone[0])
    assert torch.equal(second, alone[1][:, : second.shape[1]])
    one.release()
    assert adapter.free == 3
    two.reset()
    again = forced(model, tokens[2:], two)
    assert torch.equal(again, alone[1])
    assert adapter.free == 3


def test_padded_prompts() -> None:
    """Prompts of different lengths, padded on the left."""
    model, tokens = build("qwen3_5"), ids()
    mask = torch.ones(ROWS, PROMPT, dtype=torch.long)
    mask[1, :9] = mask[2, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    more = {"return_dict_in_generate": True, "output_logits": True}
    want = model.generate(tokens[:, :PROMPT], past_key_values=stock(model), **options, **more)
    cache = enable(model, slots=ROWS).cache()
    found = model.generate(tokens[:, :PROMPT], past_key_values=cache, **options, **more)
    same = (found.sequences == want.sequences)[:, PROMPT:].cumprod(1).bool()
    assert same.sum() > 0.7 * same.numel()
    for at, (a, b) in enumerate(zip(found.logits, want.logits, strict=True)):
        rows = same[:, at - 1] if at else torch.ones(ROWS, dtype=torch.bool)
        assert error(a[rows].float(), b[rows].float()) < 0.1 or not rows.any()


def test_other_caches_work_as_before() -> None:
    model, tokens = build("kimi_linear"), ids()
    want = forced(model, tokens, stock(model))
    adapter = enable(model, slots=ROWS)
    assert torch.equal(forced(model, tokens, stock(model)), want)
    assert isinstance(adapter, Adapter)
