"""Models of transformers 5.17 with a quantized recurrent state.

    adapter = enable(model, slots=8)
    cache = adapter.cache()
    model.generate(**inputs, past_key_values=cache)

No model code changes: the cache holds a `State` where it held a tensor, and the two functions that
a model's layers call (see transformers_hooks) know what to do with one. Other caches of the same
models, and other models, work as before. No gradient passes a state.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from leapgen.diagnostics import listing
from leapgen.integrations.state import Slots, refused
from leapgen.integrations.transformers_cache import StateCache as StateCache
from leapgen.integrations.transformers_cache import Unsupported as Unsupported
from leapgen.integrations.transformers_hooks import FAMILIES, TESTED, Family, install, uninstall
from leapgen.runtime.host import Module, Pool
from leapgen.runtime.module import load

LINEAR = "linear_attention"
"""What configs call a layer with a recurrent state."""


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
        self.enabled = True
        _ENABLED.setdefault(family.module, weakref.WeakSet()).add(self)

    def cache(self) -> StateCache:
        """An empty cache; it takes a slot for each row of its first prefill, and `release`, leaving
        its `with` block, or its end as an object gives them back. Errors: see `require_enabled`."""
        self.require_enabled()
        return StateCache(self)

    def require_enabled(self) -> None:
        """Errors: Unsupported after `disable`."""
        if not self.enabled:
            raise Unsupported("adapter: expected one that is enabled, found one after `disable`")

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
        """Its caches serve nothing more. With the last adapter of a family, models have their
        original functions again. Errors: Unsupported while a cache holds slots, which those
        functions could not read."""
        if held := self.slots.count - self.free:
            expected = "expected caches that are released"
            raise Unsupported(f"disable: {expected}, found {held} slots that are taken")
        self.enabled = False
        _ENABLED[self.family.module].discard(self)
        if not _ENABLED[self.family.module]:
            uninstall(self.family)


_ENABLED: dict[str, weakref.WeakSet[Adapter]] = {}
"""Module of a family -> the adapters that still need its functions exchanged."""


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
