"""All that leapgen takes from SGLang, and the version of it that was read.

Places of classes, names of options and of the pool's shapes stand here and nowhere else.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from leapgen.integrations.page import Page
from leapgen.integrations.sglang.kernels import PagedKernel
from leapgen.integrations.state import refused
from leapgen.runtime.module import load

NAME, SWITCH = "leapgen", "SGLANG_PLUGINS"
TESTED = ((0, 5, 23), (0, 5, 24))
"""From the first, below the second."""

CONFIGS = (
    ("sglang.srt.configs.qwen3_next", "Qwen3NextConfig"),
    ("sglang.srt.configs.kimi_linear", "KimiLinearConfig"),
)
"""Where the engine's models say what a slot holds."""
SERVED = ("Qwen3NextConfig", "Qwen3_5TextConfig", "Qwen3_5MoeTextConfig", "KimiLinearConfig")
"""These classes or those that inherit from them may differ: others are refused."""
BACKENDS = (
    "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend",
    "sglang.srt.layers.attention.linear.kda_backend.KDAAttnBackend",
)
OFF: dict[str, tuple[Any, str]] = {
    "speculative_algorithm": (False, "none: drafts would enter the quantized state"),
    "enable_linear_replayssm": (False, "off: the records are leapgen's"),
    "enable_linear_replayssm_spec": (False, "off: the records are leapgen's"),
    "enable_int8_mamba_checkpoint": (False, "off: pages are quantized already"),
    "enable_page_major_kv_layout": (False, "off: slots would not be pages of bytes"),
    "enable_unified_memory": (False, "off: slots would not be pages of bytes"),
    "enable_hierarchical_cache": (False, "off: not tested"),
    "enable_mixed_chunk": (False, "off: its single tokens would be stored one by one"),
    "enable_mis": (False, "off: items of one request would share a state"),
    "enable_lora": (False, "off: adapters on the projections are not tested"),
    "disaggregation_mode": ("null", "null: the other end cannot read the pages"),
}
"""Option -> its value where leapgen can serve, and what is expected in words."""


def named() -> bool:
    """Whether the engine's switch names leapgen; otherwise nothing of the engine is touched."""
    return NAME in (word.strip() for word in os.environ.get(SWITCH, "").split(","))


def require_tested_version() -> None:
    """Errors: ArgumentError for a version outside the window."""
    found = metadata.version("sglang")
    numbers = tuple(int((re.match(r"\d+", w) or ["0"])[0]) for w in found.split(".")[:3])
    if not TESTED[0] <= numbers < TESTED[1]:
        first, below = (".".join(map(str, v)) for v in TESTED)
        raise refused("sglang", f"the version that was read, >= {first} and < {below}", found)


def install() -> None:
    """Add the choice of the option, and hooks that do nothing unless it is taken; once.

    Errors: ArgumentError for another version; then the engine does not know the choice.
    """
    require_tested_version()
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    if NAME in choices.LINEAR_ATTN_KERNEL_BACKEND_CHOICES:
        return
    for place, name in CONFIGS:
        config: Any = getattr(importlib.import_module(place), name)
        config.mamba2_cache_params = property(_paged(config.mamba2_cache_params.fget))
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    for place in BACKENDS:
        hooks.HookRegistry.register(f"{place}.__init__", _build, hooks.HookType.AROUND)
    # Last: what has failed before is not taken for done by the next call.
    choices.add_linear_attn_kernel_backend_choices([NAME])


def chosen() -> bool:
    """Whether this engine is to decode with leapgen."""
    context = importlib.import_module("sglang.srt.runtime_context").get_context()
    if not context.is_config_namespace_published("exec"):
        return False
    return bool(context.config_leaf("linear_attn_decode_backend") == NAME)


def unsupported() -> Iterator[tuple[str, str, object]]:
    """Option, expectation and finding of each way of running that would go past the pages."""
    context = importlib.import_module("sglang.srt.runtime_context").get_context()
    for option, (value, expected) in OFF.items():
        # None is how some options say that they are off.
        if (found := context.config_leaf(option) or False) != value:
            yield option, expected, found
    exec_ = context.config_bag("exec").mamba
    if exec_.enable_mamba_extra_buffer:
        found = context.config_leaf("mamba_radix_cache_strategy")
        yield "mamba_radix_cache_strategy", "no_buffer: prompts leave no states behind", found
    prefill = exec_.linear_attn_prefill_backend or exec_.linear_attn_backend
    if prefill != "triton":
        yield "linear_attn_prefill_backend", "triton: others were not read", prefill


def _paged(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What a slot holds, by a config of the engine: bytes in place of the FP32 state."""

    @functools.wraps(own)
    def params(config: Any) -> Any:
        found = own(config)
        if not chosen():
            return found
        for name, expected, value in unsupported():
            raise refused(name, expected, value)
        size = page_of(config).bytes
        return replace(
            found,
            shape=replace(found.shape, temporal=(size,)),
            dtype=replace(found.dtype, temporal=torch.int8),
        )

    return params


def page_of(config: Any) -> Page:
    """Of the layers of a config. Errors: ArgumentError for a config that is not served, or sizes
    without kernels; those of `leapgen.load`."""
    name = type(config).__name__
    if name not in SERVED:
        raise refused("model", " or ".join(SERVED), name)
    params = type(config).mamba2_cache_params.fget.__wrapped__(config)
    return _page(
        "kda" if params.is_kda else "gdn", params.shape.num_k_heads_per_tp, *params.shape.temporal
    )


@functools.cache
def _page(spec: str, H: int, HV: int, V: int, K: int) -> Page:
    arch = None if torch.cuda.is_available() else "cpu"
    # A request's tokens do not depend on who else is in the batch.
    module = load(spec, arch=arch, pin_config=True)
    return Page(module, (0,), torch.int8, {"H": H, "HV": HV, "K": K, "V": V})


def _build(original: Callable[..., None], backend: Any, runner: Any) -> None:
    """Around the constructor of a backend: it is made with the engine's kernels, which are then
    exchanged. All of ours are compiled here, before the first request and before graphs are
    captured. Errors: ArgumentError."""
    if not chosen():
        original(backend, runner)
        return
    for name, expected, value in unsupported():
        raise refused(name, expected, value)
    page = page_of(runner.model_config.hf_config.get_text_config())
    kinds, given = type(runner.linear_attn_backends.decode), runner.linear_attn_backends
    triton = dict.fromkeys(("decode", "verify"), kinds("triton"))
    structs = importlib.import_module("msgspec.structs")
    runner.linear_attn_backends = structs.replace(given, **triton)
    try:
        original(backend, runner)
    finally:
        runner.linear_attn_backends = given
    dispatcher = backend.kernel_dispatcher
    kernel = PagedKernel(page, dispatcher.extend_kernel)
    for name in ("decode_kernel", "extend_kernel", "verify_kernel", "tree_verify_kernel"):
        if hasattr(dispatcher, name):
            setattr(dispatcher, name, kernel)
    dispatcher.supports_packed_decode = dispatcher.supports_packed_decode_safe_gate = True
    # A prompt inside a graph would write the state where its page is.
    backend.supports_prefill_graph_extend = lambda: False
    for pages in runner.req_to_token_pool.mamba_pool.mamba_cache.temporal:
        kernel.layer(pages)
