"""States kept in a floating-point type, with no scales: the window alone, and the check on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leapgen.formats import elements
from leapgen.formats.base import F32, Codes, Format


@dataclass(frozen=True)
class Floating(Format):
    """The state itself in FP32 or BF16 (rounded to nearest even)."""

    family: ClassVar[str] = "floating"

    def encode(self, residual: F32) -> Codes:
        """The state in the payload's type."""
        return Codes(elements.encode(self.payload, residual), None, None)

    def decode(self, codes: Codes) -> F32:
        """The payload as FP32."""
        return elements.decode(self.payload, codes.payload)

    def noise(self) -> float:
        """Relative rounding error of one element."""
        return 0.0 if self.payload == "fp32" else elements.ROUNDING[self.payload]
