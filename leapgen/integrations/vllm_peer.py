"""vLLM's packed decode kernel for the gated delta rule: states in place, found by an index."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

MODULES = (
    "vllm.third_party.flash_linear_attention.ops.fused_recurrent",
    "vllm.model_executor.layers.fla.ops.fused_recurrent",
)
"""Where versions keep it, the newer place first."""
RECURRENCE = "gdn"
_NAME = "fused_recurrent_gated_delta_rule_packed_decode"
_IMPORT_ERRORS = (ImportError, AttributeError, RuntimeError, OSError)
_DTYPES = {"fp32": (torch.float32, 4), "bf16": (torch.bfloat16, 2)}


@dataclass(frozen=True)
class PackedDecode:
    """The kernel on states of one element type."""

    name: str
    dtype: str

    @property
    def title(self) -> str:
        """The name in tables."""
        return f"vLLM packed decode, {self.dtype.upper()} in place"

    @property
    def state_bytes(self) -> int:
        """Of one element."""
        return _DTYPES[self.dtype][1]

    def version(self) -> str:
        """Of the package."""
        try:
            return f"vllm {metadata.version('vllm')}"
        except metadata.PackageNotFoundError:
            return "vllm unknown"

    def lacks(self, recurrence: str, picks: tuple[str, ...]) -> str:
        """Why it cannot run here."""
        if recurrence != RECURRENCE:
            return "has no kernel for this recurrence"
        if picks:
            return f"is called with raw inputs only, not with {', '.join(picks)}"
        try:
            _function()
        except _IMPORT_ERRORS as error:
            return f"cannot be imported: {error}"
        return ""

    def open(self, case: Any) -> PackedSession:
        """See integrations.peers.Case."""
        return PackedSession(_function(), case, _DTYPES[self.dtype][0])


def _function() -> Callable[..., Any]:
    errors = []
    for module in MODULES:
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module), _NAME)
        except _IMPORT_ERRORS as error:
            errors.append(str(error))
        else:
            return function
    raise ImportError("; ".join(errors))


class PackedSession:
    """One pool of states for all sets. Slot 0 is vLLM's null block and stays unused."""

    def __init__(self, function: Callable[..., Any], case: Any, dtype: torch.dtype) -> None:
        self._function = function
        self._start = case.states.flatten(0, 1)
        self._scale = case.shape.K**-0.5
        device, rows = self._start.device, case.rows
        slots = len(self._start) + 1
        self._pool = torch.zeros((slots, *self._start.shape[1:]), dtype=dtype, device=device)
        places = torch.arange(1, slots, dtype=torch.int32, device=device)
        self._places = places.reshape(case.sets, rows)
        self._tokens = [
            {
                "mixed_qkv": torch.cat([t[x].flatten(1) for x in ("q", "k", "v")], dim=1),
                "a": t["a"],
                "b": t["b"],
                "A_log": t["A_log"],
                "dt_bias": t["dt_bias"],
            }
            for t in case.inputs
        ]
        sizes = (rows, 1, case.shape.HV, case.shape.V)
        self._out = torch.empty(sizes, dtype=torch.bfloat16, device=device)
        self.restore()

    def restore(self) -> None:
        """Copies the start states."""
        self._pool[1:].copy_(self._start)

    def step(self, chosen: int, token: int) -> torch.Tensor:
        """See integrations.peers.Session."""
        self._function(
            **self._tokens[token % len(self._tokens)],
            scale=self._scale,
            initial_state=self._pool,
            out=self._out,
            ssm_state_indices=self._places[chosen],
            use_qk_l2norm_in_kernel=True,
        )
        return self._out
