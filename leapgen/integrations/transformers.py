"""Models of transformers 5.17 with a quantized recurrent state.

    adapter = enable(model, slots=8)
    cache = adapter.cache()
    model.generate(**inputs, past_key_values=cache)

No model code changes: the cache holds a `State` where it held a tensor, and the two functions that
a model's layers call (see transformers_hooks) know what to do with one. Other caches of the same
models, and other models, work as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from leapgen.diagnostics import LeapgenError, listing
from leapgen.integrations.state import Batch, Slots, State, refused
from leapgen.integrations.transformers_hooks import FAMILIES, TESTED, Family, install, uninstall
from leapgen.runtime.host import Module, Pool
from leapgen.runtime.module import load

LINEAR = "linear_attention"
"""What configs call a layer with a recurrent state."""


class Unsupported(LeapgenError):
    """A way of generating that a quantized state cannot serve."""


def enable(
    model_or_config: Any,
    spec: str | Path | Module | None = None,
    format: str | None = None,
    *,
    slots: int = 8,
    window: int | None = None,
    device: torch.device | str | None = None,
    pools: Mapping[int, Pool] | None = None,
) -> Adapter:
    """Prepare a model, or all models of a config, for caches with a quantized state.

    model_or_config  a model or its config; of a model the layers' devices are taken
    spec      a recurrence in place of the model's own: a spec, or a loaded module, with the inputs
              of the model's own
    format    a state format in place of the spec's
    slots     requests that can be held at once, over all caches
    window    tokens between flushes in place of the spec's
    device    of the pools; default: the model's, or where the module's arch runs
    pools     a pool for each linear layer, by its number, in place of new ones

    Errors, before anything is touched: Unsupported for a version of transformers that was not
    tested; ArgumentError naming model_or_config (no spec matches it), spec, pools or a size; those
    of `leapgen.load`.
    """
    _check_version(transformers.__version__)
    config = getattr(model_or_config, "config", model_or_config)
    family, config = _family_of(config)
    layers = [i for i, kind in enumerate(config.layer_types) if kind == LINEAR]
    sizes = {word: int(getattr(config, name)) for word, name in family.sizes.items()}
    devices = _devices(model_or_config, layers, device)
    module = _module(family, spec, format, devices)
    if window is not None:
        sizes["window"] = window
    module.shape(**sizes)  # refuses sizes that the kernels do not take
    if pools is None:
        pools = {i: module.allocate(slots, device=devices.get(i), **sizes) for i in layers}
    _check_pools(module, pools, layers, sizes)
    install(family)
    return Adapter(family, config, module, pools)


class Adapter:
    """An enabled family of models: the module, a pool for each linear layer, and who has which
    slots. Slots are the same in all layers."""

    def __init__(
        self, family: Family, config: Any, module: Module, pools: Mapping[int, Pool]
    ) -> None:
        self.family, self.config, self.module, self.pools = family, config, module, pools
        self.slots = Slots(min(pool.slots for pool in pools.values()))

    def cache(self) -> StateCache:
        """An empty cache; it takes a slot for each row of its first prefill, and `release`, or
        leaving its `with` block, gives them back."""
        return StateCache(self)

    @property
    def free(self) -> int:
        """Slots that no cache has."""
        return self.slots.free

    def bytes_per_request(self) -> int:
        """What one slot holds in all layers."""
        held = 0
        for pool in self.pools.values():
            held += sum(t.stride(0) * t.itemsize for t in pool.values() if t.numel())
        return held

    def disable(self) -> None:
        """The original functions again; caches that hold a state stop working."""
        uninstall(self.family)


class StateCache(DynamicCache):  # type: ignore[misc]
    """A cache for `forward` and `generate`, whose linear layers keep their state in pools."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(config=adapter.config)
        self.adapter = adapter
        self.batch = Batch(adapter.slots)
        self._place()

    def _place(self) -> None:
        for index, pool in self.adapter.pools.items():
            self.layers[index] = StateLayer(
                self, State(self.adapter.module, pool, self.adapter.family.layout)
            )

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

    def __init__(self, cache: StateCache, state: State) -> None:
        super().__init__()
        self.cache, self.state = cache, state

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """As in transformers; several tokens pass here, so they are counted here."""
        # Refuses a batch that does not fit before any state is written.
        self.cache.batch.rows(conv_states.shape[0], self.state.device)
        self.state.position += conv_states.shape[-1]
        found: torch.Tensor = super().update_conv_state(conv_states, state_idx, **kwargs)
        return found

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor | State, state_idx: int = 0, **_: Any
    ) -> State:
        """A tensor, as the model has it, is quantized into the slots; a state is there already."""
        if recurrent_states is not self.state:
            tensor: Any = recurrent_states
            self.state.load(self.cache.batch.rows(tensor.shape[0], self.state.device), tensor)
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
        self.cache.reorder_cache(beam_idx)

    def activate_past_recording(self) -> None:
        """Raises Unsupported: a flush cannot be undone."""
        raise Unsupported(
            "generate: expected decoding without a draft model, found one that takes tokens back"
        )

    def crop(self, *_: Any, **__: Any) -> None:
        """Raises Unsupported."""
        self.activate_past_recording()

    def offload(self) -> None:
        """The pool stays where it is."""

    def prefetch(self) -> None:
        """The pool is where it was."""


