"""What a state format is: one family is one class, one format of a family is one row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from leapgen.diagnostics import LeapgenError
from leapgen.formats import compensator, elements
from leapgen.tensors import DTYPES, DType

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]

CADENCES = ("window", "step")
SMOOTHINGS = ("mean_abs_sqrt",)
SMOOTHING_FLOOR = 1e-19
"""Least smoothing scale: the square root of the smallest normal FP32 number. A row of zeros
divides by it and stays zero."""


class FormatError(LeapgenError):
    """A format was asked for something that it does not have."""


@dataclass(frozen=True)
class Codes:
    """An encoded residual, in canonical order (K, then V).

    payload      [..., K, V] codes in the format's storage type (bf16 as its 16 bits, uint16)
    key_scale    [..., K] FP32 smoothing vector, or None
    value_scale  [..., V] FP32 scale per value channel, or None
    parts        whatever else a composition stores, by the name of its buffer
    """

    payload: npt.NDArray[Any]
    key_scale: F32 | None
    value_scale: F32 | None
    parts: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A stored boundary state: state ~ decode(codes) + sum_h comp_key[h] comp_u[h]^T.

    comp_key [..., R, K] and comp_u [..., R, V] hold the format's factor type (BF16 as its 16 bits);
    R may be 0. `scales` are the factors' own, by the name of their buffer.
    """

    codes: Codes
    comp_key: npt.NDArray[Any]
    comp_u: npt.NDArray[Any]
    scales: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that is stored, by the name of its buffer; the payload is not packed."""
        codes = self.codes
        named = {"payload": codes.payload, "comp_key": self.comp_key, "comp_u": self.comp_u}
        scales = {"key_scale": codes.key_scale, "value_scale": codes.value_scale}
        named |= {name: part for name, part in scales.items() if part is not None}
        return {**named, **codes.parts, **self.scales}


@dataclass(frozen=True)
class Part:
    """One tensor of a stored state.

    tile   dims of one head's tile, as words that a Shape evaluates: "K", "K*V/2" (rounded up)
    role   payload | scale | compensator | residual | rounding
    doc    one line for people
    """

    name: str
    tile: tuple[str, ...]
    dtype: str
    role: str
    doc: str


@dataclass(frozen=True)
class Format(ABC):
    """One row of a family.

    name          the word used in specs
    payload       element type of the stored codes
    bits          width of one code
    value_scale   whether each value channel has an FP32 scale
    key_scale     the smoothing rule (one of SMOOTHINGS), or None
    compensators  how many compensators a slot has unless the caller says otherwise
    factors       element type of the compensators' two factors, or None: the format has none
    doc           one line for people
    cadence       when the state is stored: once a window of records, or at every step (no records)
    """

    name: str
    payload: str
    bits: int
    value_scale: bool
    key_scale: str | None
    compensators: int
    factors: str | None
    doc: str
    cadence: str = "window"

    family: ClassVar[str]

    @property
    def windowed(self) -> bool:
        """Whether records of several tokens stand between two stores of the state."""
        return self.cadence == "window"

    @property
    def dtype(self) -> DType:
        """Storage type of one payload element."""
        return DTYPES[self.payload]

    @property
    def has_kernels(self) -> bool:
        """Whether templates render this format; otherwise it exists in the reference model only."""
        return self.kernels_on(gpu=False)

    def kernels_on(self, gpu: bool) -> bool:
        """Whether templates render this format for GPUs, or for CPUs."""
        return True

    @property
    def in_words(self) -> bool:
        """Whether templates may hold a state of this format as words of two FP16 numbers while they
        close its window: see choices.in_words."""
        return self.factors in (None, "fp16")

    @property
    def rotates(self) -> bool:
        """Whether the key axis is rotated before codes are taken."""
        return False

    @property
    def stochastic(self) -> bool:
        """Whether codes are rounded stochastically: a slot then counts its stores."""
        return False

    def describe(self) -> str:
        """What the format is made of, in one line."""
        return (
            f"{self.payload}, {self.bits} bits, value scale {'yes' if self.value_scale else 'no'}, "
            f"smoothing {self.key_scale or 'none'}, compensators {self.compensators} "
            f"({self.factors or 'none'})"
        )

    def parts(self) -> tuple[Part, ...]:
        """The tensors of a stored state, in the order of every kernel's parameters."""
        found = [Part("payload", ("K*V",), self.payload, "payload", "codes, in private order")]
        if self.key_scale is not None:
            doc = "smoothing, one a key channel"
            found.append(Part("key_scale", ("K",), "fp32", "scale", doc))
        if self.value_scale:
            doc = "scale, one a value channel"
            found.append(Part("value_scale", ("V",), "fp32", "scale", doc))
        if self.factors is not None:
            for name, dim, side in (("comp_key", "K", "key"), ("comp_u", "V", "value")):
                doc = f"compensators, {side} side"
                found.append(Part(name, ("R", dim), self.factors, "compensator", doc))
        return tuple(found)

    def packed(self) -> dict[str, tuple[int, bool]]:
        """Codes that are packed in planes, by their buffer's name: (bits, whether signed)."""
        return {}

    def no_factors(self, *size: int) -> npt.NDArray[Any]:
        """Compensators that were never fitted, as stored: zeros of a size [..., R, V]."""
        factors = {**elements.STORAGE, "int8": np.int8}
        return np.zeros(size, factors[self.factors or "fp16"])

    def payload_bytes(self, K: int, V: int) -> int:
        """Bytes of one payload tile."""
        return K * V * self.bits // 8

    def with_state(self, smoothing: str | None, compensators: int | None) -> Self:
        """This row with a spec's choices applied; None keeps the row's own, "none" drops smoothing.

        Errors: FormatError where the format cannot have what is asked for.
        """
        chosen = self
        if smoothing == "none":
            chosen = replace(chosen, key_scale=None)
        elif smoothing is not None:
            if smoothing not in SMOOTHINGS:
                known = ", ".join((*SMOOTHINGS, "none"))
                raise FormatError(f"unknown smoothing {smoothing!r}; known: {known}")
            if self.key_scale is None:
                raise FormatError(f"format {self.name} has no smoothing")
            chosen = replace(chosen, key_scale=smoothing)
        if compensators is not None:
            if compensators < 0:
                raise FormatError(f"compensators must be 0 or more, found {compensators}")
            if compensators and self.factors is None:
                raise FormatError(f"format {self.name} has no compensators")
            chosen = replace(chosen, compensators=compensators)
        return chosen

    @abstractmethod
    def encode(self, residual: F32) -> Codes:
        """Codes of a residual [..., K, V], arithmetic in FP32."""

    @abstractmethod
    def decode(self, codes: Codes) -> F32:
        """The residual [..., K, V] that the codes stand for."""

    @abstractmethod
    def noise(self) -> float:
        """Largest rounding error of one element over the largest magnitude of its scale group."""

    def store(self, state: F32, comp_u: npt.NDArray[Any], draws: F32 | None = None) -> Stored:
        """Quantize a state [..., K, V]; `comp_u` [..., R, V] is the slot's present one (R as told).

        draws   uniforms of the state's shape, where the format rounds stochastically

        The residual is taken from the factors as stored, after their rounding: taken before it, the
        factors' rounding error would enter the state a second time.
        """
        key, u = compensator.fit(state, comp_u)
        residual = state - compensator.product(key, u) if u.shape[-2] else state
        return Stored(self.encode(residual.astype(np.float32, copy=False)), key, u)

    def restore(self, stored: Stored) -> F32:
        """The FP32 state [..., K, V] that a stored one stands for."""
        state = self.decode(stored.codes)
        if stored.comp_u.shape[-2]:
            state = state + compensator.product(stored.comp_key, stored.comp_u)
        return state
