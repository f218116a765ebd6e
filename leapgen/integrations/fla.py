"""flash-linear-attention's recurrent decode kernels (package `fla-core`), called as its layers do.

Raw gates, raw step sizes and unnormalised keys go in, so that both sides do the same work. Each
call returns a new state, which is the next call's initial one: that is the library's interface.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

RECURRENCES: Mapping[str, tuple[str, str]] = {
    "gdn": ("fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule"),
    "kda": ("fla.ops.kda", "fused_recurrent_kda"),
}
"""Spec -> module and function. Also what the paper's figure 7 compares with."""

_IMPORT_ERRORS = (ImportError, AttributeError, RuntimeError, OSError)
_SWITCHES = ("use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel")


@dataclass(frozen=True)
class FusedRecurrent:
    """The fused recurrent kernel on FP32 states.

    v_first   the state is [V, K], as in the library's layers; otherwise [K, V], its default
    """

    name: str
    v_first: bool
    state_bytes: int = 4

    @property
    def title(self) -> str:
        """The name in tables."""
        return "FLA fused_recurrent, FP32" + ("" if self.v_first else ", K-first")

    def version(self) -> str:
        """Of the package that holds the kernels."""
        try:
            return f"fla-core {metadata.version('fla-core')}"
        except metadata.PackageNotFoundError:
            return "fla-core unknown"

    def lacks(self, recurrence: str, picks: tuple[str, ...]) -> str:
        """Why it cannot run here."""
        if recurrence not in RECURRENCES:
            return "has no kernel for this recurrence"
        if picks:
            return f"is called with raw inputs only, not with {', '.join(picks)}"
        try:
            _function(recurrence)
        except _IMPORT_ERRORS as error:
            return f"cannot be imported: {error}"
        return ""

    def open(self, case: Any) -> FusedSession:
        """See integrations.peers.Case."""
        start = case.states if self.v_first else case.states.transpose(-1, -2).contiguous()
        tokens = tuple(_arguments(token) for token in case.inputs)
        return FusedSession(_function(case.recurrence), start, tokens, self.v_first)


def _function(recurrence: str) -> Callable[..., Any]:
    module, name = RECURRENCES[recurrence]
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _arguments(token: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The library's names: [rows, one token, heads, axis]; constants flat."""
    return {
        "q": token["q"][:, None],
        "k": token["k"][:, None],
        "v": token["v"][:, None],
        "g": token["a"][:, None],
        "beta": token["b"][:, None],
        "A_log": token["A_log"],
        "dt_bias": token["dt_bias"].flatten(),
    }


class FusedSession:
    """Chains of states, one a set."""

    def __init__(
        self,
        function: Callable[..., Any],
        start: torch.Tensor,
        tokens: tuple[dict[str, torch.Tensor], ...],
        v_first: bool,
    ) -> None:
        self._function = function
        self._start = start
        self._tokens = tokens
        self._options = {**dict.fromkeys(_SWITCHES, True), "state_v_first": v_first}
        self.restore()

    def restore(self) -> None:
        """The start states are never written to."""
        self._states = list(self._start)

    def step(self, chosen: int, token: int) -> torch.Tensor:
        """See integrations.peers.Session."""
        out, self._states[chosen] = self._function(
            **self._tokens[token % len(self._tokens)],
            initial_state=self._states[chosen],
            output_final_state=True,
            **self._options,
        )
        result: torch.Tensor = out
        return result
