"""The published recurrence of every shipped spec, from raw inputs, in float64, head by head.

Written from the authors' equations and layers, in the orientation that they use: nothing here knows
leapgen, its sub-steps or its specs beyond the names of their inputs. `prepare` turns the raw inputs
of all tokens and value heads, [T, HV] or [T, HV, n], into coefficients; `token` maps the state of
one head, K x V, and one token's coefficients to the new state and the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
Values = Mapping[str, Array]


@dataclass(frozen=True)
class Published:
    """One layer: where its equation stands, its gates, its recurrence."""

    source: str
    prepare: Callable[[Values], dict[str, Array]]
    token: Callable[[Array, Values], tuple[Array, Array]]


def run(layer: Published, raw: Values, S: Array, constants: frozenset[str]) -> tuple[Array, Array]:
    """Outputs [T, HV, V] and final states [HV, K, V].

    raw         [T, heads, n] or [T, heads] as a layer has them, constants without T; heads divides
                HV
    S           start states [HV, K, V]
    constants   names of weights
    """
    coefficients = layer.prepare(spread(raw, len(S), constants))
    states, rows = [np.array(s, np.float64) for s in S], []
    for t in range(len(next(iter(coefficients.values())))):
        outputs = []
        for head in range(len(S)):
            now = {name: x[t, head] for name, x in coefficients.items()}
            states[head], o = layer.token(states[head], now)
            outputs.append(o)
        rows.append(np.stack(outputs))
    return np.stack(rows), np.stack(states)


def spread(raw: Values, HV: int, constants: frozenset[str]) -> dict[str, Array]:
    """All inputs for every token and value head: value head h has key head h // (HV / H)."""
    T = max(len(x) for name, x in raw.items() if name not in constants)
    found = {}
    for name, x in raw.items():
        x = np.asarray(x, np.float64)
        x = np.broadcast_to(x, (T, *x.shape)) if name in constants else x
        found[name] = np.repeat(x, HV // x.shape[1], axis=1)
    return found


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    """torch's: linear above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def unit(x: Array) -> Array:
    """The l2norm of the layers' kernels: the epsilon stands under the root."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def rsqrt_of(x: Array) -> float:
    """K**-0.5 for [..., K]."""
    return float(x.shape[-1]) ** -0.5


def _gate(x: Values) -> Array:
    """Log decay of GDN and its relatives: -exp(A_log) softplus(a + dt_bias)."""
    rate = np.exp(x["A_log"])
    return -(rate[..., None] if x["a"].ndim > rate.ndim else rate) * softplus(x["a"] + x["dt_bias"])


# ---- no correction: S <- decay S + k v^T


def _additive(S: Array, c: Values) -> tuple[Array, Array]:
    """S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t; alpha a number or a vector."""
    S = np.exp(np.atleast_1d(c["log"]))[:, None] * S + np.outer(c["k"], c["v"])
    return S, S.T @ c["q"]


def _linear(x: Values, feature: Callable[[Array], Array]) -> dict[str, Array]:
    q, k = feature(x["q"]), feature(x["k"])
    return {"q": q * rsqrt_of(q), "k": k, "v": x["v"], "log": np.zeros(q.shape[:2])}


def _elu1(x: Array) -> Array:
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1) + 1


def _normalised(S: Array, c: Values) -> tuple[Array, Array]:
    """o = S^T q / (z^T q + 1e-10) with z_t = z_{t-1} + k_t (Katharopoulos et al. 2020).

    The last column of the state is z, and the last value channel is no value: it returns z^T q
    over itself.
    """
    M, z = S[:, :-1], S[:, -1]
    M, z = M + np.outer(c["k"], c["v"][:-1]), z + c["k"]
    below = z @ c["q"] + 1e-10
    return np.column_stack([M, z]), np.append(M.T @ c["q"], z @ c["q"]) / below


def _retnet(x: Values) -> dict[str, Array]:
    return {**x, "q": x["q"] * rsqrt_of(x["q"]), "log": x["g"]}


def _lightning(x: Values) -> dict[str, Array]:
    return {"q": silu(x["q"]), "k": silu(x["k"]), "v": silu(x["v"]), "log": -x["slope"]}


def _gla(x: Values) -> dict[str, Array]:
    logsigmoid = np.minimum(x["a"], 0) - np.log1p(np.exp(-np.abs(x["a"])))
    return {**x, "q": x["q"] * rsqrt_of(x["q"]), "log": logsigmoid / 16}


def _hgrn2(x: Values) -> dict[str, Array]:
    """The layer has log f = logaddexp(log lb, log(1 - lb) + logsigmoid), k = 1 - f."""
    bound = x.get("bound", np.zeros_like(x["f"]))
    forget = bound + (1 - bound) * sigmoid(x["f"])
    q = silu(x["q"]) * rsqrt_of(x["q"])
    return {"q": q, "k": 1 - forget, "v": x["i"], "log": np.log(forget)}


