"""The OLMo-Hybrid layer, whose engine has kernels for GPUs only: its own code runs here on
stand-ins of them, once on FP32 states and once with the plugin's pages, over the same batches."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

vllm = pytest.importorskip("vllm")

from vllm.model_executor.layers.mamba.ops.cpu import causal_conv1d as conv  # noqa: E402
from vllm_batches import BLOCKS, NAME, batches, error, give_caches, metadata  # noqa: E402

from leapgen.integrations.vllm import engine, models  # noqa: E402
from leapgen.integrations.vllm.layers import OlmoPagedState  # noqa: E402

H, HV, K, V = 2, 4, 16, 24
CHANNELS = 2 * H * K + HV * V
OWN = engine.layer_class("OlmoHybridGatedDeltaNetAttention")


def recurrence(S: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    """One token of one request: S [HV, V, K], the rest [HV, ...]; returns the output."""
    q, k, v = (x.float() for x in (q, k, v))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    S.mul_(g.exp()[:, None, None])
    u = beta[:, None] * (v - (S @ k[..., None])[..., 0])
    S.add_(u[..., :, None] * k[..., None, :])
    return (S @ q[..., None])[..., 0] * K**-0.5


def gating(A_log: Any, a: Any, b: Any, dt_bias: Any, negative: bool = False) -> Any:
    g = -A_log.exp() * F.softplus(a.float() + dt_bias)
    return g[None], (b.float().sigmoid() * (2 if negative else 1))[None]


def chunk(*, q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    states, ends = given["initial_state"].float().clone(), given["cu_seqlens"].tolist()
    out = torch.zeros_like(v)
    for row, (start, end) in enumerate(itertools.pairwise(ends)):
        for t in range(start, end):
            out[0, t] = recurrence(states[row], *(x[0, t] for x in (q, k, v, g, beta)))
    return out, states


def recurrent(*, q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    out = torch.zeros_like(v)
    for row, slot in enumerate(given["ssm_state_indices"].tolist()):
        state = given["initial_state"][slot]
        out[0, row] = recurrence(state, *(x[0, row] for x in (q, k, v, g, beta)))
    return out, None


def update(*given: Any, validate_data: bool = False, **more: Any) -> torch.Tensor:
    found: torch.Tensor = conv.causal_conv1d_update_cpu(*given, **more)
    return found


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A forward pass's context; set its attn_metadata."""
    found = SimpleNamespace(attn_metadata=None)
    module = importlib.import_module(engine.LAYERS[OWN.__name__])
    stand_ins = {
        "chunk_gated_delta_rule": chunk,
        "fused_recurrent_gated_delta_rule": recurrent,
        "fused_olmo_hybrid_gdn_gating": gating,
        "causal_conv1d_fn": conv.causal_conv1d_fn_cpu,
        "causal_conv1d_update": update,
        "get_forward_context": lambda: found,
    }
    for name, function in stand_ins.items():
        monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(vllm.forward_context, "get_forward_context", lambda: found)
    return found


def layer(cls: type, form: str | None, negative: bool = True) -> Any:
    """One of either class with the same weights, without an engine around it."""
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    torch.manual_seed(5)
    plain: dict[str, Any] = {
        "prefix": NAME,
        "activation": "silu",
        "num_k_heads": H,
        "num_v_heads": HV,
        "head_k_dim": K,
        "head_v_dim": V,
        "key_dim": H * K,
        "value_dim": HV * V,
        "tp_size": 1,
        "allow_neg_eigval": negative,
        "A_log": torch.rand(HV) * 3 - 4,
        "dt_bias": torch.randn(HV),
        "conv1d": SimpleNamespace(weight=torch.randn(CHANNELS, 1, 4), bias=None),
    }
    for name, value in plain.items():
        object.__setattr__(made, name, value)
    config = SimpleNamespace(linear_allow_neg_eigval=negative)
    give_caches(made, "gdn", form, H, ((3, CHANNELS), (HV, V, K)), config)
    return made


def run(
    made: Any, context: SimpleNamespace, before: Callable[[], None] | None = None
) -> torch.Tensor:
    """All batches' outputs, [tokens, HV, V]."""
    g, outputs = torch.Generator().manual_seed(9), []
    for rows in batches():
        meta = metadata(rows)
        n = meta.num_actual_tokens
        context.attn_metadata = {NAME: meta}
        qkv, b, a = (torch.randn(n, size, generator=g).bfloat16() for size in (CHANNELS, HV, HV))
        out = torch.zeros(n, HV, V, dtype=torch.bfloat16)
        if before is not None:
            before()
        made._forward_core(mixed_qkv=qkv, b=b, a=a, core_attn_out=out)
        outputs.append(out.float())
    return torch.cat(outputs)


@pytest.mark.parametrize("form", ["fp32-window", "leapquant-int8"])
def test_batches_of_the_engine(
    context: SimpleNamespace,
    record_property: Callable[[str, object], None],
    form: str,
) -> None:
    """Controls: a state that is emptied, and steps of the other range of the step size."""
    want = run(layer(OWN, None), context)
    made, lost = layer(OlmoPagedState, form), layer(OlmoPagedState, form)
    found = error(run(made, context), want)
    every = torch.arange(1, BLOCKS, dtype=torch.int32)
    broken = error(run(lost, context, lambda: lost.page.module.reset(lost.pool, every)), want)
    other = layer(OlmoPagedState, form, negative=False)
    object.__setattr__(other, "allow_neg_eigval", True)
    narrow = error(run(other, context), want)
    said = f"error {found:.4f}; emptied before each batch {broken:.3f}; range 1 {narrow:.3f}"
    record_property(form, said)
    assert found < 0.02
    assert broken > 0.3
    assert narrow > 0.1
    assert made.steps == sum(any(n == 1 and k for _, n, k in rows) for rows in batches())


def test_the_model_is_served() -> None:
    """The engine's class with pages, and its layer replaced."""
    made: Any = models.OlmoHybridForCausalLM
    assert issubclass(made, models.PagedModel)
    registry = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    assert registry["OlmoHybridGatedDeltaNetAttention"] is OlmoPagedState
