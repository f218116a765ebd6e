"""Payload grids: the numbers that codes of 4 to 32 bits stand for, and how a number becomes a code.

A grid takes numbers that were already divided by their scale. Rounding is to nearest, ties to even,
or stochastic: up with the probability of the part that is cut off, from uniform draws in [0, 1).
What lies beyond the largest value saturates. Infinities are such; NaN becomes the grid's NaN if it
has one (E4M3), else zero. Sources: OCP 8-bit Floating Point (OFP8) for E4M3, OCP Microscaling
Formats (MX) v1.0 section 5.3 for FP6, FP4 and INT8.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.lloyd import fitted, lloyd_max

F32 = npt.NDArray[np.float32]
Codes = npt.NDArray[Any]


@dataclass(frozen=True)
class Grid(ABC):
    """A set of numbers with codes.

    name    the word used in specs
    bits    width of one code
    dtype   element type that one code is kept in when it is not packed
    """

    name: str
    bits: int
    dtype: str

    @property
    @abstractmethod
    def top(self) -> float:
        """What a scale maps its statistic to: the largest value, or 1 where that is the RMS."""

    @property
    def binade(self) -> int:
        """Exponent of the largest value's binade (`emax` in the MX specification)."""
        return int(np.floor(np.log2(self.top)))

    @property
    def scaled_by_rms(self) -> bool:
        """Whether the grid is laid out for numbers of unit RMS rather than of bounded size."""
        return False

    @property
    def wide(self) -> bool:
        """Whether the grid has a range of its own, and so no need of a scale."""
        return False

    @property
    @abstractmethod
    def gap(self) -> float:
        """Largest error of rounding to nearest, within the grid's range, over `top`."""

    @abstractmethod
    def encode(self, x: F32, draws: F32 | None = None) -> Codes:
        """Codes of x; with draws of x's shape, rounded stochastically."""

    @abstractmethod
    def decode(self, codes: Codes) -> F32:
        """What codes stand for."""


@dataclass(frozen=True)
class Wide(Grid):
    """FP32, BF16 or FP16, stored as themselves (BF16 as its 16 bits)."""

    @property
    def top(self) -> float:
        """Largest finite value."""
        return elements.LARGEST[self.dtype]

    @property
    def wide(self) -> bool:
        """It needs no scale."""
        return True

    @property
    def gap(self) -> float:
        """Relative error of a normal number: such a grid has no one step."""
        return 0.0 if self.dtype == "fp32" else elements.ROUNDING[self.dtype]

    def encode(self, x: F32, draws: F32 | None = None) -> Codes:
        """The numbers in the grid's type, clamped to its largest finite value."""
        if draws is None or self.dtype == "fp32":
            return elements.encode(self.dtype, x)
        kept = np.clip(x, -self.top, self.top).astype(np.float32)
        # Cutting off low mantissa bits after adding random ones: how `cvt.rs` rounds. FP16 has 13
        # fewer than FP32 above its subnormal range, and fixed steps below.
        if self.dtype == "bf16":
            return elements.encode("bf16", _cut(kept, 16, draws))
        step = np.float32(2.0**-24)
        low = _whole((np.abs(kept) / step).astype(np.float32), draws) * step
        small = np.abs(kept) < 2.0**-14
        high = _cut(kept, 13, draws)
        return elements.encode("fp16", np.where(small, np.copysign(low, kept), high))

    def decode(self, codes: Codes) -> F32:
        """The numbers as FP32."""
        return elements.decode(self.dtype, codes)


def _whole(x: F32, draws: F32 | None) -> F32:
    """x to nearest even, or up where a draw is below its fraction. Not floor(x + draw): that sum
    rounds to the next integer by itself when the draw is near one."""
    low = np.rint(x) if draws is None else np.floor(x)
    up = np.float32(0) if draws is None else (draws < x - low).astype(np.float32)
    out: F32 = low + up
    return out


def _cut(x: F32, low: int, draws: F32) -> F32:
    """x with its `low` last mantissa bits cleared after adding a random number of that width."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    added = bits + (draws * np.float32(1 << low)).astype(np.uint32)
    out: F32 = (added & np.uint32(0xFFFFFFFF << low & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(out), out, x)


@dataclass(frozen=True)
class Minifloat(Grid):
    """Sign, `exponent` bits with the given bias, `mantissa` bits; subnormals; no infinities.

    largest   code of the largest finite magnitude
    nan       code of NaN, or 0 where there is none
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    nan: int = 0

    @property
    def top(self) -> float:
        """Largest finite value."""
        return float(self._values[self.largest])

    @property
    def gap(self) -> float:
        """Half a step of the largest binade."""
        return float(2.0 ** (self.binade - self.mantissa - 1) / self.top)

    @cached_property
    def _values(self) -> F32:
        """Value of every code."""
        code = np.arange(1 << self.bits)
        magnitude = code & (1 << (self.bits - 1)) - 1
        field, fraction = magnitude >> self.mantissa, magnitude & (1 << self.mantissa) - 1
        whole = np.where(field > 0, 1 << self.mantissa, 0) + fraction
        power = np.maximum(field, 1) - self.bias - self.mantissa
        value = whole * 2.0**power * np.where(code >> (self.bits - 1), -1.0, 1.0)
        value[(magnitude == self.nan) & (self.nan > 0)] = np.nan
        out: F32 = value.astype(np.float32)
        return out

    def encode(self, x: F32, draws: F32 | None = None) -> Codes:
        """Exponent and mantissa of each number, in steps of its binade."""
        x = np.ascontiguousarray(x, np.float32)
        least = 1 - self.bias
        size = np.minimum(np.abs(x), np.float32(self.top))
        field = np.maximum(size, np.float32(2.0**least)).view(np.int32) >> 23
        steps = size * ((254 + self.mantissa - field) << 23).astype(np.int32).view(np.float32)
        whole = _whole(steps, draws)
        with np.errstate(invalid="ignore"):
            code = ((field - (127 + least)) << self.mantissa) + whole.astype(np.int32)
        code = np.minimum(code, self.largest) | (np.signbit(x).astype(np.int32) << (self.bits - 1))
        return np.where(np.isnan(x), self.nan, code).astype(np.uint8)

    def decode(self, codes: Codes) -> F32:
        """Values of codes."""
        out: F32 = self._values[codes]
        return out


