"""The Kimi layer, whose engine has kernels for GPUs only: its own code runs here on stand-ins of
them, once on FP32 states and once with the plugin's pages, over the same batches."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

vllm = pytest.importorskip("vllm")

from vllm.model_executor.layers.mamba.ops.cpu import causal_conv1d as conv  # noqa: E402
from vllm_batches import BLOCKS, NAME, batches, error, give_caches, metadata  # noqa: E402

from leapgen.integrations.vllm import engine  # noqa: E402
from leapgen.integrations.vllm.layers import KimiPagedState  # noqa: E402

H, D = 2, 16
KERNELS = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"
OWN = engine.layer_class("KimiGatedDeltaNetAttention")


def recurrence(S: Any, q: Any, k: Any, v: Any, a: Any, b: Any, A_log: Any, dt_bias: Any) -> Any:
    """One token of one request: S [H, V, K], the rest [H, ...]; returns the output."""
    q, k, v, a, b = (x.float() for x in (q, k, v, a, b))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    g = -A_log.exp()[:, None] * F.softplus(a + dt_bias.view(H, D))
    S.mul_(g.exp()[:, None, :])
    u = b.sigmoid()[:, None] * (v - (S @ k[..., None])[..., 0])
    S.add_(u[..., :, None] * k[..., None, :])
    return (S @ q[..., None])[..., 0] * D**-0.5


def chunk(q: Any, k: Any, v: Any, raw_g: Any, raw_beta: Any, **given: Any) -> Any:
    """In the place of the engine's prefill kernel."""
    states, ends = given["initial_state"].float().clone(), given["cu_seqlens"].tolist()
    out = torch.zeros_like(v)
    for row, (start, end) in enumerate(itertools.pairwise(ends)):
        for t in range(start, end):
            token = (q[0, t], k[0, t], v[0, t], raw_g[0, t], raw_beta[0, t])
            out[0, t] = recurrence(states[row], *token, given["A_log"], given["g_bias"])
    return out, states


def packed_decode(mixed_qkv: Any, raw_g: Any, raw_beta: Any, **given: Any) -> Any:
    """In the place of the engine's decode kernel: states in place."""
    q, k, v = (x.view(-1, H, D) for x in mixed_qkv.split(H * D, dim=-1))
    out = torch.zeros_like(v)[None]
    for row, slot in enumerate(given["state_indices"].tolist()):
        token = (q[row], k[row], v[row], raw_g[0, row], raw_beta[0, row])
        state = given["initial_state"][slot]
        out[0, row] = recurrence(state, *token, given["A_log"], given["dt_bias"])
    return out, None


def gathered(states: Any, slots: Any, known: Any) -> Any:
    return torch.where(known[:, None, None, None], states[slots.long()], 0)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A forward pass's context; set its attn_metadata."""
    found = SimpleNamespace(attn_metadata=None)
    module = importlib.import_module(engine.LAYERS[OWN.__name__])
    kernels = ModuleType(KERNELS)
    stand_ins = {
        "chunk_kda_with_fused_gate": chunk,
        "fused_recurrent_kda_packed_decode": packed_decode,
        "fused_recurrent_kda": None,
    }
    vars(kernels).update(stand_ins)
    monkeypatch.setitem(sys.modules, KERNELS, kernels)
    monkeypatch.setattr(module, "causal_conv1d_fn", conv.causal_conv1d_fn_cpu)
    monkeypatch.setattr(module, "causal_conv1d_update", conv.causal_conv1d_update_cpu)
    monkeypatch.setattr(module, "gather_initial_states", gathered)
    monkeypatch.setattr(module, "get_forward_context", lambda: found)
    monkeypatch.setattr(vllm.forward_context, "get_forward_context", lambda: found)
    return found


def layer(cls: type, form: str | None) -> Any:
    """One of either class with the same weights, without an engine around it."""
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    torch.manual_seed(5)
    weights = {"A_log": torch.rand(H) * 3 - 4, "dt_bias": torch.randn(H * D)}
    plain: dict[str, Any] = {
        "prefix": NAME,
        "head_dim": D,
        "local_num_heads": H,
        "local_projection_size": H * D,
        "gate_lower_bound": None,
        "conv1d": SimpleNamespace(weight=torch.randn(3 * H * D, 1, 4), bias=None),
        "o_norm": lambda x, gate: (x.float() * gate.float().sigmoid()).to(x.dtype),
        **weights,
    }
    for name, value in plain.items():
        object.__setattr__(made, name, value)
    config = SimpleNamespace(linear_attn_config={})
    give_caches(made, "kda", form, H, ((3, 3 * H * D), (H, D, D)), config)
    return made


def run(
    made: Any, context: SimpleNamespace, before: Callable[[], None] | None = None
) -> torch.Tensor:
    """All batches' outputs, [tokens, H, D]."""
    g, outputs = torch.Generator().manual_seed(9), []
    for rows in batches():
        meta = metadata(rows)
        n = meta.num_actual_tokens
        context.attn_metadata = {NAME: meta}
        qkv, g1, g2, beta = (
            torch.randn(size, generator=g).bfloat16()
            for size in ((n, 3 * H * D), (1, n, H, D), (n, H, D), (1, n, H))
        )
        out = torch.zeros(1, n, H, D, dtype=torch.bfloat16)
        if before is not None:
            before()
        made._forward(mixed_qkv=qkv, g1=g1, g2=g2, beta=beta, core_attn_out=out)
        assert context.attn_metadata == {NAME: meta}
        outputs.append(out[0].float())
    return torch.cat(outputs)


@pytest.mark.parametrize(("form", "most"), [("fp32-window", 0.01), ("leapquant-int8", 0.05)])
def test_batches_of_the_engine(
    context: SimpleNamespace,
    record_property: Callable[[str, object], None],
    form: str,
    most: float,
) -> None:
    want = run(layer(OWN, None), context)
    made, lost = layer(KimiPagedState, form), layer(KimiPagedState, form)
    found = error(run(made, context), want)
    every = torch.arange(1, BLOCKS, dtype=torch.int32)
    broken = error(run(lost, context, lambda: lost.page.module.reset(lost.pool, every)), want)
    record_property(form, f"error {found:.4f}; state emptied before each batch {broken:.3f}")
    assert found < most
    assert broken > 0.3
    assert made.steps == sum(any(n == 1 and k for _, n, k in rows) for rows in batches())
    seen = made.pool["cursor"][:, 0] + made.pool["phase"][:, 0]
    lengths = {2: 7 + 4 + 9 + 1 + 6, 3: 6 + 6}  # of the requests that are there at the end
    assert {slot: int(seen[slot]) % 5 for slot in lengths} == {s: n % 5 for s, n in lengths.items()}
    assert not torch.isnan(want).any()
