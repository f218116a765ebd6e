"""Floating-point element types as NumPy stores them (bf16 as its 16 bits, uint16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

STORAGE: dict[str, type[np.generic]] = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": np.uint16,
}

LARGEST = {"fp32": float(np.finfo(np.float32).max), "fp16": 65504.0, "bf16": 2.0**127 * 1.9921875}
"""Largest finite value of each type."""

ROUNDING = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Largest relative error of rounding to nearest, for normal numbers."""


def encode(dtype: str, x: F32) -> npt.NDArray[Any]:
    """Rounded to nearest even and clamped to the largest finite value; NaN stays NaN."""
    if dtype == "fp32":
        return x.astype(np.float32)
    kept = np.clip(x, -LARGEST[dtype], LARGEST[dtype]).astype(np.float32)
    return to_bf16(kept) if dtype == "bf16" else kept.astype(np.float16)


def decode(dtype: str, stored: npt.NDArray[Any]) -> F32:
    """FP32 values of what `encode` stored."""
    return from_bf16(stored) if dtype == "bf16" else stored.astype(np.float32)


def to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """The 16 bits of each value, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x00400000)
    return (np.where(np.isnan(x), quiet, rounded) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: npt.NDArray[Any]) -> F32:
    """FP32 values of 16-bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
