"""Whole decode steps of a model with a fixed batch: caches, one CUDA graph, and the clock.

Every row attends to all `context` positions of a static KV cache at every step, and its new token
replaces the oldest one: what a step costs at that context.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch
from transformers.cache_utils import DynamicCache, LinearAttentionLayer, StaticLayer

from leapgen.integrations.decode_models import FULL, LINEAR
from leapgen.integrations.fp32_state import Call, Fp32State
from leapgen.integrations.state import Held, State
from leapgen.runtime.host import Input, Module

CHUNK = 64
"""Rows whose start states are drawn at once."""
TIMED = 0.25
"""Seconds of a sample; and at least STEPS steps, so that every phase of a window is in it."""
STEPS, SAMPLES = 32, 3
MASKS = {FULL: None, LINEAR: None}


class Arm(Protocol):
    """A way to keep the recurrent states. `rows`: of the batch; row i keeps slot i."""

    name: str
    title: str

    def hold(self, rows: int, slots: torch.Tensor) -> Held:
        """The states of one layer; slots: int32 [rows], i or -1 where a row is idle."""

    def load(self, held: Any, first: int, states: torch.Tensor) -> None:
        """FP32 [some rows, HV, V, K] into the rows from `first` on."""

    def reset(self, held: Any, rows: torch.Tensor) -> None:
        """Empty states of some rows, int32."""

    def bytes(self, held: Any) -> int:
        """Allocated for all rows."""


@dataclass
class Quantized:
    """One of our modules. sizes: H, HV, K, V."""

    name: str
    title: str
    module: Module
    sizes: Mapping[str, int]

    def hold(self, rows: int, slots: torch.Tensor) -> State:
        """See Arm."""
        pool = self.module.allocate(rows, device=slots.device, **self.sizes)
        return State(self.module, pool, slots=slots)

    def load(self, held: State, first: int, states: torch.Tensor) -> None:
        """At phases that differ from row to row, so that flushes spread as in service."""
        rows = torch.arange(first, first + len(states), dtype=torch.int32, device=states.device)
        window = held.pool.shape.P
        self.module.load_state(held.pool, rows, states, (rows % window).to(torch.int32))

    def reset(self, held: State, rows: torch.Tensor) -> None:
        """See Arm."""
        self.module.reset(held.pool, rows)

    def bytes(self, held: State) -> int:
        """See Arm."""
        return sum(t.untyped_storage().nbytes() for t in held.pool.values())


@dataclass
class Full:
    """FP32 states in place. inputs: of the step that the models' functions are given."""

    name: str
    title: str
    call: Call
    inputs: tuple[Input, ...]
    sizes: Mapping[str, int]

    def hold(self, rows: int, slots: torch.Tensor) -> Fp32State:
        """See Arm; idle rows are computed too."""
        size = (rows, self.sizes["HV"], self.sizes["V"], self.sizes["K"])
        tensor = torch.zeros(size, dtype=torch.float32, device=slots.device)
        return Fp32State(self.call, tensor, self.inputs)

    def load(self, held: Fp32State, first: int, states: torch.Tensor) -> None:
        """See Arm."""
        held.tensor[first : first + len(states)] = states

    def reset(self, held: Fp32State, rows: torch.Tensor) -> None:
        """See Arm."""
        held.tensor[rows.long()] = 0

    def bytes(self, held: Fp32State) -> int:
        """See Arm."""
        return held.tensor.untyped_storage().nbytes()


