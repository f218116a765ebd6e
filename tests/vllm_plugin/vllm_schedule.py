"""What a hit of the prefix cache goes on from, and its tokens once more in a pool of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import vllm_models

BEFORE, TOKENS, MORE = 19, 40, 30  # tokens before a block's end; of the first and second request


class Recorded:
    """What one layer was given and gave, request by request."""

    def __init__(self) -> None:
        self.decoded = 0
        self.end: Any = None  # the state when the first request's block was complete
        self.start: Any = None  # what the second request's prompt went on from
        self.loaded: Any = None  # what it left: FP32 states and their position
        self.steps: list[tuple[torch.Tensor, ...]] = []
        self.outs: list[torch.Tensor] = []
        self.slot = 0


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Two requests: one that decodes over a block's end, and one that finds this block."""
    from leapgen.integrations.vllm import engine
    from leapgen.integrations.vllm.layers import PagedState
    from leapgen.runtime.host import Module

    llm = vllm_models.engine(Path(job["folder"]), job["leapgen"])
    block = llm.llm_engine.vllm_config.cache_config.mamba_block_size
    layers = vllm_models.layers(llm)
    found = {id(layer.pool): Recorded() for layer in layers}
    second = [False]
    decode, convolve = PagedState.decode, engine.convolve
    load, materialize = Module.load_state, Module.materialize

    def at_end(self: Any, batch: Any, qkv: Any, a: Any, b: Any, out: Any) -> None:
        mine = found[id(self.pool)]
        decode(self, batch, qkv, a, b, out)
        mine.decoded, mine.slot = mine.decoded + 1, int(batch.slots[0])
        if second[0]:
            q_k_v = mine.steps.pop()
            mine.steps.append((*q_k_v, a[:1].clone(), b[:1].clone(), *self.constants()))
            mine.outs.append(out[:1].clone())
        elif mine.decoded == BEFORE:
            mine.end = materialize(self.page.module, self.pool, batch.slots[:1])

    def convolved(layer: Any, *given: Any) -> torch.Tensor:
        x, s = convolve(layer, *given), layer.page.shape
        if second[0]:
            q, k, v = torch.split(x[:1].clone(), [s.H * s.K, s.H * s.K, s.HV * s.V], dim=-1)
            heads = (q.view(1, s.H, s.K), k.view(1, s.H, s.K), v.view(1, s.HV, s.V))
            found[id(layer.pool)].steps.append(heads)
        return x

    def started(self: Any, pool: Any, slots: Any, out: Any = None, **more: Any) -> Any:
        made = materialize(self, pool, slots, out=out, **more)
        if second[0]:
            # In the engine's layout, whose axes this CPU path exchanges.
            found[id(pool)].start = materialize(self, pool, slots, first_slot=1)
        return made

    def loaded(self: Any, pool: Any, slots: Any, state: Any, position: Any, **more: Any) -> None:
        if second[0]:
            found[id(pool)].loaded = (state.clone(), position.clone(), more["layout"])
        load(self, pool, slots, state, position, **more)

    PagedState.decode, engine.convolve = at_end, convolved  # type: ignore[method-assign]
    Module.load_state, Module.materialize = loaded, started  # type: ignore[method-assign]
    g = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, 256, (block - BEFORE,), generator=g).tolist()
    first = vllm_models.generate(llm, [prompt], TOKENS)[0]["tokens"]
    second[0] = True
    hit = vllm_models.generate(llm, [prompt + first], MORE)[0]
    Module.load_state, Module.materialize = load, materialize  # type: ignore[method-assign]
    replayed = [replay(layer, found[id(layer.pool)]) for layer in layers]
    starts = [found[id(layer.pool)] for layer in layers]
    return {
        "block": block,
        "cached": hit["cached"],
        "restored": [bool(torch.equal(x.start, x.end)) for x in starts],
        "restored_error": [float((x.start - x.end).norm() / x.end.norm()) for x in starts],
        "position": [int(x.loaded[1]) for x in starts],
        "steps": [len(x.outs) for x in starts],
        "same_outputs": [outs for outs, _ in replayed],
        "same_state": [state for _, state in replayed],
        "norm": [float(x.end.norm()) for x in starts],
    }


def replay(layer: Any, seen: Recorded) -> tuple[int, bool]:
    """The second request in a pool of our own, which flushes where the engine's page does: how
    many outputs have the same bits, and whether the last state has."""
    page, slots = layer.page, torch.zeros(1, dtype=torch.int32)
    pool, module = page.module.allocate(1, **page.sizes), page.module
    states, position, layout = seen.loaded
    module.load_state(pool, slots, states, position, layout=layout)
    outs = [module.step(pool, slots, *given) for given in seen.steps]
    same = sum(torch.equal(a, b) for a, b in zip(outs, seen.outs, strict=True))
    last = module.materialize(layer.pool, torch.tensor([seen.slot], dtype=torch.int32))
    return same, bool(torch.equal(module.materialize(pool, slots), last))
