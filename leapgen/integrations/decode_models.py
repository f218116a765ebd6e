"""Models of transformers in the shapes of published hybrids, cut to 8 layers: whole decode steps.

Random weights; dense feed-forward where the published model has experts; a share of the layers, so
the same share of the vocabulary and, where memory is the question, of the device's memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from leapgen.integrations.transformers_hooks import FAMILIES, Family

LINEAR, FULL = "linear_attention", "full_attention"
ATTENTION = "leapgen_single_token"
"""Name of the attention below in transformers' table."""


@dataclass(frozen=True)
class DecodeModel:
    """One shape.

    name, title  in files and in tables
    layers       of the published model
    config       class of transformers, and its arguments; tiny: what a CPU test has instead
    """

    name: str
    title: str
    layers: int
    config: str
    arguments: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)

    def make(self, *, tiny: bool = False) -> Any:
        """The config, of 8 layers (4 if tiny), every fourth with full attention."""
        count = 4 if tiny else 8
        kinds = [FULL if i % 4 == 3 else LINEAR for i in range(count)]
        given = {**self.arguments, **(self.tiny if tiny else {})}
        given |= {"num_hidden_layers": count, "layer_types": kinds}
        if "mlp_layer_types" in given:
            given["mlp_layer_types"] = ["dense"] * count
        config = getattr(transformers, self.config)(**given)
        config._attn_implementation = ATTENTION
        return config

    @property
    def family(self) -> Family:
        """Where its layers call their recurrence."""
        kind = getattr(transformers, self.config).model_type
        return next(f for f in FAMILIES if f.model_type == kind)


_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
MODELS: tuple[DecodeModel, ...] = (
    DecodeModel(
        "qwen3.5-9b-like",
        "8 layers like Qwen3.5-9B",
        layers=32,
        config="Qwen3_5TextConfig",
        arguments={**_TOKENS, "vocab_size": 62080, "max_position_embeddings": 32768},
        tiny={
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 16,
        },
    ),
    DecodeModel(
        "kimi-linear-like",
        "8 layers like Kimi-Linear-48B-A3B, dense feed-forward",
        layers=27,
        config="KimiLinearConfig",
        arguments={**_TOKENS, "vocab_size": 48640, "mlp_layer_types": []},
        tiny={
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "linear_num_heads": 4,
            "linear_head_dim": 16,
        },
    ),
)


def build(shape: DecodeModel, device: torch.device, *, tiny: bool = False, seed: int = 0) -> Any:
    """The model in bfloat16 with random weights on a device, its layers ready for single tokens."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, grouped_attention)
    torch.manual_seed(seed)
    config = shape.make(tiny=tiny)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION
        )
    _enlarge(model)
    setattr(importlib.import_module(shape.family.module), "causal_conv1d_update", convolve)  # noqa: B010
    for layer in model.model.layers:
        attention: Any = getattr(layer, "self_attn", None)
        if hasattr(attention, "kv_b_proj"):
            attention.forward = _LatentAttention(attention)
    return model.eval()


def _enlarge(model: Any) -> None:
    """Weights at which the state reaches the logits: with the usual ones no comparison of outputs
    would see a broken state."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name:
                weight.mul_(0.02**-1 * weight.shape[-1] ** -0.5 if weight.dim() == 2 else 4.0)
            if name.endswith("A_log"):
                weight.copy_(torch.rand_like(weight).mul(3).sub(4))


def convolve(
    hidden: torch.Tensor, state: torch.Tensor, weight: Any, bias: Any = None, activation: Any = None
) -> torch.Tensor:
    """One token [rows, channels, 1] of the short convolution, its state [rows, channels, width]
    updated in place; in elementwise kernels, which are faster than a grouped convolution."""
    state.copy_(torch.cat((state[..., 1:], hidden), dim=-1))
    out = (state * weight).sum(dim=-1, keepdim=True, dtype=torch.float32)
    out = out if bias is None else out + bias[:, None]
    return (functional.silu(out) if activation else out).to(hidden.dtype)


def grouped_attention(
    _: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """One token a row over all positions of its keys, read once for the heads that share them."""
    rows, heads, _one, dim = query.shape
    shared = key.shape[1]
    grouped = query.reshape(rows, shared, heads // shared, dim)
    scores = (grouped @ key.mT) * options.get("scaling", dim**-0.5)
    out = torch.softmax(scores, dim=-1) @ value
    return out.reshape(rows, 1, heads, value.shape[-1]), None


class _LatentAttention:
    """Multi-head latent attention of one token on the compressed keys, as engines compute it: the
    up-projections are applied to query and output. (transformers expands all keys at every token.)
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        heads, nope = layer.num_heads, layer.qk_nope_head_dim
        both = layer.kv_b_proj.weight.data.view(heads, nope + layer.v_head_dim, layer.kv_lora_rank)
        self.up_key = both[:, :nope].contiguous()
        self.up_value = both[:, nope:].mT.contiguous()

    def __call__(
        self, hidden_states: torch.Tensor, past_key_values: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        layer, rows = self.layer, hidden_states.shape[0]
        query = layer.q_proj(hidden_states).view(rows, layer.num_heads, layer.qk_head_dim)
        nope, rope = query.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], dim=-1)
        packed = layer.kv_a_proj_with_mqa(hidden_states)
        latent, key = packed.split([layer.kv_lora_rank, layer.qk_rope_head_dim], dim=-1)
        latent = layer.kv_a_layernorm(latent)[:, None]
        latent, key = past_key_values.update(latent, key[:, None], layer.layer_idx)
        inner = torch.einsum("bhd,hdr->bhr", nope, self.up_key)
        scores = (inner @ latent[:, 0].mT + rope @ key[:, 0].mT) * layer.scaling
        out = torch.einsum(
            "bhr,hrv->bhv", torch.softmax(scores, dim=-1) @ latent[:, 0], self.up_value
        )
        projected: torch.Tensor = layer.o_proj(out.reshape(rows, 1, -1))
        return projected, None
