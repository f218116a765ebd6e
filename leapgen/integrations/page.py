"""How a slot lies in a page of an engine: its pool tensors one after the other, as bytes.

An engine keeps one page a layer for each block of a request and describes it as a tuple of states
with shapes and types. The first is the convolution's, as the engine has it; then come the buffers
of a generated module, payload first, records last, each a state of plain bytes that starts at a
multiple of 16: what reads whole pages, or a prefix of their states, needs to know nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from leapgen.integrations.state import refused
from leapgen.runtime.host import ALIGNMENT, DTYPES, Buffer, Module, Pool, Shape

_ROLES = ("payload", "scale", "compensator", "rounding", "cursor", "record")
"""The order in a page. What a block's end needs stands before the records."""


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Field:
    """One state of a page that holds a buffer: `skip` bytes that bring it to a multiple of 16,
    then the buffer's."""

    buffer: Buffer
    skip: int
    size: int

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.skip + self.size


@dataclass(frozen=True)
class Page:
    """A page of one layer.

    conv, conv_dtype  the convolution's state, shape without the blocks; (0,) where the engine keeps
                      it elsewhere
    sizes             of `Module.shape`: H, HV, K, V, and window or compensators where given
    """

    module: Module
    conv: tuple[int, ...]
    conv_dtype: torch.dtype
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        self.module.shape(**self.sizes)  # refuses what the kernels do not take

    @property
    def shape(self) -> Shape:
        """Shape-time numbers of the pool."""
        return self.module.shape(**self.sizes)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The states after the convolution's, in order. Buffers without elements have none."""
        shape, found = self.shape, []
        at = prod(self.conv) * self.conv_dtype.itemsize
        for buffer in sorted(self.module.buffers, key=lambda b: _ROLES.index(b.role)):
            size = buffer.strides(shape)[0] * DTYPES[buffer.dtype].itemsize
            if size:
                field = Field(buffer, _rounded(at) - at, _rounded(size))
                found.append(field)
                at += field.bytes
        return tuple(found)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """What an engine asks for: a shape for each state, without the blocks."""
        return (self.conv, *((field.bytes,) for field in self.fields))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """And their types."""
        return (self.conv_dtype, *(torch.int8 for _ in self.fields))

    @property
    def bytes(self) -> int:
        """Of a page, before the engine pads it."""
        return prod(self.conv) * self.conv_dtype.itemsize + sum(f.bytes for f in self.fields)

    def copied(self, records: bool) -> int:
        """How many of the states follow a request into its next block; without records, those that
        a window's end leaves behind."""
        if records:
            return len(self.shapes)
        return 1 + sum(field.buffer.role != "record" for field in self.fields)

    def cut(self, pages: torch.Tensor) -> list[torch.Tensor]:
        """The buffers' states of pages that an engine has as bytes: int8 [blocks, bytes]."""
        at, states = self.bytes - sum(field.bytes for field in self.fields), []
        for field in self.fields:
            states.append(pages[:, at : at + field.bytes])
            at += field.bytes
        return states

    def pool(self, states: Sequence[torch.Tensor]) -> Pool:
        """A pool whose slots are the engine's blocks.

        states   one a field, int8 [blocks, bytes] with any stride between blocks: views of pages
        Errors: ArgumentError for other states, or pages that no kernel can address.
        """
        fields, shape = self.fields, self.shape
        if len(states) != len(fields):
            raise refused("states", f"{len(fields)} of bytes", len(states))
        tensors: dict[str, Any] = {}
        for field, state in zip(fields, states, strict=True):
            tensors[field.buffer.name] = _typed(field, state, shape)
        first = states[0]
        for buffer in self.module.buffers:
            if buffer.name not in tensors:
                sizes = (first.shape[0], *buffer.sizes(shape))
                dtype = DTYPES[buffer.dtype]
                tensors[buffer.name] = torch.empty(sizes, dtype=dtype, device=first.device)
        given: dict[str, Any] = dict(self.sizes)
        return self.module.pool(tensors, **given)


def _typed(field: Field, state: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A buffer [blocks, heads, *tile] on the bytes of its state."""
    buffer, name = field.buffer, f"states[{field.buffer.name}]"
    found = (tuple(state.shape[1:]), state.dtype, state.stride(1))
    if found != ((field.bytes,), torch.int8, 1):
        raise refused(name, f"int8 [blocks, {field.bytes}], bytes side by side", found)
    dtype = DTYPES[buffer.dtype]
    start, apart = state.storage_offset() + field.skip, state.stride(0)
    for what, count in (("start", start), ("distance of two blocks", apart)):
        if count % ALIGNMENT:
            raise refused(name, f"a {what} of a multiple of {ALIGNMENT} bytes", count)
    whole = state.as_strided((state.shape[0], field.size), (apart, 1), start).view(dtype)
    strides = (apart // dtype.itemsize, *buffer.strides(shape)[1:])
    return whole.as_strided((state.shape[0], *buffer.sizes(shape)), strides)
