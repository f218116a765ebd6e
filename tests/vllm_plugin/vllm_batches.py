"""Batches as the engine hands them to a layer, without an engine around it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

from leapgen.integrations.vllm.recipe import page_of
from leapgen.integrations.vllm.settings import Settings

BLOCKS, NAME = 7, "layer"


def metadata(rows: list[tuple[int, int, bool]]) -> GDNAttentionMetadata:
    """Of (slot, tokens, known) a row, decodes first."""
    decodes = sum(n == 1 and known for _, n, known in rows)
    ends = torch.tensor([0, *(n for _, n, _ in rows)]).cumsum(0).int()
    known, tokens = torch.tensor([k for *_, k in rows]), int(ends[-1])
    prefills = len(rows) - decodes
    return GDNAttentionMetadata(
        num_prefills=prefills,
        num_prefill_tokens=tokens - decodes,
        num_decodes=decodes,
        num_decode_tokens=decodes,
        num_spec_decodes=0,
        num_spec_decode_tokens=0,
        num_actual_tokens=tokens,
        has_initial_state=known if prefills else None,
        non_spec_query_start_loc=ends,
        non_spec_state_indices_tensor=torch.tensor([s for s, *_ in rows]).int(),
    )


def batches() -> list[list[tuple[int, int, bool]]]:
    """Two prompts; decodes; decodes beside a new prompt and beside a continued one; decodes over
    several windows; a page that gets another request."""
    two = [(3, 1, True), (5, 1, True)]
    steps: list[list[tuple[int, int, bool]]] = [[(3, 5, False), (5, 9, False)], *[two] * 4]
    steps += [[*two, (2, 7, False)], [*two, (2, 4, True)], *[[*two, (2, 1, True)]] * 9]
    return [*steps, [(2, 1, True), (3, 6, False)], *[[(2, 1, True), (3, 1, True)]] * 6]


def give_caches(
    made: Any,
    kind: str,
    form: str | None,
    heads: int,
    shapes: tuple[tuple[int, ...], ...],
    config: object,
) -> None:
    """What the engine binds to a layer of so many key heads and of states `shapes`, of convolution
    and recurrence; form: of pages, None: the engine's own tensors. What other requests have left
    is in it."""
    window = torch.zeros(BLOCKS, *shapes[0], dtype=torch.bfloat16)
    if form is None:
        made.kv_cache = (window, torch.full((BLOCKS, *shapes[1]), 1e30))
        return
    dtypes = (torch.bfloat16, torch.float32)
    made.page = page_of(kind, Settings(format=form, window=5), heads, shapes, dtypes, config)
    pages = (torch.full((BLOCKS, f.bytes), 0x7F, dtype=torch.int8) for f in made.page.fields)
    made.kv_cache = (window, *pages)
    made.pool = made.page.pool(made.kv_cache[1:])


def error(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found - want).norm() / want.norm())
