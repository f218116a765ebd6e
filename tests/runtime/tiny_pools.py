"""Pools and inputs of `tiny.py`, and a backend that runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from leapgen.runtime import host

SIZES = {"H": 2, "HV": 4, "K": 8, "V": 16, "window": 4, "compensators": 2}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def inputs(rows: int, value: float = 1.0) -> list[torch.Tensor]:
    key = torch.ones(rows, 2, 8, dtype=torch.bfloat16)
    return [key, torch.full((rows, 4, 16), value), torch.arange(4) * 100.0]


def sliced(module: host.Module, slots: int) -> dict[str, torch.Tensor]:
    """Pool tensors as slices at odd multiples of 16 bytes, in buffers full of ones."""
    pool = module.allocate(slots, **SIZES)
    out = {}
    for odd, (name, tensor) in enumerate(pool.items()):
        unit = 16 // tensor.itemsize
        stride = tensor.stride(0) + (2 * odd + 1) * unit
        base = torch.ones(unit * 3 + slots * stride, dtype=tensor.dtype)
        strides = (stride, *tensor.stride()[1:])
        out[name] = base.as_strided(tensor.shape, strides, unit).zero_()
    return out


class Spy:
    """A backend that runs nothing and keeps what it was given."""

    device = "cpu"

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.launched: list[str] = []

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., None]:
        name = func.attrs["global_symbol"]
        self.compiled.append(name)

        def launch(*arguments: Any) -> None:
            self.calls.append(arguments)
            self.launched.append(name)

        return launch
