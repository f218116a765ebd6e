"""Models on a GPU: whole decode steps in a graph, and flash-linear-attention's own models."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from leapgen.integrations import decode_models
from leapgen.integrations import transformers_hooks as hooks

ROWS = 4
Record = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    modules = [importlib.import_module(s.family.module) for s in decode_models.MODELS]
    kept: list[Any] = [module.causal_conv1d_update for module in modules]
    yield
    for module, function in zip(modules, kept, strict=True):
        module.causal_conv1d_update = function
    for family in hooks.FAMILIES:
        hooks.uninstall(family)


@pytest.mark.parametrize("shape", decode_models.MODELS, ids=lambda shape: shape.name)
def test_a_graph_decodes_as_the_host_does(
    shape: decode_models.DecodeModel, record_property: Record
) -> None:
    """40 greedy tokens, by replays and by launches, both arms; idle rows leave the others alone."""
    from leapgen.bench.decoder import Arm, Decoder, Full, Quantized
    from leapgen.integrations.decode_arms import fp32_call, module_for, sizes_of

    pytest.importorskip("fla")
    device = torch.device("cuda")
    hooks.install(shape.family)
    model = decode_models.build(shape, device, tiny=True)
    sizes = sizes_of(shape, model.config)
    module = module_for(shape, device, "leapquant-int8")
    call, _, how = fp32_call(shape, device)
    record_property("fp32", how)
    assert how.startswith("written in place"), how
    arms: tuple[Arm, ...] = (
        Full("fp32", "", call, module.inputs, sizes),
        Quantized("ours", "", module, sizes),
    )
    for arm in arms:
        eager, graphed = (Decoder(model, arm, ROWS, 32) for _ in range(2))
        graphed.capture()
        for _ in range(2):  # what warming up did
            eager.step()
        for token in range(40):
            if token == 20:
                for decoder in (eager, graphed):
                    decoder.slots[1] = -1
            eager.step()
            graphed.run()
            live = [0, 2, 3] if token >= 20 and arm.name == "ours" else [0, 1, 2, 3]
            assert torch.equal(eager.tokens[live], graphed.tokens[live]), (arm.name, token)


@pytest.mark.parametrize("name", ["GatedDeltaNet", "KDA"])
def test_models_of_fla(name: str, record_property: Record) -> None:
    """Teacher-forced: prompt, single tokens, several at once; and with the states lost."""
    models = pytest.importorskip("fla.models")
    from leapgen.integrations.fla_models import enable

    torch.manual_seed(0)
    config = getattr(models, f"{name}Config")(
        hidden_size=128,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=32,
        expand_v=1,
        vocab_size=96,
        fuse_cross_entropy=False,
    )
    model = getattr(models, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)
    model = model.cuda().bfloat16().eval()
    tokens = torch.randint(0, 96, (3, 160), device="cuda")
    pieces = [100, *[1] * 40, 7, *[1] * 13]

    def forced(cache: Any, lose: bool = False) -> torch.Tensor:
        found, at = [], 0
        for count in pieces:
            if lose and at:
                for state in cache.held.values():
                    state.module.reset(state.pool, state.taken())
            with torch.no_grad():
                out = model(tokens[:, at : at + count], past_key_values=cache, use_cache=True)
            found.append(out.logits.float())
            at += count
        return torch.cat(found[1:], dim=1)

    want = forced(importlib.import_module("fla.models.cache_utils").Cache())
    adapter = enable(model, slots=3)
    cache = adapter.cache()
    found = forced(cache)
    state = next(iter(cache.held.values()))
    counts = (state.steps, state.loads)
    cache.release()
    lost = forced(adapter.cache(), lose=True)
    adapter.disable()
    errors = [float((x - want).norm() / want.norm()) for x in (found, lost)]
    record_property("error", errors[0])
    record_property("error with lost states", errors[1])
    assert counts == (53, 2)
    assert errors[0] < 0.06
    assert errors[1] > 5 * errors[0]
