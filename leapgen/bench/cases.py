"""Inputs and states of a configuration: drawn once, the same for every contender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from leapgen.integrations.peers import Case
from leapgen.oracle.streams import Heads, stream
from leapgen.runtime.host import DTYPES, Shape
from leapgen.spec.model import Spec

STREAM = 128
"""Tokens of the drawn stream; each row follows it from a place of its own."""
STRIDE = 37
"""Places between one row and the next."""
MANY_ROWS = 256
"""Rows whose states alone are larger than any cache."""
MOST_SETS = 128
TOKENS = 16
"""Least number of consecutive tokens that are timed."""
SPREAD = 0.1
"""Standard deviation of the start states."""


def token_count(window: int) -> int:
    """Tokens that are timed: whole windows, so that every row flushes equally often."""
    return window * -(-TOKENS // window)


def set_count(rows: int, slot_bytes: int, cache_bytes: int) -> int:
    """Sets of states that together are twice as large as the cache; one where the rows of a single
    launch are many."""
    if rows >= MANY_ROWS:
        return 1
    return min(MOST_SETS, max(2, -(-2 * cache_bytes // (rows * slot_bytes))))


def cache_bytes(device: torch.device) -> int:
    """Of the second level; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    size: int = torch.cuda.get_device_properties(device).L2_cache_size
    return size


@dataclass
class Draws:
    """Streams of one spec, kept by heads: calibrating one takes seconds."""

    spec: Spec
    device: torch.device
    seed: int = 0
    _streams: dict[Heads, Mapping[str, torch.Tensor]] = field(default_factory=dict)

    def case(self, shape: Shape, rows: int, sets: int) -> Case:
        """Inputs shaped like a trained layer's for whole windows of tokens, and random states."""
        drawn = self._stream(Heads(shape.H, shape.HV, shape.K, shape.V))
        inputs = tuple(self._token(drawn, t, rows) for t in range(token_count(shape.P)))
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sizes = (sets, rows, shape.HV, shape.V, shape.K)
        states = torch.randn(sizes, generator=generator, device=self.device) * SPREAD
        picks = self.spec.nondefault_picks
        return Case(self.spec.name, picks, shape, rows, inputs, states)

    def _stream(self, heads: Heads) -> Mapping[str, torch.Tensor]:
        if heads not in self._streams:
            drawn = stream(self.spec, STREAM, heads, self.seed)
            self._streams[heads] = {
                x.name: torch.from_numpy(drawn[x.name]).to(self.device, DTYPES[x.dtype])
                for x in self.spec.inputs
            }
        return self._streams[heads]

    def _token(
        self, drawn: Mapping[str, torch.Tensor], token: int, rows: int
    ) -> dict[str, torch.Tensor]:
        places = (token + STRIDE * torch.arange(rows, device=self.device)) % STREAM
        return {
            x.name: drawn[x.name] if x.constant else drawn[x.name][places].contiguous()
            for x in self.spec.inputs
        }
