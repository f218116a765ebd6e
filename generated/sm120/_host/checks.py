"""Arguments: tests that refuse them by name, and the views that kernels receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .descriptors import ALIGNMENT, LARGEST_STRIDE, Buffer
from .errors import refuse


def integer(name: str, value: Any, least: int, multiple: int = 1) -> int:
    """The number, if it is a whole one of at least `least` and a multiple of `multiple`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or value % multiple:
        of = f", a multiple of {multiple}" if multiple > 1 else ""
        raise refuse(name, f"an integer of at least {least}{of}", value)
    return int(value)


def check_tensor(
    name: str, tensor: Any, sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tensor, if it is what is expected. Any stride is accepted."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise refuse(name, "a dense torch tensor", type(tensor).__name__)
    if tuple(tensor.shape) != tuple(sizes):
        raise refuse(name, f"shape {list(sizes)}", list(tensor.shape))
    if tensor.dtype != dtype:
        raise refuse(name, dtype, tensor.dtype)
    if tensor.device != device:
        raise refuse(name, f"device {device}", tensor.device)
    return tensor


def stride_argument(name: str, word: str, size: int, stride: int) -> int:
    """A stride as a kernel's argument: 0 where there is one element. Kernels take 32 bits of it,
    and multiply them in 64."""
    if size > 1 and stride >= LARGEST_STRIDE:
        raise refuse(name, f"a {word} stride below {LARGEST_STRIDE}", stride)
    return stride if size > 1 else 0


def check_range(
    name: str,
    numbers: torch.Tensor | None,
    slots: torch.Tensor,
    first_slot: int,
    most: int | None,
) -> None:
    """Names the first active row whose number is not in 0..most. Synchronises."""
    rows = [] if numbers is None else zip(slots.tolist(), numbers.tolist(), strict=True)
    for row, (slot, number) in enumerate(rows):
        if slot >= first_slot and (number < 0 or (most is not None and number > most)):
            expected = "a number of at least 0" if most is None else f"a number in 0..{most}"
            raise refuse(f"{name}[{row}]", expected, number)


def check_writable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if no two elements share memory (tested by nesting its axes)."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            strides = list(tensor.stride())
            raise refuse(name, "elements that do not overlap", f"strides {strides}")
        extent += stride * (size - 1)
    return tensor


def check_addressable(tensor: torch.Tensor, buffer: Buffer) -> None:
    """Refuses a pool tensor whose tiles the kernels cannot address."""
    name, sizes, strides = buffer.name, tensor.shape, tensor.stride()
    if tensor.data_ptr() % ALIGNMENT:
        raise refuse(name, f"a base aligned to {ALIGNMENT} bytes", hex(tensor.data_ptr()))
    padded = ("slot", "head") if buffer.tile else ("slot",)
    for word, size, stride in zip(padded, sizes, strides, strict=False):
        apart = stride * tensor.itemsize
        if size > 1 and apart % ALIGNMENT:
            expected = f"a {word} stride of a multiple of {ALIGNMENT} bytes"
            raise refuse(name, expected, f"{apart} bytes")
    inner = 1
    for size, stride in zip(sizes[: len(padded) - 1 : -1], strides[::-1], strict=False):
        if size > 1 and stride != inner:
            raise refuse(name, "a contiguous tile of one slot and head", f"strides {strides}")
        inner *= size
    check_writable(name, tensor)


def flat(tensor: torch.Tensor, bf16_as_uint16: bool = False) -> torch.Tensor:
    """A 1-D view from the first to the last element, at the same pointer."""
    if tensor.numel() == 0:  # kernels take no null pointer
        tensor = torch.zeros(ALIGNMENT, dtype=tensor.dtype, device=tensor.device)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    view = tensor.detach().as_strided((last + 1,), (1,), tensor.storage_offset())
    return view.view(torch.uint16) if bf16_as_uint16 and view.dtype == torch.bfloat16 else view
