"""Symmetric integer codes with a scale per value channel, and smoothing along the key axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from leapgen.formats.base import F32, SMOOTHING_FLOOR, Codes, Format

ZERO_COLUMN = 1e-35
"""A column whose largest magnitude is below this is stored as zero: the largest code over it would
leave FP32's range, and zero times infinity is NaN."""


@dataclass(frozen=True)
class Integer(Format):
    """Two's complement codes in [-(2^(b-1) - 1), 2^(b-1) - 1]; the most negative code is unused.

    residual[i, j] ~ key_scale[i] * code[i, j] * value_scale[j] (LeapQuant section 3.4).
    """

    family: ClassVar[str] = "integer"

    @property
    def top(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1

    def encode(self, residual: F32) -> Codes:
        """Smooth, take each value channel's largest magnitude, round to nearest even."""
        smooth = self._smoothing(residual)
        Z = residual if smooth is None else residual / smooth[..., :, None]
        peak = np.abs(Z).max(axis=-2)
        live = peak >= np.float32(ZERO_COLUMN)
        inverse = np.where(live, np.float32(self.top) / np.where(live, peak, 1), np.float32(0))
        code = np.rint(Z * inverse[..., None, :]).clip(-self.top, self.top).astype(np.int8)
        scale = np.where(live, peak / np.float32(self.top), np.float32(0))
        return Codes(code, smooth, scale.astype(np.float32))

    def decode(self, codes: Codes) -> F32:
        """code * key_scale * value_scale."""
        value = codes.payload.astype(np.float32)
        if codes.key_scale is not None:
            value = value * codes.key_scale[..., :, None]
        if codes.value_scale is not None:
            value = value * codes.value_scale[..., None, :]
        return value

    def noise(self) -> float:
        """Half a code, over the largest code."""
        return 0.5 / self.top

    def _smoothing(self, residual: F32) -> F32 | None:
        """c_i = sqrt(mean_j |R_ij|), floored (LeapQuant section 3.4)."""
        if self.key_scale is None:
            return None
        mean = np.abs(residual).mean(axis=-1, dtype=np.float32)
        scale: F32 = np.maximum(np.sqrt(mean), np.float32(SMOOTHING_FLOOR))
        return scale
