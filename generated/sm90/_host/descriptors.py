"""What a generated module says of itself: shapes, pool tensors, inputs, kernels, payload order."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
}
ALIGNMENT = 16  # bytes; the width of the kernels' vector accesses
LARGEST_STRIDE = 1 << 32  # of elements, of 16 bytes in a pool
CHANNELS = 8  # K and V are multiples of it
MOST_CHANNELS = 256  # a block has a thread for each
MOST_DRAFTS = 16
DRAFT_KERNELS = ("verify",)
STATE_AXES = {"VK": ("value", "key"), "KV": ("key", "value")}  # last axes of an FP32 state
EXPORT_VERSION = 2
STORED = ("payload", "scale", "compensator", "residual")  # roles of what a state is made of
CHECKPOINT = (*STORED, "rounding")  # of what a checkpoint has, beside the phase


@dataclass(frozen=True)
class Shape:
    """Shape-time numbers: K key and V value channels, H key and HV value heads, P tokens a window,
    R compensators, D drafts."""

    K: int
    V: int
    H: int
    HV: int
    P: int
    R: int
    D: int = 0

    def size(self, word: str) -> int:
        """The number a word of a tile stands for: a product of names and integers, perhaps over an
        integer and rounded up (`K/32`). P is the capacity for records here, window + drafts."""
        values = {**vars(self), "P": self.P + self.D}
        product, _, divisor = word.partition("/")
        whole = prod(int(f) if f.isdigit() else values[f] for f in product.split("*"))
        return -(-whole // int(divisor or 1))

    @property
    def builder_arguments(self) -> tuple[int, ...]:
        """What the builders of prim_funcs take; D only where there are drafts."""
        numbers = tuple(vars(self).values())
        return numbers if self.D else numbers[:-1]


@dataclass(frozen=True)
class Buffer:
    """One pool tensor, [slots, heads, *tile].

    heads   "H" or "HV"
    tile    words for the sizes of one (slot, head) tile; empty: one scalar a head
    dtype   a key of DTYPES
    role    payload | scale | compensator | residual | rounding | decay | record | cursor
    """

    name: str
    heads: str
    tile: tuple[str, ...]
    dtype: str
    role: str

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """[heads, *tile]"""
        return tuple(shape.size(word) for word in (self.heads, *self.tile))

    def packed(self, shape: Shape) -> bool:
        """Whether an element holds several codes."""
        return prod(self.sizes(shape)[1:]) < shape.K * shape.V

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Element strides of an allocated tensor: tiles are contiguous; slots, and the heads of
        vector tiles, are padded to 16 bytes."""
        unit = ALIGNMENT // DTYPES[self.dtype].itemsize
        heads, *tile = self.sizes(shape)
        head = -(-prod(tile) // unit) * unit if tile else 1
        return (
            -(-heads * head // unit) * unit,
            head,
            *(prod(tile[i + 1 :]) for i in range(len(tile))),
        )


PENDING = Buffer("pending", "HV", (), "int32", "cursor")  # of pools with drafts


@dataclass(frozen=True)
class Input:
    """One raw tensor of a step: [rows, heads, axis]; no rows if constant, no axis if "".

    per   "key" or "value": which heads
    axis  "", "K" or "V"
    """

    name: str
    per: str
    axis: str
    dtype: str
    constant: bool = False

    def sizes(self, rows: int | tuple[int, ...], shape: Shape) -> tuple[int, ...]:
        """[*rows, heads, axis], as far as they exist; rows: one number or more."""
        rows = (rows,) if isinstance(rows, int) else rows
        axis = (shape.size(self.axis),) if self.axis else ()
        heads = shape.HV if self.per == "value" else shape.H
        return (heads, *axis) if self.constant else (*rows, heads, *axis)

    def strides(self, rows: tuple[str, ...]) -> tuple[str, ...]:
        """Ends of the names of the kernel's stride arguments, axis by axis."""
        words = ("head", "axis") if self.axis else ("head",)
        return words if self.constant else (*rows, *words)


@dataclass(frozen=True)
class Kernel:
    """How to build one kernel.

    build         (K, V, H, HV, P, R[, D], **config) -> prim_func
    config        (K, V, H, HV, P, R[, D]) -> dict: the default config, a rule of arch and shape
    pass_configs  TileLang pass configs beyond the host's
    """

    build: Callable[..., Any]
    config: Callable[..., Mapping[str, Any]]
    pass_configs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Private order of a payload tile: `offset(k, v, K, V)` is the element that holds (k, v), in
    integer arithmetic that torch's integer tensors understand.

    plane   (i, each, K, V): where a plane of `each` codes a byte, lowest bits first, has the code
            of element i; None: in canonical order
    """

    name: str
    offset: Callable[..., Any]
    plane: Callable[..., Any] | None = None

    def order(self, shape: Shape, device: torch.device | str = "cpu") -> torch.Tensor:
        """[K, V] int64: where each canonical element lies in the tile."""
        K, V = shape.K, shape.V
        k, v = (torch.arange(n, dtype=torch.int64, device=device) for n in (K, V))
        order: torch.Tensor = self.offset(k[:, None].expand(K, V), v.expand(K, V), K, V)
        return order

    def planes(self, values: torch.Tensor, shape: Shape, back: bool = False) -> torch.Tensor:
        """A plane of packed codes [..., bytes] in canonical order (a value channel's keys are
        neighbours); back: from canonical to private order."""
        if self.plane is None:
            return values
        each = shape.K * shape.V // values.shape[-1]
        order = self.order(shape, values.device).T.flatten()
        place = self.plane(order, each, shape.K, shape.V)
        shift = torch.arange(each, device=values.device) * (8 // each)
        codes = (values[..., None] >> shift & (1 << 8 // each) - 1).flatten(-2)
        if back:
            found = torch.empty_like(codes)
            found[..., place] = codes
        else:
            found = codes[..., place]
        return (found.reshape(*values.shape, each) << shift).sum(dim=-1).to(values.dtype)

    def tag(self, shape: Shape) -> str:
        """Identifies the order at one shape."""
        return f"{self.name}-{zlib.crc32(self.order(shape).numpy().tobytes()):08x}"
