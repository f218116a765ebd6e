"""Models of flash-linear-attention 0.6 with a quantized recurrent state, on a GPU.

    adapter = enable(model, slots=8)
    cache = adapter.cache()
    model.generate(**inputs, past_key_values=cache)

As for transformers: the cache holds a `State` where it held a tensor, and the two functions that a
layer looks up in its module step it (one token a row) or materialize it (several). The layers hand
over raw gates and step sizes, and states V-first.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from leapgen.diagnostics import LeapgenError, listing
from leapgen.integrations.state import Batch, Held, Slots, State, heads_of, refused
from leapgen.runtime.host import Module, Pool, Shape
from leapgen.runtime.module import load

PACKAGE, TESTED = "fla-core", ("0.6",)
LOWER_BOUND = -5.0
"""The one that the spec's choice has."""
_MARK = "_leapgen_original"


@dataclass(frozen=True)
class Layer:
    """A class of layers: its module, its name, the functions it calls, and the spec of those."""

    module: str
    name: str
    single: str
    several: str
    spec: str


LAYERS = (
    Layer(
        "fla.layers.gated_deltanet",
        "GatedDeltaNet",
        "fused_recurrent_gated_delta_rule",
        "chunk_gated_delta_rule",
        "gdn",
    ),
    Layer("fla.layers.kda", "KimiDeltaAttention", "fused_recurrent_kda", "chunk_kda", "kda"),
)


class Unsupported(LeapgenError):
    """A version, or a way of calling, that a quantized state cannot serve."""


def enable(
    model: torch.nn.Module, format: str | None = None, *, slots: int = 8, window: int | None = None
) -> Adapter:
    """Prepare a model for caches with a quantized state; arguments as for transformers.

    Errors, before anything is touched: Unsupported for a version that was not tested; ArgumentError
    naming model (no spec matches its layers) or a size; those of `leapgen.load`.
    """
    _check_version()
    found = _layers(model)
    states: dict[int, tuple[Module, Pool]] = {}
    for index, (kind, layer) in found.items():
        device = next(iter(layer.parameters())).device
        arch = "cpu" if device.type == "cpu" else None
        picks: dict[str, Any] = _picks(layer)
        module = load(kind.spec, arch=arch, format=format, **picks)
        sizes = {"H": layer.num_heads, "HV": layer.num_v_heads}
        sizes |= {"K": layer.head_k_dim, "V": layer.head_v_dim}
        sizes |= {} if window is None else {"window": window}
        states[index] = (module, module.allocate(slots, device=device, **sizes))
    for kind in {kind for kind, _ in found.values()}:
        install(kind)
    return Adapter(states, slots)


class Adapter:
    """Module and pool of each layer, and who has which slots."""

    def __init__(self, states: Mapping[int, tuple[Module, Pool]], slots: int) -> None:
        self.states, self.slots = states, Slots(slots)

    def cache(self) -> Any:
        """An empty cache of the package's kind; `release`, or its end, gives its slots back."""
        return _cache_class()(self)

    def disable(self) -> None:
        """The original functions again; caches that hold a state stop working."""
        for kind in LAYERS:
            uninstall(kind)


@functools.cache
def _cache_class() -> Any:
    """Made when it is needed: the package cannot be imported everywhere."""
    parent = importlib.import_module("fla.models.cache_utils").Cache

    class StateCache(parent):  # type: ignore[misc, valid-type]
        """Recurrent states in pools, everything else as before."""

        def __init__(self, adapter: Adapter) -> None:
            super().__init__()
            self.batch = Batch(adapter.slots)
            # Not `states`: by that name the package knows caches of an older kind.
            self.held = {i: State(*both, layout="VK") for i, both in adapter.states.items()}

        def update(self, recurrent_state: Any = None, **rest: Any) -> Any:
            """A tensor [rows, HV, V, K] is quantized; a state is there already."""
            index = rest.get("layer_idx", 0)
            if index in self.held and isinstance(recurrent_state, torch.Tensor):
                state = self.held[index]
                rows = self.batch.rows(recurrent_state.shape[0], state.device)
                state.position += rest.get("offset") or 1
                state.load(rows, recurrent_state)
                recurrent_state = state
            return super().update(recurrent_state=recurrent_state, **rest)

        def release(self) -> None:
            """Give the slots back, emptied; the cache is empty too."""
            for state in self.held.values():
                state.empty()
            self.batch.release()
            super().reset()

        reset = release

        def reorder_cache(self, beam_idx: Any) -> None:
            """Raises Unsupported: beams would have to copy slots at every token."""
            raise Unsupported("generate: expected num_beams=1, found a search that reorders rows")

        def batch_repeat_interleave(self, repeats: int) -> None:
            """Raises Unsupported."""
            self.reorder_cache(repeats)

    return StateCache


