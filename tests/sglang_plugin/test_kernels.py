"""The plugin's kernels without the engine, on pages cut as the engine cuts them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sglang_kernels as stand_ins
import torch

import leapgen
from leapgen.integrations.page import Page
from leapgen.integrations.sglang import engine
from leapgen.integrations.sglang.kernels import PagedKernel
from leapgen.runtime.host import ArgumentError

H, HV, K, V, SLOTS = 2, 4, 16, 24, 5
CONSTANTS = {"A_log": torch.linspace(-4, -1, HV), "dt_bias": torch.linspace(-1, 1, HV)}


class Triton:
    """In the place of the engine's prefill kernel."""

    def extend(self, q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
        states, places = given["ssm_states"], given["cache_indices"]
        tokens = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        return stand_ins.chunk_gated_delta_rule(
            **tokens,
            initial_state=states,
            initial_state_indices=places,
            cu_seqlens=given["query_start_loc"],
        )


@pytest.fixture(scope="module")
def page() -> Page:
    sizes = {"H": H, "HV": HV, "K": K, "V": V, "window": 5}
    return Page(leapgen.load("gdn", arch="cpu"), (0,), torch.int8, sizes)


def ids(*slots: int) -> torch.Tensor:
    return torch.tensor(slots, dtype=torch.int32)


def tokens(count: int, seed: int) -> SimpleNamespace:
    g = torch.Generator().manual_seed(seed)
    qkv, a, b = (
        torch.randn(count, n, generator=g).bfloat16() for n in (2 * H * K + HV * V, HV, HV)
    )
    return SimpleNamespace(qkv=qkv, a=a, b=b)


def prompt(kernel: Any, pages: torch.Tensor, slots: torch.Tensor, before: list[int]) -> Any:
    """Seven tokens a row."""
    t, n = tokens(7 * len(slots), sum(before)), 7 * len(slots)
    q, k, v = t.qkv.split([H * K, H * K, HV * V], dim=1)
    g, beta = stand_ins.fused_gdn_gating(CONSTANTS["A_log"], t.a, t.b, CONSTANTS["dt_bias"])
    heads = (q.view(1, n, H, K), k.view(1, n, H, K), v.view(1, n, HV, V))
    return kernel.extend(
        *heads,
        g,
        beta,
        ssm_states=pages,
        cache_indices=slots,
        query_start_loc=torch.arange(0, n + 1, 7),
        extend_prefix_lens=torch.tensor(before),
    )[0]


def run(page: Page, pages: torch.Tensor, lose: bool = False) -> torch.Tensor:
    """Prompts of two requests, 12 tokens, seven more of the first one, and one token of each."""
    kernel, slots = PagedKernel(page, Triton()), ids(3, 1)
    outs = [prompt(kernel, pages, slots, [0, 0])[0, :0]]
    for step in range(14):
        if step == 13:
            prompt(kernel, pages, slots[:1], [19])
        if lose:
            pages[1:] = 0
        t = tokens(2, 100 + step)
        outs.append(
            kernel.packed_decode(
                t.qkv, t.a, t.b, **CONSTANTS, ssm_states=pages, cache_indices=slots
            )[0]
        )
    assert kernel.steps == 14
    return torch.cat(outs).float()


def want() -> torch.Tensor:
    """The same by the stand-ins of the engine's kernels on FP32 states."""
    states, slots, outs = torch.zeros(SLOTS, HV, V, K), ids(3, 1), []
    kernel = Triton()
    prompt(kernel, states, slots, [0, 0])
    for step in range(14):
        if step == 13:
            prompt(kernel, states, slots[:1], [19])
        t, out = tokens(2, 100 + step), torch.empty(2, 1, HV, V)
        stand_ins.packed_decode(
            mixed_qkv=t.qkv,
            a=t.a,
            b=t.b,
            out=out,
            **CONSTANTS,
            initial_state=states,
            ssm_state_indices=slots,
        )
        outs.append(out[:, 0])
    return torch.cat(outs).float()


def test_prompts_and_tokens(page: Page) -> None:
    """New requests find pages of others: full of NaN here. Pages that nobody named keep theirs."""
    pages = torch.full((SLOTS, page.bytes), 0x7F, dtype=torch.int8)
    found, lost = run(page, pages), run(page, torch.zeros_like(pages), lose=True)
    errors = [float((x - want()).norm() / want().norm()) for x in (found, lost)]
    assert errors[0] < 0.02
    assert errors[1] > 0.3
    assert (pages[[0, 2, 4]] == 0x7F).all()


def test_refusals(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, pages = PagedKernel(page, Triton()), torch.zeros(SLOTS, page.bytes, dtype=torch.int8)
    t = tokens(1, 0)
    given: dict[str, Any] = {**CONSTANTS, "ssm_states": pages, "cache_indices": ids(1)}
    with pytest.raises(ArgumentError, match=r"lower_bound: expected none.* found -5\.0"):
        kernel.packed_decode(t.qkv, t.a, t.b, **given, lower_bound=-5.0)
    with pytest.raises(ArgumentError, match=r"ssm_states: expected int8 \[slots, \d+\], found"):
        kernel.packed_decode(t.qkv, t.a, t.b, **{**given, "ssm_states": torch.zeros(5, 4, 24, 16)})
    with pytest.raises(ArgumentError, match="forward_mode: expected decoding without drafts"):
        kernel.target_verify(q=t.qkv)
    starts = {"ssm_states": pages, "cache_indices": ids(1), "query_start_loc": torch.tensor([0, 1])}
    with pytest.raises(ArgumentError, match="extend_prefix_lens: expected"):
        kernel.extend(t.qkv, **starts)
    starts["extend_prefix_lens"] = torch.tensor([0])
    for name in ("track_state", "is_spec_decode"):
        with pytest.raises(ArgumentError, match=f"{name}: expected"):
            kernel.extend(t.qkv, **starts, **{name: True})
    monkeypatch.setenv(engine.SWITCH, "other, leapgenx")
    assert not engine.named()
    monkeypatch.setenv(engine.SWITCH, "other, leapgen")
    assert engine.named()
