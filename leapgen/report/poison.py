"""Pools as engines hand them over: slices of larger buffers, and every gap poisoned.

A read outside a tile then shows as NaN (0x7F for codes), and a write outside one as a changed gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from leapgen.runtime.host import ALIGNMENT, DTYPES, Buffer, Module, Pool, Shape

CODE = 0x7F


def filler(dtype: torch.dtype) -> float | int:
    """What poisons a tensor: NaN, or a code that no quantizer leaves lying about."""
    return float("nan") if dtype.is_floating_point else CODE


@dataclass(frozen=True)
class Poisoned:
    """A pool over slices, the larger buffers, and the places in them that belong to no tile."""

    pool: Pool
    storages: dict[str, torch.Tensor]
    gaps: dict[str, torch.Tensor]

    def damaged(self) -> int:
        """Elements of gaps that somebody wrote."""
        return sum(_changed(self.storages[name][gap]) for name, gap in self.gaps.items())

    def poison_records(self, buffers: tuple[Buffer, ...]) -> None:
        """Poisons every record at or beyond its slot's cursor. What value heads share is stale
        beyond the largest cursor of the group."""
        shape = self.pool.shape
        for buffer in buffers:
            if buffer.role != "record":
                continue
            tensor = self.pool[buffer.name]
            heads, entries = tensor.shape[1], tensor.shape[2]
            cursor = self.pool["cursor"].reshape(tensor.shape[0], heads, -1).amax(dim=2)
            token = torch.arange(entries, device=tensor.device) * shape.P // entries
            stale = token >= cursor[..., None]
            stale = stale.reshape(*stale.shape, *[1] * (tensor.dim() - 3)).expand(tensor.shape)
            tensor.masked_fill_(stale, filler(tensor.dtype))


def poisoned(module: Module, shape: Shape, slots: int, device: str) -> Poisoned:
    """A pool whose tensors start at odd multiples of 16 bytes, with gaps between heads and slots.

    Everything is poison, tiles included: slots must be reset or loaded before use.
    """
    tensors, storages, gaps = {}, {}, {}
    for i, buffer in enumerate(module.buffers):
        dims, strides, base = _slice(buffer, shape, slots, i)
        dtype = DTYPES[buffer.dtype]
        size = base + sum((n - 1) * s for n, s in zip(dims, strides, strict=True)) + 64
        storage = torch.empty(max(size, 1), dtype=dtype, device=device)
        storage.fill_(filler(dtype))
        gap = torch.ones(storage.shape, dtype=torch.bool, device=device)
        if prod(dims):
            gap.as_strided(dims, strides, base).fill_(False)
        tensors[buffer.name] = storage.as_strided(dims, strides, base if prod(dims) else 0)
        storages[buffer.name], gaps[buffer.name] = storage, gap.nonzero()[:, 0]
    pool = module.pool(
        tensors,
        H=shape.H,
        HV=shape.HV,
        K=shape.K,
        V=shape.V,
        window=shape.P,
        compensators=shape.R,
    )
    return Poisoned(pool, storages, gaps)


def _slice(
    buffer: Buffer, shape: Shape, slots: int, odd: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Dims, strides and base of a tensor inside its storage, in elements."""
    unit = ALIGNMENT // DTYPES[buffer.dtype].itemsize
    dims = (slots, *buffer.sizes(shape))
    tight, head, *inner = buffer.strides(shape)
    if buffer.tile:
        head += unit * (odd % 3)
        tight = dims[1] * head
    slot = tight + unit * (2 * (odd % 2) + 1)
    return dims, (slot, head, *inner), unit * (2 * odd + 1)


def _changed(elements: torch.Tensor) -> int:
    """How many differ from the poison, bit for bit."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32}[elements.itemsize]
    poison = torch.full_like(elements[:1], filler(elements.dtype))
    return int((elements.view(words) != poison.view(words)).sum())