def _check_version(found: str) -> None:
    numbers = tuple(int(word) for word in found.split(".")[:2])
    first, below = (".".join(map(str, v)) for v in TESTED)
    if not TESTED[0] <= numbers < TESTED[1]:
        raise Unsupported(
            f"transformers: expected a tested version, >= {first} and < {below}, found {found}"
        )


def _family_of(config: Any) -> tuple[Family, Any]:
    """The family of a config, and the config of its decoder."""
    known = {family.model_type: family for family in FAMILIES}
    expected = f"a model or config of {listing(known)}"
    if not isinstance(config, transformers.PreTrainedConfig):
        raise refused("model_or_config", expected, type(config).__name__)
    config = config.get_text_config(decoder=True)
    if config.model_type not in known:
        raise refused("model_or_config", expected, config.model_type)
    if LINEAR not in config.layer_types:
        raise refused("model_or_config", "a config with linear attention layers", "none")
    return known[config.model_type], config


def _devices(
    model: Any, layers: list[int], device: torch.device | str | None
) -> dict[int, torch.device]:
    """Of the pools, by layer, as far as they are known."""
    if device is not None:
        return dict.fromkeys(layers, torch.device(device))
    if not isinstance(model, torch.nn.Module):
        return {}
    network: Any = model
    decoder: Any = network.get_decoder() if hasattr(model, "get_decoder") else network
    blocks: Any = getattr(decoder, "language_model", decoder)
    return {i: next(iter(blocks.layers[i].parameters())).device for i in layers}


def _module(
    family: Family,
    spec: str | Path | Module | None,
    format: str | None,
    devices: Mapping[int, torch.device],
) -> Module:
    """Loaded, and seen to take what the model's functions are given."""
    picks: dict[str, Any] = dict(family.picks)
    own = load(family.spec, arch="cpu", **picks)
    if isinstance(spec, Module):
        module = spec
    else:
        kinds = {device.type for device in devices.values()}
        arch = "cpu" if kinds == {"cpu"} else None
        module = load(spec or family.spec, arch=arch, format=format, **picks)
    wanted = [(i.name, i.per, i.axis) for i in own.inputs]
    found = [(i.name, i.per, i.axis) for i in module.inputs]
    if sorted(found) != sorted(wanted):
        words = [
            ", ".join(f"{n} [{p} heads{a and ', ' + a}]" for n, p, a in x) for x in (wanted, found)
        ]
        raise refused("spec", f"inputs {words[0]}", words[1])
    return module


def _check_pools(
    module: Module, pools: Mapping[int, Pool], layers: list[int], sizes: Mapping[str, int]
) -> None:
    if sorted(pools) != layers:
        raise refused("pools", f"one for each of layers {layers}", sorted(pools))
    for pool in pools.values():
        none = torch.empty(0, dtype=torch.int32, device=getattr(pool, "device", None))
        module.flush(pool, none)  # refuses a pool of another spec
        found = {word: getattr(pool.shape, word) for word in ("H", "HV", "K", "V")}
        if any(sizes[word] != number for word, number in found.items()):
            raise refused("pools", {word: sizes[word] for word in found}, found)
