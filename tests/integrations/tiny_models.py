"""Tiny random models of six families, with weights at which the recurrent state matters."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
HEADS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def qwen3_next() -> Any:
    more = {"shared_expert_intermediate_size": 32, "head_dim": 16, "layer_types": LAYERS}
    return hf.Qwen3NextConfig(**COMMON, **HEADS, **EXPERTS, **more, mlp_only_layers=[0, 2])


def qwen3_5() -> Any:
    return hf.Qwen3_5TextConfig(**COMMON, **HEADS, head_dim=16, layer_types=LAYERS)


def olmo_hybrid() -> Any:
    return hf.OlmoHybridConfig(**COMMON, **HEADS, layer_types=LAYERS, linear_allow_neg_eigval=True)


def kimi_linear() -> Any:
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    linear = {"linear_num_heads": 4, "linear_head_dim": 16, "linear_conv_kernel_dim": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    dense = {"mlp_layer_types": ["dense", "sparse", "dense", "dense"], "layer_types": LAYERS}
    every = {"num_key_value_heads": COMMON["num_attention_heads"]}
    return hf.KimiLinearConfig(**{**COMMON, **every}, **latent, **linear, **experts, **dense)


def bamba() -> Any:
    scan = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 32, "mamba_chunk_size": 16}
    return hf.BambaConfig(**COMMON, **scan, attn_layer_indices=[2])


def nemotron_h() -> Any:
    scan = {"mamba_num_heads": 8, "n_groups": 2, "ssm_state_size": 32, "mamba_head_dim": 16}
    more = {"chunk_size": 16, "head_dim": 16, "layers_block_type": [*LAYERS, "mlp"]}
    return hf.NemotronHConfig(**{**COMMON, "num_hidden_layers": 5}, **scan, **more)


FAMILIES = {
    "qwen3_next": qwen3_next,
    "qwen3_5": qwen3_5,
    "olmo_hybrid": olmo_hybrid,
    "kimi_linear": kimi_linear,
    "bamba": bamba,
    "nemotron_h": nemotron_h,
}


def build(family: str, seed: int = 0, scale: float = 4.0) -> Any:
    """In bfloat16, on the CPU. At the usual weights the state hardly reaches the logits, and a test
    of it would be empty: what reads and writes the state is scaled up."""
    torch.manual_seed(seed)
    config = FAMILIES[family]()
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scans = any(name.endswith(".D") for name, _ in model.named_parameters())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.mul_(scale)
            if name.endswith("A_log"):
                weight.copy_(torch.rand(weight.shape).mul(3).sub(4))  # slow and fast decays
            if name.endswith(".D"):
                weight.fill_(0.05)  # the way past the state, which is 1 else and hides it
            if scans and name.endswith("dt_bias"):
                weight.fill_(1.0)  # steps of 0.001, as some models begin with, hardly write
    return model.to(torch.bfloat16).eval()