@dataclass(frozen=True)
class Symmetric(Grid):
    """Two's complement integers in [-(2^(b-1) - 1), 2^(b-1) - 1]; the most negative is unused."""

    @property
    def top(self) -> float:
        """Largest code."""
        return float((1 << (self.bits - 1)) - 1)

    @property
    def gap(self) -> float:
        """Half a code."""
        return 0.5 / self.top

    def encode(self, x: F32, draws: F32 | None = None) -> Codes:
        """Rounded integers."""
        whole = np.clip(_whole(x, draws), -self.top, self.top)
        return np.where(np.isnan(whole), 0, whole).astype(np.int8)

    def decode(self, codes: Codes) -> F32:
        """The integers."""
        return codes.astype(np.float32)


@dataclass(frozen=True)
class Levels(Grid):
    """Indices into ascending levels; a number midway goes to the lower one.

    kind   `gaussian`: Lloyd-Max levels of N(0, 1), for numbers of unit RMS (TurboQuant's law of a
           coordinate of a rotated vector, as its length grows), those of four bits rounded to
           127ths of the largest: products take such as INT8, for 0.15% more noise; `fitted`:
           k-means of states normalised to [-1, 1] (KVQuant)
    """

    kind: str

    @property
    def top(self) -> float:
        """The RMS, or the range, is mapped to one."""
        return 1.0

    @property
    def scaled_by_rms(self) -> bool:
        """Gaussian levels are."""
        return self.kind == "gaussian"

    @cached_property
    def levels(self) -> F32:
        """Ascending, symmetric about zero."""
        found = lloyd_max(self.bits) if self.kind == "gaussian" else fitted(self.bits)
        if self.kind == "gaussian" and self.bits == 4:
            found = np.rint(found * (127 / found[-1])) * (found[-1] / 127)
        return found.astype(np.float32)

    @cached_property
    def _edges(self) -> F32:
        middle: F32 = (self.levels[1:] + self.levels[:-1]) / np.float32(2)
        return middle

    @cached_property
    def _bins(self) -> tuple[np.float32, np.float32, npt.NDArray[np.uint8]]:
        """(first edge, bins a unit, edges below each bin): bins so narrow that each has at most one
        edge, which makes a look-up and one comparison do for a search."""
        edges = self._edges.astype(np.float64)
        count = 1 << int(np.ceil(np.log2((edges[-1] - edges[0]) / np.diff(edges).min() * 2)))
        rate = np.float32(count / (edges[-1] - edges[0]))
        where = ((self._edges - self._edges[0]) * rate).astype(np.int32)
        below = np.searchsorted(where, np.arange(where[-1] + 1), side="left")
        return self._edges[0], rate, below.astype(np.uint8)

    @property
    def gap(self) -> float:
        """Half the widest distance between neighbours. Beyond the last level it is larger."""
        inner = float(np.diff(self.levels).max() / 2)
        return inner if self.scaled_by_rms else max(inner, 1.0 - float(self.levels[-1]))

    def encode(self, x: F32, draws: F32 | None = None) -> Codes:
        """Indices of the nearest levels. Errors: ValueError with draws: there is no such rule."""
        if draws is not None:
            raise ValueError("levels are not rounded stochastically")
        first, rate, below = self._bins
        place = np.clip((x - first) * rate, 0, len(below) - 1)
        code = below[np.where(np.isnan(place), 0, place).astype(np.int32)]
        code = (code + (x > self._edges[code])).astype(np.uint8)
        return np.where(np.isnan(x), np.uint8(1 << (self.bits - 1)), code)

    def decode(self, codes: Codes) -> F32:
        """Levels of indices."""
        out: F32 = self.levels[codes]
        return out


GRIDS: dict[str, Grid] = {
    g.name: g
    for g in (
        Wide("fp32", 32, "fp32"),
        Wide("bf16", 16, "bf16"),
        Wide("fp16", 16, "fp16"),
        Minifloat("e4m3", 8, "uint8", 4, 3, 7, 0x7E, 0x7F),
        Symmetric("int8", 8, "int8"),
        Symmetric("int6", 6, "int8"),
        Symmetric("int5", 5, "int8"),
        Symmetric("int4", 4, "int8"),
        Minifloat("e2m3", 6, "uint8", 2, 3, 1, 0x1F),
        Minifloat("e3m2", 6, "uint8", 3, 2, 3, 0x1F),
        Minifloat("e2m1", 4, "uint8", 2, 1, 1, 0x07),
        *(Levels(f"levels{b}", b, "uint8", "gaussian") for b in (8, 6, 5, 4)),
        *(Levels(f"fitted{b}", b, "uint8", "fitted") for b in (8, 6, 4)),
    )
}
"""Every payload, by the word that specs use."""