def install(kind: Layer) -> None:
    """Exchange both functions of a layer's module; once, however often it is called."""
    module = importlib.import_module(kind.module)
    for name, make in ((kind.single, _single), (kind.several, _several)):
        present = getattr(module, name)
        if not hasattr(present, _MARK):
            exchanged = make(present)
            setattr(exchanged, _MARK, present)
            setattr(module, name, exchanged)


def uninstall(kind: Layer) -> None:
    """The originals again."""
    module = importlib.import_module(kind.module)
    for name in (kind.single, kind.several):
        present = getattr(module, name)
        setattr(module, name, getattr(present, _MARK, present))


def _several(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def several(*args: Any, initial_state: Any = None, **kwargs: Any) -> Any:
        if isinstance(initial_state, Held):
            initial_state = initial_state.materialize()
        return original(*args, initial_state=initial_state, **kwargs)

    return several


def _single(original: Callable[..., Any]) -> Callable[..., Any]:
    several = _several(original)

    @functools.wraps(original)
    def single(*, q: torch.Tensor, initial_state: Any = None, **kwargs: Any) -> Any:
        if not isinstance(initial_state, State):
            return original(q=q, initial_state=initial_state, **kwargs)
        packed = kwargs.get("cu_seqlens") is not None
        if not _one_token(q, initial_state, kwargs.get("cu_seqlens")):
            return several(q=q, initial_state=initial_state, **kwargs)
        out = initial_state.step(_inputs(initial_state, {"q": q, **kwargs}, packed))
        return (out[None] if packed else out[:, None]).to(q.dtype), initial_state

    return single


def _one_token(q: torch.Tensor, state: State, lengths: torch.Tensor | None) -> bool:
    """Whether every row has one. Layers that were given a mask pack the rows of a batch, [1,
    tokens, ...]; then the device is asked, as the packing has done itself."""
    if lengths is None:
        return q.shape[1] == 1
    return q.shape[1] == len(state.taken()) and bool((lengths.diff() == 1).all())


def _inputs(state: State, given: Mapping[str, Any], packed: bool) -> list[torch.Tensor]:
    """In the module's order: the package calls gate and step size g and beta."""
    found = []
    shape: Shape = state.pool.shape
    for spec in state.inputs:
        tensor = given[{"a": "g", "b": "beta"}.get(spec.name, spec.name)]
        if spec.constant:
            found.append(tensor.reshape(spec.sizes((1,), shape)))
        else:
            found.append(heads_of(tensor[0][:, None] if packed else tensor, spec, state))
    return found


def _check_version() -> None:
    try:
        found = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        found = "none"
    if ".".join(found.split(".")[:2]) not in TESTED:
        raise Unsupported(f"{PACKAGE}: expected a tested version, {listing(TESTED)}, found {found}")


def _layers(model: torch.nn.Module) -> dict[int, tuple[Layer, Any]]:
    """The layers with a spec, by their number. Errors: ArgumentError if there is none."""
    known = {(kind.module, kind.name): kind for kind in LAYERS}
    found: dict[int, tuple[Layer, Any]] = {}
    for part in model.modules() if isinstance(model, torch.nn.Module) else ():
        kind = known.get((type(part).__module__, type(part).__name__))
        if kind is not None:
            layer: Any = part
            found[layer.layer_idx] = (kind, layer)
    if not found:
        expected = f"a model with layers {listing(kind.name for kind in LAYERS)}"
        raise refused("model", expected, type(model).__name__)
    return found


def _picks(layer: Any) -> dict[str, str]:
    """Of the spec's choices, as the layer computes."""
    picks = {"beta": "raw2"} if layer.allow_neg_eigval else {}
    bound = getattr(layer, "lower_bound", None)
    if bound is None:
        return picks
    if bound != LOWER_BOUND:
        raise refused("model", f"layers with lower_bound {LOWER_BOUND} or none", bound)
    return {**picks, "gate": "lower_bound"}
