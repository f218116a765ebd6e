"""Scales: what a group of numbers is divided by before its codes are taken.

A scale belongs to a head, a value channel (a column: reduction over keys), a key channel (a row),
or a block of 16 or 32 of a channel. Its statistic is the group's largest magnitude, mapped to the
grid's largest value; for Gaussian levels it is the RMS, mapped to one. Codes are taken by the scale
as it is stored, after its own rounding, so that this rounding is no error of its own.

Sources: OCP MX v1.0 section 6.3 (E8M0, `floor`); torchao's mx_formats names the other three modes
(`rceil` is NVIDIA's); NVFP4's two levels are E4M3 a block and FP32 a tensor, which here is one
head's state of one request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.grids import GRIDS, Grid

F32 = npt.NDArray[np.float32]
Parts = dict[str, npt.NDArray[Any]]

LEAST = 1e-35
"""A group whose statistic is below this is stored as zero: what its numbers are multiplied with
would leave FP32's range."""
LEAST_HEAD = 1e-30
"""The same for a head with E4M3 scales, which multiply that range by 448 / 2^-9."""
E8M0_BIAS = 127
LEAST_E4M3 = 2.0**-9
"""Smallest block scale of a head that is not zero."""


@dataclass(frozen=True)
class Scale:
    """One way of scaling.

    name      the word used in specs
    per       head, value or key channel; none: numbers are taken as they are
    block     numbers of a channel that share a scale; 0: all. The last block may be shorter.
    kind      element type of the stored scale: fp32, bf16, e8m0, e4m3 (times an FP32 of the head)
    rounding  how the scale is rounded: nearest, up; for e8m0 floor, ceil, even, rceil
    """

    name: str
    per: str
    block: int = 0
    kind: str = "fp32"
    rounding: str = "nearest"

    def tiles(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """(name, tile, element type, one line for people) of what is stored."""
        if self.per == "none":
            return ()
        if self.per == "head":
            return (("head_scale", (), "fp32", "scale of the head"),)
        if not self.block:
            name, dim = {"value": ("value_scale", "V"), "key": ("row_scale", "K")}[self.per]
            return ((name, (dim,), self.kind, f"scale, one a {self.per} channel"),)
        dims = {"value": (f"K/{self.block}", "V"), "key": ("K", f"V/{self.block}")}[self.per]
        dtype = "uint8" if self.kind in ("e8m0", "e4m3") else self.kind
        along = "keys" if self.per == "value" else "values"
        block = ("block_scale", dims, dtype, f"scale, one a block of {self.block} {along}")
        if self.kind != "e4m3":
            return (block,)
        return (block, ("tensor_scale", (), "fp32", "what block scales are relative to"))

    def slack(self, grid: Grid) -> tuple[float, float]:
        """(how many times too wide a scale may be by its own rounding, which part of a largest
        magnitude it may clip)."""
        binade = 2.0 ** (grid.binade + 1) / grid.top  # size / top just below the next power of two
        step = 2.0**-4 if self.kind == "e4m3" else 2.0**-8  # half of one of the scale's own
        match self.kind, self.rounding:
            case "e8m0", "floor" | "even":
                return 2.0 / binade, 1 - 1 / binade
            case "e8m0", _:
                return 2.0 if self.rounding == "rceil" else 4.0 / binade, 0.0
            case "e4m3" | "bf16", "up":
                return 1 + 2 * step, 0.0
            case "e4m3" | "bf16", _:
                return 1 + step, 1 - 1 / (1 + step)
        return 1.0 + 2.0**-20, 0.0

    # ---- groups

    def _grouped(self, x: F32) -> tuple[F32, int]:
        """x [..., K, V] with its groups along one axis (padded with zeros), and that axis."""
        if self.per == "head":
            return x.reshape(*x.shape[:-2], 1, -1), -1
        axis = -2 if self.per == "value" else -1
        if not self.block:
            return x, axis
        short = -x.shape[axis] % self.block
        if short:
            pad = [(0, 0)] * x.ndim
            pad[axis] = (0, short)
            x = np.pad(x, pad)
        *lead, K, V = x.shape
        if axis == -2:
            return x.reshape(*lead, K // self.block, self.block, V), -2
        return x.reshape(*lead, K, V // self.block, self.block), -1

    def statistic(self, x: F32, grid: Grid) -> F32:
        """Largest magnitude, or RMS, of every group."""
        groups, axis = self._grouped(x)
        peak: F32 = np.abs(groups).max(axis=axis)
        if not grid.scaled_by_rms:
            return peak
        size = np.where(peak > 0, peak, 1)  # squares of what is scaled to one cannot overflow
        unit = groups / np.expand_dims(size, axis)
        if self.block:  # a short last block is padded: count what is there
            length = x.shape[axis]
            full = np.full(-(-length // self.block), self.block)
            full[-1] = length - (len(full) - 1) * self.block
            count = full[:, None] if axis == -2 else full
        else:
            count = np.array(groups.shape[axis])
        mean = (unit * unit).sum(axis=axis, dtype=np.float32) / count.astype(np.float32)
        rms: F32 = (np.sqrt(mean) * size).astype(np.float32)
        return rms

    def spread(self, scale: F32, K: int, V: int) -> F32:
        """One factor a group, as an array that broadcasts to [..., K, V]."""
        if self.per == "head":
            head: F32 = scale[..., None]
            return head
        if not self.block:
            return np.expand_dims(scale, -2 if self.per == "value" else -1)
        axis, length = (-2, K) if self.per == "value" else (-1, V)
        return np.repeat(scale, self.block, axis=axis)[
            (..., slice(length), slice(None)) if axis == -2 else (..., slice(length))
        ]

    # ---- rounding of scales

    def encode(self, x: F32, grid: Grid) -> tuple[Parts, F32]:
        """What is stored for numbers [..., K, V], and what they are multiplied with (broadcasts).

        Codes are those of the product; the groups of zeros are multiplied with zero.
        """
        if self.per == "none":
            return {}, np.ones((1, 1), np.float32)
        size = self.statistic(x, grid)
        parts, inverse = getattr(self, f"_{self.kind}")(size, grid)
        names = [tile[0] for tile in self.tiles()]
        if self.per == "head":
            parts = tuple(part[..., 0] for part in parts)
        stored = dict(zip(names, parts, strict=True))
        return stored, self.spread(inverse, *x.shape[-2:])

    def decode(self, parts: Parts, grid: Grid, K: int, V: int) -> F32:
        """What codes are multiplied with, from the stored scales; broadcasts to [..., K, V]."""
        if self.per == "none":
            return np.ones((1, 1), np.float32)
        stored = [parts[tile[0]] for tile in self.tiles()]
        match self.kind:
            case "e8m0":
                scale = from_e8m0(stored[0])
            case "e4m3":
                scale = GRIDS["e4m3"].decode(stored[0]) * stored[1][..., None, None]
            case _:
                scale = elements.decode(self.kind, stored[0])
        if self.per == "head":
            scale = scale[..., None]
        return self.spread(scale, K, V)

    def _fp32(self, size: F32, grid: Grid) -> tuple[tuple[F32], F32]:
        top = np.float32(grid.top)
        live = size >= np.float32(LEAST)
        inverse = np.where(live, top / np.where(live, size, 1), np.float32(0))
        return (np.where(live, size / top, np.float32(0)),), inverse

    def _bf16(self, size: F32, grid: Grid) -> tuple[tuple[npt.NDArray[Any]], F32]:
        (exact,), _ = self._fp32(size, grid)
        bits = elements.to_bf16(exact)
        if self.rounding == "up":  # positive: the next code is the next larger number
            bits = (bits + (elements.from_bf16(bits) < exact)).astype(np.uint16)
        scale = elements.from_bf16(bits)
        live = scale > 0
        return (bits,), np.where(live, 1 / np.where(live, scale, 1), 0).astype(np.float32)

    def _e8m0(self, size: F32, grid: Grid) -> tuple[tuple[npt.NDArray[np.uint8]], F32]:
        code = e8m0(size, grid, self.rounding)
        return (code,), (1 / from_e8m0(code)).astype(np.float32)

    def _e4m3(self, size: F32, grid: Grid) -> tuple[tuple[npt.NDArray[Any], F32], F32]:
        block = GRIDS["e4m3"]
        largest: F32 = size.max(axis=(-2, -1))
        (tensor,), _ = self._fp32(largest / np.float32(block.top), grid)
        tensor = np.where(largest >= np.float32(LEAST_HEAD), tensor, np.float32(0))
        live = (tensor > 0)[..., None, None]
        exact = size / np.float32(grid.top) / np.where(live, tensor[..., None, None], 1)
        scale: F32 = np.clip(exact, LEAST_E4M3, block.top).astype(np.float32)
        code = block.encode(scale)
        if self.rounding == "up":
            code = (code + (block.decode(code) < scale)).astype(np.uint8)
        code = np.where(live, code, np.uint8(0))
        one = np.where(live, tensor[..., None, None], 1)
        inverse = np.where(live, (1 / one) / block.decode(np.maximum(code, 1)), 0)
        return (code, tensor), inverse.astype(np.float32)


def e8m0(size: F32, grid: Grid, rounding: str) -> npt.NDArray[np.uint8]:
    """Codes of power-of-two scales for largest magnitudes; that of 0 is the least, 2^-127.

    floor   2^(floor(log2 size) - binade): block maxima may saturate
    ceil    2^(ceil(log2 size) - binade)
    even    as floor, with the magnitude first rounded to the grid's mantissa: half a step and more
            below the next power of two counts as that
    rceil   the least power of two that keeps size / top within the grid
    """
    if rounding == "rceil":
        size = (size / np.float32(grid.top)).astype(np.float32)
    if rounding == "even":
        mantissa = getattr(grid, "mantissa", grid.bits - 2)
        half = np.uint32(1 << (22 - mantissa))
        size = (np.ascontiguousarray(size, np.float32).view(np.uint32) + half).view(np.float32)
    fraction, exponent = np.frexp(size)  # size = fraction * 2^exponent, fraction in [0.5, 1)
    power = exponent - 1
    if rounding in ("ceil", "rceil"):
        power = power + (fraction > 0.5)
    power = power - (0 if rounding == "rceil" else grid.binade)
    return np.where(size > 0, np.clip(power + E8M0_BIAS, 0, 254), 0).astype(np.uint8)


def from_e8m0(code: npt.NDArray[Any]) -> F32:
    """2^(code - 127); code 255 is NaN."""
    bits = np.where(code == 0, np.uint32(1 << 22), code.astype(np.uint32) << np.uint32(23))
    bits = np.where(code == 255, np.uint32(0x7FC00000), bits)
    return bits.astype(np.uint32).view(np.float32)


def _blocks() -> tuple[Scale, ...]:
    kinds = (
        *(("fp32", "nearest", ""), ("e4m3", "up", "-e4m3-up"), ("e4m3", "nearest", "-e4m3")),
        *(("e8m0", r, f"-e8m0-{r}") for r in ("floor", "ceil", "even", "rceil")),
    )
    return tuple(
        Scale(f"{along}{size}{word or '-fp32'}", per, size, kind, rounding)
        for along, per in (("keys", "value"), ("values", "key"))
        for size in (16, 32)
        for kind, rounding, word in kinds
    )


SCALES: dict[str, Scale] = {
    s.name: s
    for s in (
        Scale("none", "none"),
        Scale("head", "head"),
        Scale("value", "value"),
        Scale("key", "key"),
        Scale("value-bf16", "value", 0, "bf16", "up"),
        Scale("key-bf16", "key", 0, "bf16", "up"),
        *_blocks(),
    )
}
"""Every scale, by the word that specs use; `keys32` is a block of 32 keys of a value channel."""
