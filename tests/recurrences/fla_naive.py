"""flash-linear-attention's naive functions, where that package is installed, on our references'
coefficients. They compute in FP32.

Where it differs from what authors publish, only our reference counts:

- Comba: `naive_recurrent_comba` reads the decayed state; the chunk reference, the fused kernel and
  the layer read it before it decays. The chunk reference is compared.
- Lightning: `lightning_attn` makes its slopes from a linear rule that MiniMax does not have. Slopes
  are inputs here, and the recurrence is compared through simple GLA.
- RetNet: `naive_retention` has no start state; the recurrence is compared through simple GLA.
- Mamba2 has no naive function: simple GLA with dt in the value, then skip and gate by hand.
- RWKV7 has none either: its layer runs the DPLR recurrence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

Tensors = Mapping[str, torch.Tensor]
Result = tuple[torch.Tensor, torch.Tensor]


def run(name: str, coefficients: Mapping[str, Any], S: Any, device: str) -> tuple[Any, Any] | None:
    """Outputs [T, HV, V] and final states [HV, K, V]; None where the package has no such layer.

    Errors: ImportError without the package.
    """
    if name not in LAYERS:
        return None
    module, function, call = LAYERS[name]
    naive = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    tensors = {
        n: torch.tensor(np.asarray(x), dtype=torch.float32, device=device)[None]
        for n, x in coefficients.items()
    }
    start = torch.tensor(np.asarray(S), dtype=torch.float32, device=device)[None]
    o, state = call(naive, tensors, start)
    return o[0].double().cpu().numpy(), state[0].double().cpu().numpy()


def _log(x: Tensors) -> torch.Tensor:
    return x["log"] if "log" in x else x["alpha"].log()


def _whole(x: torch.Tensor) -> torch.Tensor:
    """The query without the K**-0.5 that the function multiplies with itself."""
    return x * x.shape[-1] ** 0.5


def _heads_first(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in tensors)


def _options(S: torch.Tensor) -> dict[str, Any]:
    return {"initial_state": S, "output_final_state": True}


def _linear(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    return f(x["q"], x["k"], x["v"], scale=1.0, **_options(S))


def _normalised(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    """The last channel is the normaliser's: theirs keeps it apart, and returns nothing for it."""
    start = (S[..., :-1], S[..., -1][:, None])
    v = x["v"][..., :-1]
    o, (state, z) = f(x["q"], x["k"], v, 1.0, start, output_final_state=True, normalize=True)
    return o, torch.cat([state, z[:, 0, ..., None]], -1)


def _simple(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    return f(x["q"], x["k"], x["v"], x["log"], scale=1.0, **_options(S))


def _mamba2(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    value = x["dt"][..., None] * x["x"]
    o, state = f(x["C"], x["B"], value, x["dt"] * x["A"], scale=1.0, **_options(S))
    return (o + x["D"] * x["x"]) * x["z"], state


def _gla(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    return f(_whole(x["q"]), x["k"], x["v"], x["log"], **_options(S))


def _rwkv6(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    q, k, v, w = _heads_first(x["r"], x["k"], x["v"], x["decay"].log())
    o, state = f(q, k, v, w, x["u"][0, 0], scale=1.0, **_options(S))
    return o.transpose(1, 2), state


def _deltanet(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    o, state = f(*_heads_first(_whole(x["q"]), x["k"], x["v"], x["beta"]), initial_state=S)
    return o.transpose(1, 2), state


def _gated(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    gates = {"g": x["alpha"].log(), "beta": x["beta"]}
    return f(q=x["q"], k=x["k"], v=x["v"], **gates, scale=1.0, **_options(S))


def _gdn2(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    gates = {"g": x["alpha"].log(), "b": x["erase"], "w": x["write"]}
    return f(x["q"], x["k"], x["v"], **gates, scale=1.0, **_options(S))


def _comba(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    gates = {"g": x["alpha"].log(), "beta": x["beta"]}
    return f(x["q"], x["k"], x["v"], x["p"], **gates, scale=1.0, **_options(S))


def _products(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    count = 3 if "k3" in x else 2
    k, v, beta = (
        torch.stack([x[f"{n}{j}"] for j in range(1, count + 1)], 2).flatten(1, 2)
        for n in ("k", "v", "beta")
    )
    g = x["alpha"].log()
    return f(x["q"], k, v, g, beta, 1.0, num_householder=count, **_options(S))


def _rwkv7(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    kappa = x["kappa"]
    parts = (_whole(x["r"]), x["k"], x["v"], -kappa, x["a"] * kappa, x["w"].log())
    o, state = f(*_heads_first(*parts), initial_state=S)
    return o.transpose(1, 2), state


def _dplr(f: Callable[..., Any], x: Tensors, S: torch.Tensor) -> Result:
    parts = [_whole(x["q"]), x["k"], x["v"], x["alpha"], x["beta"]]
    parts += [x["g"]] if "g" in x else []
    o, state = f(*_heads_first(*parts), initial_state=S)
    return o.transpose(1, 2), state


_SIMPLE = ("simple_gla.naive", "naive_recurrent_simple_gla")
_GLA = ("gla.naive", "naive_recurrent_gla")
_KDA = ("kda.naive", "naive_recurrent_kda")
_DPLR = ("generalized_delta_rule.dplr.naive", "dplr_recurrence")
_PRODUCT = ("gated_delta_product.naive", "naive_recurrent_gated_delta_product")
_LINEAR = ("linear_attn.naive", "naive_recurrent_linear_attn")

LAYERS: dict[str, tuple[str, str, Callable[..., Result]]] = {
    "linear_attention": (*_LINEAR, _linear),
    "linear_attention-relu": (*_LINEAR, _linear),
    "linear_attention-column": (*_LINEAR, _normalised),
    "retnet": (*_SIMPLE, _simple),
    "lightning": (*_SIMPLE, _simple),
    "mamba2": (*_SIMPLE, _mamba2),
    "mamba2-silu": (*_SIMPLE, _mamba2),
    "mamba2-clamped": (*_SIMPLE, _mamba2),
    "gla": (*_GLA, _gla),
    "hgrn2": (*_GLA, _gla),
    "hgrn2-bounded": (*_GLA, _gla),
    "simple_gla": (*_SIMPLE, _simple),
    "rwkv6": ("rwkv6.recurrent_naive", "naive_recurrent_rwkv6", _rwkv6),
    "deltanet": ("delta_rule.naive", "delta_rule_recurrence", _deltanet),
    "gdn": ("gated_delta_rule.naive", "naive_recurrent_gated_delta_rule", _gated),
    "kda": (*_KDA, _gated),
    "kda-lower_bound": (*_KDA, _gated),
    "gdn2": ("gdn2.naive", "naive_recurrent_gdn2", _gdn2),
    "comba": ("comba.naive", "naive_chunk_comba", _comba),
    "deltaproduct": (*_PRODUCT, _products),
    "deltaproduct-three": (*_PRODUCT, _products),
    "gated_deltaproduct": (*_PRODUCT, _products),
    "gated_deltaproduct-three": (*_PRODUCT, _products),
    "rwkv7": (*_DPLR, _rwkv7),
    "dplr": (*_DPLR, _dplr),
    "iplr": ("generalized_delta_rule.iplr.naive", "iplr_recurrence", _dplr),
}
"""Spec and alternatives, as modules are named -> module, function, how it is called."""
