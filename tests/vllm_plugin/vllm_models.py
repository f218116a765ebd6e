"""A tiny Qwen3-Next on disk, whose weights make the recurrent state matter, and engines on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Job = Callable[..., dict[str, Any]]
"""See conftest.job."""
LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the layers are in this process, where tests see them
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def build(folder: Path, scale: float = 4.0) -> Path:
    """The model's folder. Dummy weights would make every test of a state empty."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.Qwen3NextConfig(**SIZES, layer_types=LAYERS, mlp_only_layers=[0, 1, 2])
    config.architectures = ["Qwen3NextForCausalLM"]
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.mul_(scale)
            if name.endswith("A_log"):
                weight.copy_(torch.rand(weight.shape).mul(3).sub(4))  # slow and fast decays
    model.to(torch.bfloat16).eval().save_pretrained(folder)
    return folder


def engine_options(folder: Path, leapgen: Any = None, **options: Any) -> dict[str, Any]:
    """Of an engine in this process; prefix caching is on unless told otherwise."""
    os.environ.update({**ENVIRONMENT, **{n: os.environ[n] for n in ENVIRONMENT if n in os.environ}})
    extra = {} if leapgen is None else {"additional_config": {"leapgen": leapgen}}
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True,
        "prefix_cache_retention_interval": None,  # states of decoded blocks are kept too
        "seed": 0,
        **extra,
        **options,
    }


def engine(folder: Path, leapgen: Any = None, **options: Any) -> Any:
    """An engine with these options."""
    options = engine_options(folder, leapgen, **options)  # sets what the import reads
    from vllm import LLM

    return LLM(**options)


def layers(llm: Any) -> list[Any]:
    """The recurrent layers of an engine."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return [m for m in runner.get_model().modules() if hasattr(m, "A_log")]


def generate(llm: Any, prompts: list[list[int]], tokens: int | list[int]) -> list[dict[str, Any]]:
    """Greedy: for each prompt its tokens, and how many of the prompt's were found in the cache."""
    from vllm import SamplingParams

    rest = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
    counts = [tokens] * len(prompts) if isinstance(tokens, int) else tokens
    how = [SamplingParams(max_tokens=count, **rest) for count in counts]
    found = llm.generate([{"prompt_token_ids": p} for p in prompts], how, use_tqdm=False)
    return [
        {"tokens": list(result.outputs[0].token_ids), "cached": result.num_cached_tokens}
        for result in found
    ]


def agreement(folder: Path, prompts: list[list[int]], outputs: list[list[int]]) -> tuple[int, int]:
    """How many of the tokens are what transformers' own model finds best there, and of how many:
    the model is given prompt and output at once, so that one difference counts once."""
    import transformers as hf

    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    same = total = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output]), use_cache=False).logits[0]
        best = logits[len(prompt) - 1 : -1].float().argmax(-1).tolist()
        same += sum(a == b for a, b in zip(best, output, strict=True))
        total += len(output)
    return same, total
