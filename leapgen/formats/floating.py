"""States kept in a floating-point type, with no scales: the window alone, and the check on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from leapgen.formats.base import F32, Codes, Format


def to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """The 16 bits of each value, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x00400000)
    return (np.where(np.isnan(x), quiet, rounded) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: npt.NDArray[Any]) -> F32:
    """FP32 values of 16-bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class Floating(Format):
    """The state itself in FP32 or BF16 (BF16 rounded to nearest even)."""

    family: ClassVar[str] = "floating"

    def encode(self, residual: F32) -> Codes:
        """The state in the payload's type."""
        payload = to_bf16(residual) if self.payload == "bf16" else residual.astype(np.float32)
        return Codes(payload, None, None)

    def decode(self, codes: Codes) -> F32:
        """The payload as FP32."""
        if self.payload == "bf16":
            return from_bf16(codes.payload)
        return codes.payload.astype(np.float32)

    def noise(self) -> float:
        """Relative rounding error of one element."""
        return 2.0**-9 if self.payload == "bf16" else 0.0
