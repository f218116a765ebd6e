"""From an engine's config to the module and the page of its recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leapgen.integrations.page import Page
from leapgen.integrations.state import refused
from leapgen.integrations.vllm import engine
from leapgen.integrations.vllm.settings import Settings
from leapgen.runtime.module import load

_LOWER_BOUND = -5.0
"""The one bound of a gate that the spec's choice has."""


def page_of(
    spec: str,
    settings: Settings,
    key_heads: int,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    config: Any,
) -> Page:
    """The page that takes the place of the engine's own.

    spec       of the recurrence
    key_heads  on this rank
    shapes, dtypes  of the engine's states: the convolution's and [HV, V, K]
    config     the model's

    Errors: ArgumentError for a config that no spec matches; those of `leapgen.load`.
    """
    (conv, (HV, V, K), *_), (conv_dtype, *_) = shapes, dtypes
    module = load(
        spec,
        arch="cpu" if engine.on_cpu() else None,
        format=settings.format,
        pin_config=True,  # a request's tokens do not depend on who else is in the batch
        **_picks(config),
    )
    sizes = {"H": key_heads, "HV": HV, "K": K, "V": V, **settings.sizes}
    return Page(module, tuple(conv), conv_dtype, sizes)


def _picks(config: Any) -> dict[str, Any]:
    """Choices of the spec that differ from the default."""
    if getattr(config, "linear_allow_neg_eigval", False):
        return {"beta": "raw2"}
    given = getattr(config, "linear_attn_config", None) or {}
    bound = given.get("gate_lower_bound") if isinstance(given, dict) else None
    if bound is None:
        return {}
    if float(bound) != _LOWER_BOUND:
        raise refused("gate_lower_bound", f"none or {_LOWER_BOUND}", bound)
    return {"gate": "lower_bound"}


def check_blocks(settings: Settings, page: Page, config: Any) -> None:
    """Errors: ArgumentError where records would be left behind that a block's end still needs."""
    cache, window = config.cache_config, page.shape.P
    block = cache.mamba_block_size
    aligned = cache.mamba_cache_mode == "align"
    if aligned and not settings.copy_records and block and block % window:
        expected = f"true, or a window that divides the block of {block} tokens"
        raise refused("copy_records", expected, f"false with a window of {window}")