class _Rolling(StaticLayer):  # type: ignore[misc]
    """Keys and values of the last `context` tokens, random at first."""

    def __init__(self, context: int, positions: torch.Tensor) -> None:
        super().__init__(context)
        self.positions = positions

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates."""
        super().lazy_initialization(key_states, value_states)
        generator = torch.Generator(self.device).manual_seed(1)  # the same in every decoder
        self.keys.normal_(generator=generator)
        self.values.normal_(generator=generator)

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The new token in place of the oldest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = (self.positions % self.max_cache_len)[:, :, None, None]
        for cache, new in ((self.keys, key_states), (self.values, value_states)):
            cache.scatter_(2, place.expand_as(new), new)
        return self.keys, self.values


class _HeldLayer(LinearAttentionLayer):  # type: ignore[misc]
    """A held state and a convolution state that is full from the start."""

    def __init__(self, held: Held, conv: torch.Tensor) -> None:
        super().__init__()
        self.recurrent_states[0], self.conv_states[0] = held, conv
        self.has_previous_state[0] = True
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = True

    def update_recurrent_state(self, recurrent_states: Any, *_: Any, **__: Any) -> Any:
        """It is there already."""
        return recurrent_states


class Decoder:
    """A model, an arm, a batch; closed by `close`, or its memory stays.

    tokens, positions  int64 [rows, 1]: the next step's; changed by it (greedy)
    slots              int32 [rows]: a row is idle where it is -1
    """

    def __init__(self, model: Any, arm: Arm, rows: int, context: int, seed: int = 0) -> None:
        self.model, self.arm, self.rows = model, arm, rows
        device = model.lm_head.weight.device
        self.device = device
        vocabulary = model.config.vocab_size
        self.tokens = (torch.arange(rows, device=device)[:, None] * 7 + 3) % vocabulary
        self.positions = torch.full((rows, 1), context, dtype=torch.int64, device=device)
        self.slots = torch.arange(rows, dtype=torch.int32, device=device)
        self.cache = DynamicCache(config=model.config)
        self.held: dict[int, Held] = {}
        self._conv: list[torch.Tensor] = []
        for index, kind in enumerate(model.config.layer_types):
            self.cache.layers[index] = (
                self._linear(index) if kind == LINEAR else _Rolling(context, self.positions)
            )
        self.fill(seed)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _linear(self, index: int) -> _HeldLayer:
        block = self.model.model.layers[index]
        conv = next(m for m in block.modules() if isinstance(m, torch.nn.Conv1d))
        size = (self.rows, conv.in_channels, conv.kernel_size[0])
        self._conv.append(torch.zeros(size, dtype=torch.bfloat16, device=self.device))
        self.held[index] = self.arm.hold(self.rows, self.slots)
        return _HeldLayer(self.held[index], self._conv[-1])

    def fill(self, seed: int) -> None:
        """Random start states, the same for every arm."""
        generator = torch.Generator(self.device).manual_seed(seed)
        sizes: Any = self.arm
        axes = (sizes.sizes["HV"], sizes.sizes["V"], sizes.sizes["K"])
        for held in self.held.values():
            for first in range(0, self.rows, CHUNK):
                size = (min(CHUNK, self.rows - first), *axes)
                states = torch.randn(size, generator=generator, device=self.device)
                self.arm.load(held, first, states * 0.1)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """One token of every row; the logits, [rows, vocabulary]."""
        logits: torch.Tensor = self.model(
            input_ids=self.tokens,
            position_ids=self.positions,
            past_key_values=self.cache,
            attention_mask=MASKS,
            use_cache=True,
        ).logits[:, -1]
        self.tokens.copy_(logits.argmax(dim=-1, keepdim=True))
        self.positions.add_(1)
        return logits

    def capture(self) -> None:
        """One step as a CUDA graph; elsewhere nothing."""
        if self.device.type != "cuda":
            self.step()
            return
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize(self.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.step()

    def run(self) -> None:
        """One step: the graph where there is one."""
        if self._graph is None:
            self.step()
        else:
            self._graph.replay()

    def time(self) -> list[float]:
        """Microseconds of a step, in each of a few samples; `capture` comes first."""
        return sample(self.run, self.device)

    def bytes(self) -> dict[str, int]:
        """Allocated for all rows: states, convolution states, keys and values."""
        attention = [x for x in self.cache.layers if isinstance(x, _Rolling)]
        return {
            "state": sum(self.arm.bytes(held) for held in self.held.values()),
            "convolution": sum(t.nbytes for t in self._conv),
            "attention": sum(x.keys.nbytes + x.values.nbytes for x in attention),
        }

    def close(self) -> None:
        """Frees the memory."""
        self.__dict__.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def sample(body: Callable[[], object], device: torch.device) -> list[float]:
    """Microseconds of one call, SAMPLES times."""
    body()
    if device.type != "cuda":
        return [_wall(body) for _ in range(SAMPLES)]
    count = max(STEPS, int(TIMED * 1e6 / _events(body, STEPS)))
    return [_events(body, count) for _ in range(SAMPLES)]


def _wall(body: Callable[[], object]) -> float:
    start = time.perf_counter()
    body()
    return (time.perf_counter() - start) * 1e6


def _events(body: Callable[[], object], count: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(count):
        body()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) * 1e3 / count


def spread(samples: list[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": median(samples), "least": min(samples), "largest": max(samples)}