def _mamba2(x: Values) -> dict[str, Array]:
    dt = softplus(x["dt"] + x["dt_bias"])
    if "dt_min" in x:
        dt = np.clip(dt, x["dt_min"], x["dt_max"])
    gate = silu(x["z"]) if "z" in x else np.ones_like(x["x"])
    skip = np.broadcast_to(x["skip"][..., None], x["x"].shape)
    weights = {"A": -np.exp(x["A_log"]), "D": skip, "z": gate}
    return {"dt": dt, "B": x["b"], "C": x["c"], "x": x["x"]} | weights


def _ssd(S: Array, c: Values) -> tuple[Array, Array]:
    """h_t = exp(dt A) h_{t-1} + dt B x^T, y = h_t^T C + D x (Mamba2, SSD with one A a head)."""
    h = np.exp(c["dt"] * c["A"]) * S + c["dt"] * np.outer(c["B"], c["x"])
    return h, (h.T @ c["C"] + c["D"] * c["x"]) * c["z"]


def _rwkv6(x: Values) -> dict[str, Array]:
    return {**x, "decay": np.exp(-np.exp(x["w"]))}


def _finch(S: Array, c: Values) -> tuple[Array, Array]:
    """y = r (diag(u) k^T v + wkv_{t-1}); wkv_t = diag(w) wkv_{t-1} + k^T v, in row vectors."""
    kv = np.outer(c["k"], c["v"])
    return np.diag(c["decay"]) @ S + kv, c["r"] @ (np.diag(c["u"]) @ kv + S)


# ---- corrections


def _delta(S: Array, c: Values) -> tuple[Array, Array]:
    """S_t = S_{t-1} alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T with S a V x K matrix
    (Gated DeltaNet; DeltaNet with alpha = 1)."""
    M, k = S.T, c["k"]
    M = c["alpha"] * M @ (np.eye(len(k)) - c["beta"] * np.outer(k, k))
    M = M + c["beta"] * np.outer(c["v"], k)
    return M.T, M @ c["q"]


def _deltanet(x: Values) -> dict[str, Array]:
    q, beta = unit(x["q"]) * rsqrt_of(x["q"]), sigmoid(x["b"])
    return {"q": q, "k": unit(x["k"]), "v": x["v"], "beta": beta, "alpha": np.ones_like(beta)}


def _gdn(x: Values) -> dict[str, Array]:
    return _deltanet(x) | {"alpha": np.exp(_gate(x))}


def _kda_bounded(x: Values) -> dict[str, Array]:
    """The safe gate is a bound times a sigmoid, not a clamp."""
    log = -5 * sigmoid(np.exp(x["A_log"])[..., None] * (x["a"] + x["dt_bias"]))
    return _deltanet(x) | {"alpha": np.exp(log)}


def _kimi(S: Array, c: Values) -> tuple[Array, Array]:
    """S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T (Kimi Linear)."""
    k, beta = c["k"], c["beta"]
    S = (np.eye(len(k)) - beta * np.outer(k, k)) @ np.diag(c["alpha"]) @ S
    S = S + beta * np.outer(k, c["v"])
    return S, S.T @ c["q"]


def _gdn2(x: Values) -> dict[str, Array]:
    gates = {"erase": sigmoid(x["e"]), "write": sigmoid(x["w"]), "alpha": np.exp(_gate(x))}
    return {"q": unit(x["q"]) * rsqrt_of(x["q"]), "k": unit(x["k"]), "v": x["v"]} | gates


def _erase_write(S: Array, c: Values) -> tuple[Array, Array]:
    """Decay, read with (erase * k), write (write * v) less what was read along k (GDN-2)."""
    S = c["alpha"][:, None] * S
    old = S.T @ (c["erase"] * c["k"])
    S = S + np.outer(c["k"], c["write"] * c["v"] - old)
    return S, S.T @ c["q"]


def _comba(x: Values) -> dict[str, Array]:
    """p = sigmoid(decay) k and q - D p are made before the kernel normalises all three."""
    p = sigmoid(x["c"])[..., None] * x["k"]
    q = unit(x["q"] - x["d"][..., None] * p) * rsqrt_of(x["q"])
    gates = {"alpha": np.exp(_gate(x)), "beta": sigmoid(x["b"])}
    return {"q": q, "k": unit(x["k"]), "p": unit(p), "v": x["v"]} | gates


def _closed_loop(S: Array, c: Values) -> tuple[Array, Array]:
    """S_t = S_{t-1} (alpha_t - beta_t p_t k_t^T) + beta_t v_t k_t^T with S a V x K matrix: what is
    corrected is what the state had before it decayed (Comba; its chunk and fused kernels)."""
    M, k, p = S.T, c["k"], c["p"]
    M = M @ (c["alpha"] * np.eye(len(k)) - c["beta"] * np.outer(p, k)) + c["beta"] * np.outer(
        c["v"], k
    )
    return M.T, M @ c["q"]


