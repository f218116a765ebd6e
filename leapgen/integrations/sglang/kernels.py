"""What stands in the place of the engine's kernels. Nothing is imported from the engine here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from leapgen.integrations.page import Page
from leapgen.integrations.state import refused
from leapgen.runtime.bound import BoundStep
from leapgen.runtime.host import Pool

FIRST_SLOT = 1
"""The engine pads with slot 0, and in graphs with -1."""


@dataclass(eq=False)
class Layer:
    """One layer's slots as a pool; the last step; constants in FP32, with what they are made of."""

    pool: Pool
    step: BoundStep | None = None
    constants: dict[str, tuple[Any, torch.Tensor]] = field(default_factory=dict)

    def constant(self, name: str, weight: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
        """Made anew when the weight was loaded again."""
        key = (weight.data_ptr(), weight._version)
        if name not in self.constants or self.constants[name][0] != key:
            self.constants[name] = (key, weight.detach().float().reshape(sizes))
        return self.constants[name][1]


class PagedKernel:
    """Decode and prefill of all layers of a model, with the arguments of the engine's kernels.

    page      of the layers
    original  the engine's prefill kernel, which changes FP32 states in place
    steps     calls of the step so far
    """

    supports_packed_decode = True
    supports_packed_decode_safe_gate = True
    supports_safe_gate = True
    supports_track_state_snapshot = False
    supports_fused_chain_verify = False
    uses_state_checkpoints = False

    def __init__(self, page: Page, original: Any) -> None:
        self.page, self.original, self.steps = page, original, 0
        self._layers: dict[tuple[int, torch.Size], Layer] = {}

    def layer(self, pages: torch.Tensor) -> Layer:
        """Of the engine's pages of one layer, int8 [slots, bytes].

        Errors: ArgumentError for other tensors; those of a compiler.
        """
        key = (pages.data_ptr(), pages.shape)
        if key not in self._layers:
            if (pages.dim(), pages.dtype, pages.shape[-1]) != (2, torch.int8, self.page.bytes):
                found = f"{pages.dtype} {list(pages.shape)}"
                raise refused("ssm_states", f"int8 [slots, {self.page.bytes}]", found)
            pool = self.page.pool(self.page.cut(pages))
            self.page.module.prepare(pool)
            self._layers[key] = Layer(pool)
        return self._layers[key]

    def packed_decode(
        self,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        lower_bound: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """One token a row: mixed_qkv [rows, channels] after the convolution, raw gate and step size
        of any shape with these elements. Returns [1, rows, HV, V]. Errors: ArgumentError."""
        _unbounded(lower_bound)
        layer, s, rows = self.layer(ssm_states), self.page.shape, mixed_qkv.shape[0]
        q, k, v = torch.split(mixed_qkv, [s.H * s.K, s.H * s.K, s.HV * s.V], dim=-1)
        found = {"q": q, "k": k, "v": v, "a": a, "b": b}
        weights = {"A_log": A_log, "dt_bias": dt_bias}
        given = [
            layer.constant(i.name, weights[i.name], i.sizes((), s))
            if i.constant
            else found[i.name].reshape(i.sizes(rows, s))
            for i in self.page.module.inputs
        ]
        out = mixed_qkv.new_empty((rows, s.HV, s.V))
        slots = cache_indices[:rows]
        if layer.step is None or layer.step.rows != rows:
            layer.step = BoundStep(self.page.module, layer.pool, slots, given, out, FIRST_SLOT)
            layer.step.run()
        else:
            layer.step.step(slots, *given, out)
        self.steps += 1
        return out[None]

    def extend(
        self,
        *tokens: torch.Tensor,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        extend_prefix_lens: torch.Tensor | None = None,
        **given: Any,
    ) -> Any:
        """Prompts, whole or in chunks: the engine's kernel on FP32 states, which are loaded into
        the pages at the phase of their length. A row without a prefix starts from nothing, whatever
        its page holds. Returns what the kernel returns. Errors: ArgumentError."""
        _unbounded(given.get("lower_bound"))
        if extend_prefix_lens is None:
            raise refused("extend_prefix_lens", "the lengths of what is there already", None)
        if given.get("track_state") is not None or given.get("return_intermediate_states"):
            raise refused("track_state", "none: states are cached whole", "snapshots of a prompt")
        if given.get("is_spec_decode"):
            raise refused("is_spec_decode", "False: drafts would enter the state", True)
        pool, module = self.layer(ssm_states).pool, self.page.module
        rows = query_start_loc.numel() - 1
        slots, before = cache_indices[:rows], extend_prefix_lens[:rows]
        old = torch.where(before > 0, slots, 0)
        states = module.materialize(pool, old, layout="VK", first_slot=FIRST_SLOT)
        places = torch.arange(rows, dtype=cache_indices.dtype, device=cache_indices.device)
        result = self.original.extend(
            *tokens,
            ssm_states=states,
            cache_indices=places,
            query_start_loc=query_start_loc,
            extend_prefix_lens=extend_prefix_lens,
            **given,
        )
        position = (before + query_start_loc.diff()).int()
        module.load_state(pool, slots, states, position, layout="VK", first_slot=FIRST_SLOT)
        return result

    def target_verify(self, *_: Any, **__: Any) -> Any:
        """Raises ArgumentError: drafts would enter the quantized state."""
        raise refused("forward_mode", "decoding without drafts", "a verification of drafts")


def _unbounded(bound: float | None) -> None:
    if bound is not None:
        raise refused("lower_bound", "none: its layers are not served", bound)
