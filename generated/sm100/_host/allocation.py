"""Shapes and pools of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .base import Base
from .checks import check_addressable, check_tensor, flat, integer, stride_argument
from .compilation import Backend, TileLang
from .descriptors import (
    ALIGNMENT,
    CHANNELS,
    DTYPES,
    MOST_CHANNELS,
    MOST_DRAFTS,
    PENDING,
    Buffer,
    Shape,
)
from .errors import ArgumentError, refuse
from .orders import Orders, orders_for
from .pool import Pool


class Allocation(Base):
    """Adds shapes and pools to what a module is."""

    def shape(
        self,
        H: int | None = None,
        HV: int | None = None,
        K: int | None = None,
        V: int | None = None,
        window: int | None = None,
        compensators: int | None = None,
        drafts: int = 0,
    ) -> Shape:
        """Checked shape-time numbers. HV is H unless given; the rest has the module's defaults."""

        def number(name: str, given: int | None, default: int | None, *rule: int) -> int:
            return integer(name, default if given is None else given, *rule)

        shape = Shape(
            K=number("K", K, self.defaults["K"], CHANNELS, CHANNELS),
            V=number("V", V, self.defaults["V"], CHANNELS, CHANNELS),
            H=number("H", H, None, 1),
            HV=number("HV", HV, H, 1),
            P=number("window", window, self.defaults["P"], 1),
            R=number("compensators", compensators, self.defaults["R"], 0),
            D=integer("drafts", drafts, 0),
        )
        for name, channels in (("K", shape.K), ("V", shape.V)):
            if channels > MOST_CHANNELS:
                raise refuse(name, f"at most {MOST_CHANNELS}", channels)
        has_compensators = any(b.role == "compensator" for b in self.buffers)
        most = min(shape.K, shape.V) if has_compensators else 0
        if most < shape.R:
            raise refuse("compensators", f"at most {most}", shape.R)
        if shape.HV % shape.H:
            raise refuse("HV", f"a multiple of H = {shape.H}", shape.HV)
        if shape.D and "verify" not in self.kernels:
            raise refuse("drafts", f"0, as format {self.format} has no kernels for them", shape.D)
        if shape.D > MOST_DRAFTS:
            raise refuse("drafts", f"at most {MOST_DRAFTS}", shape.D)
        if shape.P > 1 and not self.windowed:
            raise refuse("window", "1, as every step rewrites the state", shape.P)
        if self.limits and (reason := self.limits(*shape.builder_arguments)):
            raise ArgumentError(f"{self.name} for {self.arch}: {reason}")
        return shape

    def slot_buffers(self, shape: Shape) -> tuple[Buffer, ...]:
        """The tensors of a pool of this shape."""
        return (*self.buffers, PENDING) if shape.D else self.buffers

    def bytes_per_slot(self, **sizes: int) -> int:
        """Bytes that `allocate` takes for one slot: all buffers, padding included."""
        shape = self.shape(**sizes)
        buffers = self.slot_buffers(shape)
        return sum(b.strides(shape)[0] * DTYPES[b.dtype].itemsize for b in buffers)

    def allocate(
        self,
        slots: int,
        H: int | None = None,
        HV: int | None = None,
        K: int | None = None,
        V: int | None = None,
        window: int | None = None,
        compensators: int | None = None,
        device: torch.device | str | None = None,
        drafts: int = 0,
    ) -> Pool:
        """A pool of empty slots, as after `reset`; sizes as in `shape`. drafts: the most tokens a
        row that `verify` takes, a window's reserve."""
        shape = self.shape(H, HV, K, V, window, compensators, drafts)
        integer("slots", slots, 1)
        where = self._device(device)
        tensors: dict[str, torch.Tensor] = {}
        for buffer in self.slot_buffers(shape):
            strides = buffer.strides(shape)
            storage = torch.zeros(slots * strides[0], dtype=DTYPES[buffer.dtype], device=where)
            tensors[buffer.name] = storage.as_strided((slots, *buffer.sizes(shape)), strides)
        return self._pool(tensors, slots, None, shape, where)

    def pool(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        status: torch.Tensor | None = None,
        **sizes: int,
    ) -> Pool:
        """A pool over the caller's tensors [slots, heads, *tile], which may be slices: the base and
        the slot stride are multiples of 16 bytes, the head stride of vector tiles too, and one
        tile is contiguous. Slots hold whatever they held: reset or load them before use."""
        shape = self.shape(**sizes)
        names = [b.name for b in self.slot_buffers(shape)]
        if sorted(tensors) != sorted(names):
            raise refuse("tensors", ", ".join(names), ", ".join(tensors))
        first = tensors[names[0]]
        if not isinstance(first, torch.Tensor) or first.dim() == 0:
            raise refuse(names[0], "a tensor [slots, heads, *tile]", type(first).__name__)
        return self._pool(tensors, first.shape[0], status, shape, self._device(first.device))

    def _pool(
        self,
        tensors: Mapping[str, torch.Tensor],
        slots: int,
        status: torch.Tensor | None,
        shape: Shape,
        device: torch.device,
    ) -> Pool:
        if status is None:
            status = torch.zeros(4, dtype=torch.int32, device=device)
        check_tensor("status", status, (4,), torch.int32, device)
        arguments: dict[str, Any] = {}
        for buffer in self.slot_buffers(shape):
            name, sizes = buffer.name, (slots, *buffer.sizes(shape))
            tensor = check_tensor(name, tensors[name], sizes, DTYPES[buffer.dtype], device)
            if used := tensor.numel() > 0:
                check_addressable(tensor, buffer)
            arguments[name] = flat(tensor, self.target == "c")
            for axis, word in enumerate(("slot", "head") if buffer.tile else ("slot",)):
                units = tensor.stride(axis) * tensor.itemsize // ALIGNMENT
                size = sizes[axis] if used else 0
                arguments[f"{name}_{word}"] = stride_argument(name, word, size, units)
        in_order = {b.name: tensors[b.name] for b in self.slot_buffers(shape)}
        orders = self._orders(slots, shape, device)
        return Pool(in_order, status, shape, self._tag(shape), arguments, orders)

    def _orders(self, slots: int, shape: Shape, device: torch.device) -> Orders | None:
        config = self.config("step", shape) if "step" in self.kernels else {}
        if "fused" not in config:  # no step closes windows
            return None
        return orders_for(slots, shape.HV, config["min_blocks"], device)

    def _tag(self, shape: Shape) -> str:
        def make() -> str:
            numbers = ".".join(f"{name}{value}" for name, value in vars(shape).items())
            return f"{self.name}-{self.arch}:{self.digest}:{self.layout.tag(shape)}:{numbers}"

        tag: str = self._made.get(("tag", shape), make)
        return tag

    @property
    def _runner(self) -> Backend:
        return self.backend or TileLang("cpu" if self.target == "c" else "cuda")

    def _device(self, device: torch.device | str | None) -> torch.device:
        """The device, with its index; refused where the module's code does not run."""
        kind = self._runner.device
        device = torch.device(kind if device is None else device)
        if device.type != kind:
            raise refuse("device", f"{kind} (the module is for {self.arch})", device)
        if kind == "cuda":
            device = torch.empty(0, device=device).device
        self._compile_target(device)
        return device

    def _compile_target(self, device: torch.device) -> str | Mapping[str, str]:
        if self.target == "c":
            return "c"
        names = (self.target,) if isinstance(self.target, str) else self.target
        if device.type != "cuda":  # another backend runs it
            return {"kind": "cuda", "arch": names[0]}
        major, minor = torch.cuda.get_device_capability(device)
        for name in names:
            if name.removeprefix("sm_").rstrip("af") == f"{major}{minor}":
                return {"kind": "cuda", "arch": name}
        raise refuse("device", f"one of {', '.join(names)}", f"capability {major}.{minor}")
