"""Where transformers' models call their recurrences, and what stands there once enabled.

A model's `forward` looks two functions up in its module: one for single tokens and one for many.
Both are exchanged for functions that do as before on tensors; where the cache holds a `Held` state,
they run its step (one token), or the original on the materialized state (several tokens).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from leapgen.integrations.state import Held, heads_of, refused

TESTED = ((5, 17), (5, 18))
"""Versions of transformers: from the first, below the second."""


@dataclass(frozen=True)
class Family:
    """Models whose layers call the same functions with the same arguments.

    model_type  of the text config
    module      that defines the layers
    decode, prefill  the functions' names in it
    spec, picks what they compute; inputs: the spec's names, in the order of their arguments
    sizes       H, HV, K, V of the config's attributes
    initial     what the prefill function calls the state that it goes on from
    layout      of the model's states: "KV" or "VK"
    in_place    the decode function takes the state first and changes it, see `_decode_in_place`
    """

    model_type: str
    module: str
    decode: str
    prefill: str
    spec: str
    sizes: Mapping[str, str]
    picks: Mapping[str, str]
    inputs: tuple[str, ...] = ("q", "k", "v", "g", "beta")
    initial: str = "initial_state"
    layout: str = "KV"
    in_place: bool = False


_READY = {"gate": "log_decay", "beta": "activated"}
_DELTA = {
    "decode": "torch_recurrent_gated_delta_rule",
    "prefill": "torch_chunk_gated_delta_rule",
    "spec": "gdn",
    "picks": _READY,
    "sizes": {
        "H": "linear_num_key_heads",
        "HV": "linear_num_value_heads",
        "K": "linear_key_head_dim",
        "V": "linear_value_head_dim",
    },
}
_KIMI = {
    "decode": "recurrent_kimi_delta_attention",
    "prefill": "chunk_kimi_delta_attention",
    "spec": "kda",
    "picks": _READY,
    "sizes": {
        "H": "linear_num_heads",
        "HV": "linear_num_heads",
        "K": "linear_head_dim",
        "V": "linear_head_dim",
    },
}


_SCAN = {
    "decode": "mamba2_selective_state_update",
    "prefill": "mamba2_chunk_scan",
    "spec": "mamba2",
    "picks": {},
    "initial": "initial_states",
    "layout": "VK",
    "in_place": True,
}
_BAMBA = {
    "H": "mamba_n_groups",
    "HV": "mamba_n_heads",
    "K": "mamba_d_state",
    "V": "mamba_d_head",
}
_NEMOTRON = {
    "H": "n_groups",
    "HV": "mamba_num_heads",
    "K": "ssm_state_size",
    "V": "mamba_head_dim",
}


def _family(model_type: str, name: str, how: Mapping[str, Any]) -> Family:
    return Family(model_type, f"transformers.models.{name}.modeling_{name}", **how)


FAMILIES: tuple[Family, ...] = (
    _family("qwen3_next", "qwen3_next", _DELTA),
    _family("qwen3_5_text", "qwen3_5", _DELTA),
    _family("olmo_hybrid", "olmo_hybrid", _DELTA),
    _family("kimi_linear", "kimi_linear", _KIMI),
    _family("bamba", "bamba", {**_SCAN, "sizes": _BAMBA}),
    _family("nemotron_h", "nemotron_h", {**_SCAN, "sizes": _NEMOTRON}),
)

_MARK = "_leapgen_original"


def install(family: Family) -> None:
    """Exchange both functions of a family's module; once, however often it is called."""
    module = importlib.import_module(family.module)
    decode = _decode_in_place if family.in_place else _decode
    for name, make in ((family.decode, decode), (family.prefill, _prefill)):
        present = getattr(module, name)
        if original(present) is present:
            setattr(module, name, make(present, family))


def uninstall(family: Family) -> None:
    """The originals again."""
    module = importlib.import_module(family.module)
    for name in (family.decode, family.prefill):
        setattr(module, name, original(getattr(module, name)))


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stood in a function's place before it was exchanged."""
    found: Callable[..., Any] = getattr(function, _MARK, function)
    return found


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _step(state: Held, inputs: list[torch.Tensor]) -> torch.Tensor:
    """A compiled model breaks its graph here."""
    return state.step(inputs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _materialize(state: Held) -> torch.Tensor:
    return state.materialize()


def _decode(before: Callable[..., Any], family: Family) -> Callable[..., Any]:
    @functools.wraps(before)
    def decode(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *args: Any,
        initial_state: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        if not isinstance(initial_state, Held):
            kwargs["initial_state"] = initial_state
            return before(query, key, value, g, beta, *args, **kwargs)  # type: ignore[no-any-return]
        found = dict(zip(family.inputs, (query, key, value, g, beta), strict=True))
        inputs = [heads_of(found[i.name], i, initial_state) for i in initial_state.inputs]
        out = _step(initial_state, inputs)
        return out[:, None].to(query.dtype), initial_state

    setattr(decode, _MARK, before)
    return decode


def _decode_in_place(before: Callable[..., Any], _: Family) -> Callable[..., Any]:
    """Of models with selective states: raw time steps, and what a head has repeated over its
    channels."""

    @functools.wraps(before)
    def decode(
        state: Any,
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not isinstance(state, Held):
            return before(state, x, dt, A, B, C, D, *args, **kwargs)  # type: ignore[no-any-return]
        if args or kwargs.get("z") is not None or not kwargs.get("dt_softplus"):
            raise refused("dt_softplus", "True, and no z", kwargs.get("dt_softplus"))
        found = {"c": C, "b": B, "x": x, "dt": dt[..., 0], "A_log": (-A[:, 0, 0]).log()}
        found |= {"dt_bias": kwargs["dt_bias"][:, 0], "skip": D[:, 0]}
        out: torch.Tensor = _step(state, [found[i.name] for i in state.inputs])
        return out.to(x.dtype)

    setattr(decode, _MARK, before)
    return decode


def _prefill(before: Callable[..., Any], family: Family) -> Callable[..., Any]:
    @functools.wraps(before)
    def prefill(*args: Any, **kwargs: Any) -> Any:
        if isinstance(state := kwargs.get(family.initial), Held):
            kwargs[family.initial] = _materialize(state)
        return before(*args, **kwargs)

    setattr(prefill, _MARK, before)
    return prefill
