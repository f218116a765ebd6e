"""Plain functions with the arguments of SGLang's GPU kernels, as far as its backends give them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

PAD = -1  # what the engine's graphs fill padded rows with


def token(S: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
    """One token of one request: S [HV, V, K] in place; q, k [H, K]; g, log decay, [HV] or [HV, K].
    Returns [HV, V]."""
    q, k, v = q.float(), k.float(), v.float()
    group = v.shape[0] // q.shape[0]
    q, k = (
        (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(group, 0)
        for x in (q, k)
    )
    decay = g.float().exp()
    S.mul_(decay[:, None, :] if decay.dim() == 2 else decay[:, None, None])
    u = beta.float()[:, None] * (v - (S @ k[..., None])[..., 0])
    S.add_(u[..., :, None] * k[..., None, :])
    found: torch.Tensor = (S @ q[..., None])[..., 0] * q.shape[-1] ** -0.5
    return found


def gate(A_log: Any, a: Any, dt_bias: Any) -> torch.Tensor:
    """Log decay of raw gates [..., HV] or [..., HV, K]."""
    rate = A_log.reshape(-1).float().exp()
    rate = rate[:, None] if a.dim() == 4 else rate
    bias = dt_bias.float().reshape(a.shape[-2:] if a.dim() == 4 else (-1,))
    return -rate * F.softplus(a.float() + bias)


def fused_gdn_gating(A_log: Any, a: Any, b: Any, dt_bias: Any) -> Any:
    return gate(A_log, a, dt_bias)[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule(*, q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    """States in place, by `initial_state_indices`."""
    out, states = torch.zeros_like(v), given["initial_state"]
    assert states.dtype == torch.float32
    for row, (start, end) in enumerate(pairwise(given["cu_seqlens"].tolist())):
        S = states[int(given["initial_state_indices"][row])]
        for t in range(start, end):
            out[0, t] = token(S, q[0, t], k[0, t], v[0, t], g[0, t], beta[0, t])
    return out, None, None


def chunk_kda(*, q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    assert given["beta_is_raw"]
    decay = gate(given["A_log"], g, given["dt_bias"])
    args = {"q": q, "k": k, "v": v, "g": decay, "beta": beta.float().sigmoid()}
    return chunk_gated_delta_rule(**args, **given)[0]


def packed_decode(*, mixed_qkv: Any, a: Any, b: Any, out: Any, **given: Any) -> None:
    """Of both recurrences: out [rows, 1, HV, V], states in place."""
    states, (rows, _, HV, V) = given["initial_state"], out.shape
    K = states.shape[-1]
    H = (mixed_qkv.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed_qkv.split([H * K, H * K, HV * V], dim=-1)
    channels = (1, rows, HV, K) if a.shape[-1] == HV * K else (1, rows, HV)
    g = gate(given["A_log"], a.reshape(channels), given["dt_bias"])[0]
    for row, slot in enumerate(given["ssm_state_indices"].tolist()):
        if slot > 0:
            parts = (q[row].view(H, K), k[row].view(H, K), v[row].view(HV, V))
            out[row, 0] = token(states[slot], *parts, g[row], b[row].reshape(HV).float().sigmoid())
        else:
            out[row] = 0


def causal_conv1d_fn(x: Any, weight: Any, bias: Any, **given: Any) -> torch.Tensor:
    """x [channels, tokens]; conv_states [slots, channels, width - 1] in place."""
    out, states, width = torch.zeros_like(x), given["conv_states"], weight.shape[1]
    for row, (start, end) in enumerate(pairwise(given["query_start_loc"].tolist())):
        slot = int(given["cache_indices"][row])
        past = states[slot] if given["has_initial_state"][row] else torch.zeros_like(states[slot])
        whole = torch.cat([past, x[:, start:end]], dim=1)
        done = F.conv1d(whole.float()[None], weight.float()[:, None], groups=len(weight))[0]
        out[:, start:end] = F.silu(done).to(x.dtype)
        states[slot] = whole[:, -(width - 1) :]
    return out


def causal_conv1d_update(x: Any, conv_state: Any, weight: Any, *_: Any, **given: Any) -> Any:
    """x [rows, channels]."""
    found = torch.zeros_like(x)
    for row, slot in enumerate(given["conv_state_indices"].tolist()):
        if slot > 0:
            whole = torch.cat([conv_state[slot], x[row][:, None]], dim=1)
            found[row] = F.silu((whole.float() * weight.float()).sum(1)).to(x.dtype)
            conv_state[slot] = whole[:, 1:]
    return found