def _products(x: Values) -> dict[str, Array]:
    found = {"q": unit(x["q"]) * rsqrt_of(x["q"]), "alpha": np.ones(x["q"].shape[:2])}
    if "a" in x:
        found["alpha"] = np.exp(_gate(x))
    for j in (1, 2, 3):
        if f"k{j}" in x:
            parts = {"k": unit(x[f"k{j}"]), "v": x[f"v{j}"], "beta": sigmoid(x[f"b{j}"])}
            found |= {f"{name}{j}": value for name, value in parts.items()}
    return found


def _householder(S: Array, c: Values) -> tuple[Array, Array]:
    """n generalised Householder products a token, one decay before the first (DeltaProduct)."""
    S = c["alpha"] * S
    for j in (1, 2, 3):
        if f"k{j}" in c:
            k, v, beta = c[f"k{j}"], c[f"v{j}"], c[f"beta{j}"]
            S = (np.eye(len(k)) - beta * np.outer(k, k)) @ S + beta * np.outer(k, v)
    return S, S.T @ c["q"]


def _rwkv7(x: Values) -> dict[str, Array]:
    a, removal = sigmoid(x["a"]), x["k"] * x["k_k"]
    norm = np.sqrt((removal * removal).sum(-1, keepdims=True))
    return {
        "r": x["r"],
        "w": np.exp(-np.exp(-0.5) * sigmoid(x["w"])),
        "kappa": removal / np.maximum(norm, 1e-12),
        "a": a,
        "k": x["k"] * (1 + (a - 1) * x["k_a"]),
        "v": x["v"],
    }


def _goose(S: Array, c: Values) -> tuple[Array, Array]:
    """wkv_t = wkv_{t-1} (diag(w) - kappa^T (a * kappa)) + v^T k in row vectors: V x K, acting from
    the right (RWKV-7). LeapQuant's table has this split transposed."""
    M = S.T
    M = M @ (np.diag(c["w"]) - np.outer(c["kappa"], c["a"] * c["kappa"])) + np.outer(c["v"], c["k"])
    return M.T, M @ c["r"]


def _low_rank(x: Values) -> dict[str, Array]:
    log = x["g"] if "g" in x else np.zeros_like(x["k"])
    return {**x, "q": x["q"] * rsqrt_of(x["q"]), "decay": np.exp(log)}


def _dplr(S: Array, c: Values) -> tuple[Array, Array]:
    """S_t = (Diag(decay) + beta alpha^T) S_{t-1} + k v^T; IPLR without the decay."""
    S = (np.diag(c["decay"]) + np.outer(c["beta"], c["alpha"])) @ S + np.outer(c["k"], c["v"])
    return S, S.T @ c["q"]


PUBLISHED: dict[tuple[str, ...], Published] = {
    ("linear_attention",): Published("2006.16236", lambda x: _linear(x, _elu1), _additive),
    ("linear_attention", "feature=relu"): Published(
        "2006.16236", lambda x: _linear(x, lambda y: np.maximum(y, 0)), _additive
    ),
    ("linear_attention", "normaliser=column"): Published(
        "2006.16236", lambda x: _linear(x, _elu1), _normalised
    ),
    ("retnet",): Published("2307.08621", _retnet, _additive),
    ("lightning",): Published("MiniMax-01, 2501.08313", _lightning, _additive),
    ("mamba2",): Published("2405.21060", _mamba2, _ssd),
    ("mamba2", "gate=silu"): Published("2405.21060", _mamba2, _ssd),
    ("mamba2", "limit=clamped"): Published("2405.21060", _mamba2, _ssd),
    ("gla",): Published("2312.06635", _gla, _additive),
    ("simple_gla",): Published("2312.06635, with a number a head", _gla, _additive),
    ("rwkv6",): Published("2404.05892", _rwkv6, _finch),
    ("hgrn2",): Published("2404.07904", _hgrn2, _additive),
    ("hgrn2", "lower=bounded"): Published("2404.07904", _hgrn2, _additive),
    ("deltanet",): Published("2406.06484", _deltanet, _delta),
    ("gdn",): Published("2412.06464", _gdn, _delta),
    ("kda",): Published("2510.26692", _gdn, _kimi),
    ("kda", "gate=lower_bound"): Published("2510.26692, safe gate", _kda_bounded, _kimi),
    ("gdn2",): Published("GDN-2, as its layer has it", _gdn2, _erase_write),
    ("comba",): Published("2506.02475", _comba, _closed_loop),
    ("deltaproduct",): Published("2502.10297", _products, _householder),
    ("deltaproduct", "products=three"): Published("2502.10297", _products, _householder),
    ("gated_deltaproduct",): Published("2502.10297, gated", _products, _householder),
    ("gated_deltaproduct", "products=three"): Published("2502.10297", _products, _householder),
    ("rwkv7",): Published("2503.14456", _rwkv7, _goose),
    ("dplr",): Published("generalised delta rule", _low_rank, _dplr),
    ("iplr",): Published("generalised delta rule", _low_rank, _dplr),
}
"""(spec, alternatives that are not the default) -> the layer."""
