"""All that leapgen takes from vLLM, and the versions of it in which that was tested.

What moves between versions is named here and nowhere else: places of classes, names of fields of
the metadata, the engine's own kernels.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import vllm
from vllm.model_executor.models import ModelRegistry

from leapgen.integrations.state import refused

TESTED = ((0, 32), (0, 33))
"""From the first, below the second: what `require_tested_version` lets pass."""

NEXT, FIVE = "vllm.model_executor.models.qwen3_next", "vllm.model_executor.models.qwen3_5"
KIMI = "vllm.models.kimi_k3"
MODELS: dict[str, tuple[str, str]] = {
    "Qwen3NextForCausalLM": (NEXT, "served"),
    "Qwen3_5ForCausalLM": (FIVE, "served"),
    "Qwen3_5MoeForCausalLM": (FIVE, "served"),
    "Qwen3_5ForConditionalGeneration": (FIVE, "served"),
    "Qwen3_5MoeForConditionalGeneration": (FIVE, "served"),
    "KimiLinearForCausalLM": (KIMI, "served"),
    "KimiK3ForConditionalGeneration": (KIMI, "its layers keep records of their own"),
    "OlmoHybridForCausalLM": ("vllm.model_executor.models.olmo_hybrid", "served"),
}
"""Architecture -> the engine's module; and "served", or why the option is refused there."""

_GDN = "vllm.model_executor.layers.mamba.gdn"
LAYERS = {
    "QwenGatedDeltaNetAttention": f"{_GDN}.qwen_gdn_linear_attn",
    "OlmoHybridGatedDeltaNetAttention": f"{_GDN}.olmo_gdn_linear_attn",
    "KimiGatedDeltaNetAttention": f"{_GDN}.kimi_gdn_linear_attn",
}
"""Class -> the engine's module."""
_CPU_CONV = "vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d"
_CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"


def version() -> tuple[int, ...]:
    """The engine's, major and minor."""
    return tuple(int(word) for word in vllm.__version__.split(".")[:2])


def tested() -> bool:
    """Whether the engine's version lies in the tested window."""
    return TESTED[0] <= version() < TESTED[1]


def require_tested_version() -> None:
    """Errors: ArgumentError for a version outside the tested window."""
    if not tested():
        first, below = (".".join(map(str, v)) for v in TESTED)
        raise refused("vllm", f"a tested version, >= {first} and < {below}", vllm.__version__)


def register_models() -> None:
    """Put a subclass in the place of each known class, by name, where the engine has that class."""
    for architecture, (module, _) in MODELS.items():
        present = ModelRegistry.models.get(architecture)
        # Another version's place, or another plugin's class, is left alone.
        if getattr(present, "module_name", None) == module:
            name = f"leapgen.integrations.vllm.models:{architecture}"
            ModelRegistry.register_model(architecture, name)


def model_class(architecture: str) -> Any:
    """The engine's class."""
    return getattr(importlib.import_module(MODELS[architecture][0]), architecture)


def layer_class(name: str) -> Any:
    """The engine's class."""
    return getattr(importlib.import_module(LAYERS[name]), name)


def replace_layer(name: str, subclass: type) -> None:
    """Let the engine build the subclass wherever it names the class; once a process."""
    custom_op = importlib.import_module("vllm.model_executor.custom_op")
    if name not in custom_op.op_registry_oot:
        custom_op.PluggableLayer.register_oot(name=name)(subclass)


def copy_functions(count: int) -> tuple[Any, ...]:
    """What copies the first states of a page: the convolution's, and then plain ones."""
    utils = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")
    return (utils.get_conv_copy_spec, *[utils.get_temporal_copy_spec] * (count - 1))


def eager_in_capture(function: Any) -> Any:
    """Mark a layer's core as the engine marks its own: where graphs are captured in parts, it is
    called between them."""
    return vllm.compilation.breakable_cudagraph.eager_break_during_capture(function)


def on_cpu() -> bool:
    """Whether the engine runs on a CPU."""
    found: bool = vllm.platforms.current_platform.is_cpu()
    return found


