"""What one engine does in a process of its own: `python vllm_jobs.py JOB RESULT`, both JSON.

Job: the model's folder, the plugin's option, a fault to inject, and whether only refusals, or the
schedule of flushes, is looked at. Result: tokens, and what layers and engine say of themselves.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm_models
import vllm_schedule

TOKENS = 40
TAIL = 39  # tokens after the last whole block of the prompt that is asked for twice
LONG = 60  # at a block's end
SHORT_OF_A_BLOCK = (19, 7, 33)  # tokens of prompts before a block's end; no multiple of a window


def prompt(length: int, seed: int) -> list[int]:
    g = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(3, vllm_models.SIZES["vocab_size"], (length,), generator=g)
    return found.tolist()


def broken(name: str) -> None:
    """Faults that a test must see."""
    from leapgen.integrations.page import Page
    from leapgen.integrations.vllm.layers import PagedState
    from leapgen.runtime.host import Module

    copied = Page.copied
    decode, load = PagedState.decode, Module.load_state

    def zeroed(self: Any, batch: Any, *tensors: Any) -> None:
        self.page.module.reset(self.pool, batch.slots[: batch.decodes], first_slot=1)
        decode(self, batch, *tensors)

    def unplaced(self: Any, pool: Any, slots: Any, state: Any, position: Any, **more: Any) -> None:
        load(self, pool, slots, state, torch.zeros_like(position), **more)

    faults: dict[str, Callable[[], None]] = {
        "zeroed": lambda: setattr(PagedState, "decode", zeroed),
        "unplaced": lambda: setattr(Module, "load_state", unplaced),
        "dropped": lambda: setattr(Page, "copied", lambda self, _: copied(self, False)),
    }
    faults[name]()


def counted_mixed() -> list[int]:
    """A list that grows by an entry whenever a layer gets a batch of decodes and prefills."""
    from leapgen.integrations.vllm import engine

    found: list[int] = []
    batch_of = engine.batch_of

    def counting(layer: str) -> Any:
        batch = batch_of(layer)
        if batch is not None and batch.decodes and batch.prefills:
            found.append(batch.prefills)
        return batch

    engine.batch_of = counting
    return found


def serve(job: dict[str, Any]) -> dict[str, Any]:
    caching = job.get("caching", True)
    options = {"enable_prefix_caching": caching, **job.get("options", {})}
    llm = vllm_models.engine(Path(job["folder"]), job["leapgen"], **options)
    config = llm.llm_engine.vllm_config
    block = job.get("block", config.cache_config.mamba_block_size)
    short = [prompt(n, n) for n in (5, 23, 40, 61, 77, 100)]
    result: dict[str, Any] = {"block": block}
    runs = result["runs"] = {}

    def run(name: str, prompts: list[list[int]], tokens: Any) -> list[list[int]]:
        found = vllm_models.generate(llm, prompts, tokens)
        outputs = [x["tokens"] for x in found]
        cached = [x["cached"] for x in found]
        runs[name] = {"prompts": prompts, "outputs": outputs, "cached": cached}
        return outputs

    if job.get("processes"):
        run("short", short, TOKENS)
        return result
    layers = vllm_models.layers(llm)
    result["layer"] = type(layers[0]).__name__
    run("short", short, TOKENS)
    mixed = counted_mixed()
    # More requests than rows, of different lengths: some start while others go on.
    many = [prompt(3 + 5 * n, 3000 + n) for n in range(20)]
    run("many", many, [7 + 3 * n for n in range(20)])
    result["mixed"] = len(mixed)
    edge = [prompt(block - n, 1000 + n) for n in SHORT_OF_A_BLOCK]
    before = layers[0].steps
    outputs = run("edge", edge, LONG)
    result["steps"] = layers[0].steps - before
    if caching:
        long = [prompt(2 * block + TAIL, 2000)]
        run("uncached", long, TOKENS)
        run("cached", long, TOKENS)
        # The first block's end was reached while decoding: what was cached there is a flush's.
        run("decoded", [p + o[: LONG - 10] for p, o in zip(edge, outputs, strict=True)], TOKENS)
    result["mode"] = config.cache_config.mamba_cache_mode
    result["padded"] = config.cache_config.mamba_page_size_padded
    result["blocks"] = config.cache_config.num_gpu_blocks
    page = getattr(layers[0], "page", None)
    if page is not None:
        result["bytes"], result["slot"] = page.bytes, page.module.bytes_per_slot(**page.sizes)
    result["bytes_now"] = sum(t[0].numel() * t.element_size() for t in layers[0].kv_cache)
    return result


def main(source: str, target: str) -> None:
    job = json.loads(Path(source).read_text())
    if job.get("fault"):
        broken(job["fault"])
    if job.get("processes"):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    try:
        result = vllm_schedule.serve(job) if job.get("schedule") else serve(job)
    except ValueError as error:
        if not job.get("fails"):
            raise
        result = {"error": str(error)}
    Path(target).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
