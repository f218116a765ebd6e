"""A cache of transformers whose linear layers keep their states in pools."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from leapgen.diagnostics import LeapgenError
from leapgen.integrations.state import Batch, State, refused

if TYPE_CHECKING:
    from leapgen.integrations.transformers import Adapter


class Unsupported(LeapgenError):
    """A way of generating that a quantized state cannot serve."""


class StateCache(DynamicCache):  # type: ignore[misc]
    """A cache for `forward` and `generate`. `copy.deepcopy` forks it: the copy has slots of its
    own, as many more, and goes on from the same bits."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(config=adapter.config)
        self.adapter = adapter
        self.batch = Batch(adapter.slots)
        self._place()

    def _place(self) -> None:
        for index, pool in self.adapter.pools.items():
            state = State(self.adapter.module, pool, self.adapter.family.layout)
            self.layers[index] = StateLayer(self.adapter, self.batch, state)

    @property
    def states(self) -> dict[int, State]:
        """By layer."""
        return {i: x.state for i, x in enumerate(self.layers) if isinstance(x, StateLayer)}

    def reset(self) -> None:
        """Empty, as a new cache; its slots are free again."""
        self.release()
        # Attention layers that grow keep their length in a reset of their own.
        self.layers = DynamicCache(config=self.adapter.config).layers
        self._place()

    def release(self) -> None:
        """Give the slots back, emptied."""
        for state in self.states.values():
            state.empty()
        self.batch.release()

    def __enter__(self) -> StateCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> StateCache:
        made = StateCache(self.adapter)
        memo[id(self.adapter)], memo[id(self.batch)] = self.adapter, made.batch
        for state in self.states.values():
            rows = None if state.slots is None else len(state.slots)
            slots = None if rows is None else made.batch.rows(rows, state.device)
            memo[id(state)] = state.fork(slots)
        made.layers = copy.deepcopy(self.layers, memo)
        return made

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused: see `reorder_cache`."""
        self.reorder_cache(None)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused: see `reorder_cache`."""
        self.reorder_cache(None)

    def reorder_cache(self, beam_idx: Any) -> None:
        """Raises Unsupported: beams would have to copy slots at every token."""
        raise Unsupported(
            "generate: expected num_beams=1, found a search that reorders its rows; a quantized "
            "state stays in its slot, so beams are not supported"
        )


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """A linear layer's part of the cache: convolution states as before, and a `State`."""

    is_compileable = False
    is_croppable = False

    def __init__(self, adapter: Adapter, batch: Batch, state: State) -> None:
        super().__init__()
        self.adapter, self.batch, self.state = adapter, batch, state

    # What follows runs once a prompt; a compiled model breaks its graph here.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """As in transformers; several tokens pass here, so they are counted here.

        Errors, before any state is written: Unsupported for a cache whose adapter was disabled;
        ArgumentError for a batch that does not fit, or a model that was moved.
        """
        self.adapter.require_enabled()
        if conv_states.device != self.state.device:
            expected = (
                f"layers on {self.state.device}, where the pools are: move it before `enable`"
            )
            raise refused("model", expected, conv_states.device)
        self.batch.rows(conv_states.shape[0], self.state.device)
        self.state.position += conv_states.shape[-1]
        found: torch.Tensor = super().update_conv_state(conv_states, state_idx, **kwargs)
        return found

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update_recurrent_state(
        self, recurrent_states: torch.Tensor | State, state_idx: int = 0, **_: Any
    ) -> State:
        """A tensor, as the model has it, is quantized into the slots; a state is there already."""
        if recurrent_states is not self.state:
            tensor: Any = recurrent_states
            self.state.load(self.batch.rows(tensor.shape[0], self.state.device), tensor)
        self.recurrent_states[state_idx] = self.state
        self.is_recurrent_states_initialized[state_idx] = True
        return self.state

    def reset(self) -> None:
        """Empty."""
        for index in range(self.number_of_states):
            self.conv_states[index] = self.recurrent_states[index] = None
            self.is_conv_states_initialized[index] = False
            self.is_recurrent_states_initialized[index] = False
            self.has_previous_state[index] = False

    def reorder_cache(self, beam_idx: Any) -> None:
        """Raises Unsupported."""
        StateCache.reorder_cache(self, beam_idx)

    def activate_past_recording(self) -> None:
        """Raises Unsupported: a flush cannot be undone."""
        raise Unsupported(
            "generate: expected decoding without a draft model, found one that takes tokens back"
        )

    def crop(self, *_: Any, **__: Any) -> None:
        """Raises Unsupported."""
        raise Unsupported(
            "crop: expected a cache that only grows, found a call that takes tokens back; a flush "
            "cannot be undone. copy.deepcopy(cache) keeps the cache of a prompt"
        )

    def offload(self) -> None:
        """The pool stays where it is."""

    def prefetch(self) -> None:
        """The pool is where it was."""
