"""A plugin of SGLang: quantized recurrent states in the pool of a stock engine. EXPERIMENTAL.

    SGLANG_PLUGINS=leapgen python -m sglang.launch_server --model-path ... \\
        --linear-attn-decode-backend leapgen --mamba-radix-cache-strategy no_buffer

Nothing is touched unless the engine's own switch SGLANG_PLUGINS names leapgen. Then the state pool
holds a page of bytes for each slot and layer where it held an FP32 state: clearing, copying, cache
hits and offloading of slots are the engine's own and move whole pages, records and cursors among
them. Prompts run on the engine's Triton kernels and FP32 states, which are quantized into the page;
every decoded token is one step of a generated module. See `kernels` for the calls, `engine` for the
version that was read and for what is refused.

What has run: the engine's own classes of pools, backends and layers, on a CPU and torch 2.13 (the
engine pins 2.14), with plain functions in the place of its GPU kernels (tests/sglang_plugin). What
has not: a whole engine, its kernels, a GPU, CUDA graphs, several ranks.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in each of its processes, any number of times."""
    from leapgen.integrations.sglang import engine

    if engine.named():
        engine.install()