@dataclass(frozen=True)
class Batch:
    """What a layer is to do in one forward pass: `decodes` rows of a token first, padded rows
    among them, then `prefills` rows.

    slots     int32, of all rows; 0 in padded ones
    tokens    how many the prefills have, after the first `decodes` ones
    starts    int32 [prefills + 1]: where each row's tokens start and end, from 0
    known     bool [prefills]: the row goes on from its page
    metadata  the engine's own
    """

    metadata: Any
    decodes: int
    prefills: int
    tokens: int
    slots: torch.Tensor
    starts: torch.Tensor
    known: torch.Tensor


def batch_of(layer: str) -> Batch | None:
    """The present forward pass; None in a pass without states, as those that measure memory.

    Errors: ArgumentError for drafts.
    """
    held = vllm.forward_context.get_forward_context().attn_metadata
    meta = held.get(layer) if isinstance(held, dict) else None
    if meta is None:
        return None
    if meta.spec_sequence_masks is not None:
        raise refused("spec_sequence_masks", "none: drafts are not supported", "drafts")
    slots, count, empty = meta.non_spec_state_indices_tensor, meta.num_prefills, torch.empty(0)
    if not count:
        # A graph's batch is padded; its padded rows name the null block.
        rows = meta.num_actual_tokens
        return Batch(meta, rows, 0, 0, slots[:rows], empty, empty)
    first = meta.num_decodes
    starts = meta.non_spec_query_start_loc[first : first + count + 1] - meta.num_decode_tokens
    known = meta.has_initial_state[first : first + count]
    return Batch(meta, first, count, meta.num_prefill_tokens, slots, starts, known)


@contextmanager
def prefill_only(layer: str, batch: Batch, slots: torch.Tensor) -> Iterator[None]:
    """The same forward pass to the engine's own code, with its prefills alone, in other slots."""
    context = vllm.forward_context.get_forward_context()
    meta, held = batch.metadata, context.attn_metadata
    changed: dict[str, Any] = {
        "num_decodes": 0,
        "num_decode_tokens": 0,
        "num_actual_tokens": batch.tokens,
        "has_initial_state": batch.known,
        "non_spec_query_start_loc": batch.starts,
        "non_spec_state_indices_tensor": slots,
        "prefill_query_start_loc": batch.starts,
        "prefill_state_indices": slots,
        "prefill_has_initial_state": batch.known,
        **(_conv_metadata(batch.starts) if batch.decodes and not on_cpu() else {}),
    }
    context.attn_metadata = {**held, layer: replace(meta, **changed)}
    try:
        yield
    finally:
        context.attn_metadata = held


def _conv_metadata(starts: torch.Tensor) -> dict[str, Any]:
    """For the GPU's convolution, whose own is of the whole batch. Synchronises: mixed batches run
    outside of graphs."""
    utils = importlib.import_module("vllm.v1.attention.backends.utils")
    found = utils.compute_causal_conv1d_metadata(starts.cpu(), device=starts.device)
    return dict(zip(("nums_dict", "batch_ptr", "token_chunk_offset_ptr"), found, strict=True))


def convolve(layer: Any, x: torch.Tensor, state: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """A token's convolution by the engine's kernel, which updates the states of the slots.

    x        [rows, channels]; state [blocks, width - 1, channels], or the last two exchanged
             where the engine is told so
    Returns [rows, channels].
    """
    utils = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")
    if not utils.is_conv_state_dim_first():
        state = state.transpose(-1, -2)
    weight, bias = layer.conv1d.weight, layer.conv1d.bias
    if on_cpu():
        # Some CPUs get a weight packed for the prefill's kernel.
        weight = getattr(layer.conv1d, "_cpu_unpacked_conv_weight", weight)
        weight = weight.reshape(weight.shape[0], -1)
        update = importlib.import_module(_CPU_CONV).causal_conv1d_update_cpu
    else:
        weight = weight.view(weight.shape[0], weight.shape[2])
        update = importlib.import_module(_CONV).causal_conv1d_update
        x = x.clone()  # the kernel writes into its input, which other views may share
    activation = getattr(layer, "activation", "silu")
    out: torch.Tensor = update(x, state, weight, bias, activation, conv_state_indices=slots)
    return out
