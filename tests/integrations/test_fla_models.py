"""The hook of flash-linear-attention's models, on stand-ins: the package runs on GPUs only.

The stand-ins call the functions of their modules as its layers do (the functions are a plain loop
in FP32); tests/gpu runs the package itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from leapgen.integrations import fla_models
from leapgen.integrations.fla_models import Unsupported, enable
from leapgen.runtime.host import ArgumentError

H, HV, K, V, WIDTH, ROWS = 2, 4, 16, 24, 32, 3


def loop(
    *, q: Any, k: Any, v: Any, g: Any, beta: Any, A_log: Any, dt_bias: Any, **options: Any
) -> Any:
    """[rows, tokens, heads, ...] raw, or packed with cu_seqlens; states V-first."""
    lengths = options.get("cu_seqlens")
    state = options.get("initial_state")
    assert state is None or isinstance(state, torch.Tensor)
    if lengths is not None:
        outs, states = [], []
        for row, (a, b) in enumerate(pairwise(lengths.tolist())):
            part = {n: x[:, a:b] for n, x in {"q": q, "k": k, "v": v, "g": g, "beta": beta}.items()}
            start = None if state is None else state[row : row + 1]
            out, end = loop(**part, A_log=A_log, dt_bias=dt_bias, initial_state=start)
            outs.append(out)
            states.append(end)
        return torch.cat(outs, dim=1), torch.cat(states)
    group = v.shape[2] // q.shape[2]
    q, k = (functional.normalize(x.float(), dim=-1).repeat_interleave(group, 2) for x in (q, k))
    decay = (-A_log.exp() * functional.softplus(g.float() + dt_bias)).exp()
    gain, v = beta.float().sigmoid(), v.float()
    S = torch.zeros(q.shape[0], HV, V, K) if state is None else state
    found = []
    for t in range(q.shape[1]):
        S = S * decay[:, t, :, None, None]
        u = gain[:, t, :, None] * (v[:, t] - torch.einsum("bhvk,bhk->bhv", S, k[:, t]))
        S = S + torch.einsum("bhv,bhk->bhvk", u, k[:, t])
        found.append(torch.einsum("bhvk,bhk->bhv", S, q[:, t]) * K**-0.5)
    return torch.stack(found, 1).to(torch.bfloat16), S


class Cache:
    def __init__(self) -> None:
        self.entries: dict[int, Any] = {}

    def update(self, recurrent_state: Any = None, *, layer_idx: int, offset: int) -> None:
        self.entries[layer_idx] = recurrent_state

    def reset(self) -> None:
        self.entries.clear()


def install(monkeypatch: pytest.MonkeyPatch) -> type[torch.nn.Module]:
    """The stand-ins as modules of the package; the layer's class."""
    layers = ModuleType("fla.layers.gated_deltanet")
    layers.fused_recurrent_gated_delta_rule = layers.chunk_gated_delta_rule = loop  # type: ignore[attr-defined]

    class GatedDeltaNet(torch.nn.Module):
        def __init__(self, layer_idx: int) -> None:
            super().__init__()
            self.layer_idx, self.num_heads, self.num_v_heads = layer_idx, H, HV
            self.head_k_dim, self.head_v_dim, self.allow_neg_eigval = K, V, False
            sizes = (H * K, H * K, HV * V, HV, HV)
            self.parts = [H * K, H * K, HV * V, HV, HV]
            self.proj = torch.nn.Linear(WIDTH, sum(sizes), bias=False).bfloat16()
            self.back = torch.nn.Linear(HV * V, WIDTH, bias=False).bfloat16()
            with torch.no_grad():
                self.back.weight.mul_(16)  # the state is to outweigh what passes beside it
            self.A_log = torch.nn.Parameter(torch.linspace(-3, -1, HV))
            self.dt_bias = torch.nn.Parameter(torch.zeros(HV))

        def forward(self, x: torch.Tensor, cache: Cache, lengths: Any = None) -> torch.Tensor:
            q, k, v, g, beta = self.proj(x).split(self.parts, dim=-1)
            call = (
                "fused_recurrent_gated_delta_rule" if x.shape[1] <= 64 else "chunk_gated_delta_rule"
            )
            out, state = getattr(layers, call)(
                q=q.unflatten(-1, (H, K)),
                k=k.unflatten(-1, (H, K)),
                v=v.unflatten(-1, (HV, V)),
                g=g,
                beta=beta,
                A_log=self.A_log,
                dt_bias=self.dt_bias,
                initial_state=cache.entries.get(self.layer_idx),
                output_final_state=True,
                state_v_first=True,
                cu_seqlens=lengths,
            )
            cache.update(recurrent_state=state, layer_idx=self.layer_idx, offset=x.shape[1])
            return x + self.back(out.flatten(2))

    GatedDeltaNet.__module__ = layers.__name__
    kimi = ModuleType("fla.layers.kda")
    kimi.fused_recurrent_kda = kimi.chunk_kda = loop  # type: ignore[attr-defined]
    caches = ModuleType("fla.models.cache_utils")
    caches.Cache = Cache  # type: ignore[attr-defined]
    for module in (layers, kimi, caches):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("fla", "fla.layers", "fla.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(fla_models.metadata, "version", lambda _: "0.6.0")
    fla_models._cache_class.cache_clear()
    return GatedDeltaNet


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    torch.manual_seed(0)
    made = install(monkeypatch)
    yield torch.nn.ModuleList([made(0), made(1)])
    fla_models._cache_class.cache_clear()


def run(model: Any, x: torch.Tensor, cache: Any, lengths: Any = None) -> torch.Tensor:
    with torch.no_grad():
        for layer in model:
            x = layer(x, cache, lengths)
    return x.float()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randn(ROWS, tokens, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_tokens_one_and_several(model: Any) -> None:
    """A prompt, single tokens over two windows, a few at once, single ones again; and a control."""
    pieces, at = [70, *[1] * 34, 5, 1, 1], 0
    x = inputs(sum(pieces))
    adapter, plain = enable(model, slots=4), Cache()
    held = adapter.cache()
    errors, steps = [], 0
    for count in pieces:
        part = x[:, at : at + count]
        want, found = run(model, part, plain), run(model, part, held)
        errors.append(float((found - want).norm() / want.norm()))
        at, steps = at + count, steps + (count == 1)
    state = held.held[0]
    assert isinstance(held.entries[0], fla_models.State)
    assert (state.steps, state.loads, state.position) == (steps, 2, at)
    assert max(errors) < 0.02
    for state in held.held.values():
        state.module.reset(state.pool, state.taken())
    found, want = run(model, x[:, -1:], held), run(model, x[:, -1:], plain)
    assert float((found - want).norm() / want.norm()) > 0.1
    held.release()
    assert adapter.slots.free == 4
    run(model, x[:, :3], held)
    assert adapter.slots.free == 1
    del held, state
    gc.collect()
    assert adapter.slots.free == 4


def test_packed_rows(model: Any) -> None:
    """Layers that get a mask pack their rows: of one token each, and of several."""
    x = inputs(12)
    plain, held = Cache(), enable(model, slots=ROWS).cache()
    for cache in (plain, held):
        run(model, x[:, :9], cache)
    single = torch.arange(ROWS + 1)
    pair = [run(model, x[:, 9].unsqueeze(0), c, single) for c in (plain, held)]
    assert float((pair[1] - pair[0]).norm() / pair[0].norm()) < 0.02
    assert held.held[0].steps == 1
    ragged = torch.tensor([0, 2, 3, 3 + 3])
    tokens = torch.cat([x[0, :2], x[1, :1], x[2, :3]])[None]
    pair = [run(model, tokens, c, ragged) for c in (plain, held)]
    assert float((pair[1] - pair[0]).norm() / pair[0].norm()) < 0.02
    assert held.held[0].steps == 1


def test_refusals(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = sys.modules["fla.layers.gated_deltanet"]
    with pytest.raises(ArgumentError, match=r"model: expected a model with layers .*Linear"):
        enable(torch.nn.Linear(1, 1))
    model[1].lower_bound = -3.0
    with pytest.raises(ArgumentError, match=r"model: expected layers with lower_bound -5\.0"):
        enable(model)
    model[1].lower_bound = None
    monkeypatch.setattr(fla_models.metadata, "version", lambda _: "0.5.2")
    with pytest.raises(Unsupported, match=r"fla-core: expected a tested version, .*found 0\.5\.2"):
        enable(model)
    assert layers.fused_recurrent_gated_delta_rule is loop
    monkeypatch.setattr(fla_models.metadata, "version", lambda _: "0.6.1")
    adapter = enable(model, slots=2)
    with pytest.raises(ArgumentError, match="slots: expected at most 2"):
        run(model, inputs(3), adapter.cache())
    with pytest.raises(Unsupported, match="num_beams=1"):
        adapter.cache().reorder_cache(torch.tensor([0]))
    assert layers.fused_recurrent_gated_delta_rule is not loop
    adapter.disable()
    assert layers.fused_recurrent_gated_delta_rule is loop
