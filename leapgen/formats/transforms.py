"""Transforms of a residual before its scales and codes: smoothing, and rotation of the key axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats.base import SMOOTHING_FLOOR

F32 = npt.NDArray[np.float32]
Parts = dict[str, npt.NDArray[Any]]

POWER = 0.7
LEAST_RATIO = 2.0**-14
"""Least smoothing scale of `rms_power`: the smallest normal FP16."""


@dataclass(frozen=True)
class Transform(ABC):
    """name: the word used in specs; smooths: whether it stores a vector over the key channels."""

    name: str
    smooths: bool = False

    def tiles(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """(name, tile, element type, one line for people) of what is stored."""
        return ()

    @abstractmethod
    def forward(self, residual: F32) -> tuple[F32, Parts]:
        """What is quantized in place of a residual [..., K, V], and what is stored for it."""

    @abstractmethod
    def inverse(self, x: F32, parts: Parts) -> F32:
        """The residual that x stands for."""


class Identity(Transform):
    """Nothing."""

    def forward(self, residual: F32) -> tuple[F32, Parts]:
        """The residual."""
        return residual, {}

    def inverse(self, x: F32, parts: Parts) -> F32:
        """x."""
        return x


class MeanSmoothing(Transform):
    """c_i = sqrt(mean_j |R_ij|) in FP32 (LeapQuant section 3.4)."""

    def tiles(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """The vector c."""
        return (("key_scale", ("K",), "fp32", "smoothing, one a key channel"),)

    def forward(self, residual: F32) -> tuple[F32, Parts]:
        """R / c."""
        mean = np.abs(residual).mean(axis=-1, dtype=np.float32)
        c = np.maximum(np.sqrt(mean), np.float32(SMOOTHING_FLOOR))
        return residual / c[..., :, None], {"key_scale": c}

    def inverse(self, x: F32, parts: Parts) -> F32:
        """c x."""
        out: F32 = x * parts["key_scale"].astype(np.float32)[..., :, None]
        return out


class PowerSmoothing(MeanSmoothing):
    """c_i = (RMS_j R_ij / max_i RMS_j R_ij)^0.7 in FP16.

    Dividing by the head's largest changes nothing but the scales that follow, and keeps c in (0, 1]
    whatever the state's size. The exponent is a measured choice: 0.85 and 1 are no better.
    """

    def tiles(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """The vector c, in half the bytes."""
        return (("key_scale", ("K",), "fp16", "smoothing, one a key channel"),)

    def forward(self, residual: F32) -> tuple[F32, Parts]:
        """R / c, with c as it is stored."""
        peak = np.abs(residual).max(axis=(-2, -1), keepdims=True)
        unit = residual / np.where(peak > 0, peak, 1)
        rms = np.sqrt((unit * unit).mean(axis=-1, dtype=np.float32))
        largest = rms.max(axis=-1, keepdims=True)
        ratio = np.where(largest > 0, rms / np.where(largest > 0, largest, 1), np.float32(1))
        c = np.maximum(ratio ** np.float32(POWER), np.float32(LEAST_RATIO)).astype(np.float16)
        return residual / c.astype(np.float32)[..., :, None], {"key_scale": c}


class Rotation(Transform):
    """A randomised orthogonal Hadamard matrix over the key axis (QuaRot): every value channel
    becomes nearly Gaussian, and outliers among keys are spread over all of them.

    Where K is no power of two, channels are rotated in runs of the largest one that divides it.
    """

    def forward(self, residual: F32) -> tuple[F32, Parts]:
        """H R."""
        return _turned(residual, rotation(_run(residual.shape[-2]))), {}

    def inverse(self, x: F32, parts: Parts) -> F32:
        """H^T x."""
        return _turned(x, rotation(_run(x.shape[-2])).T)


def _run(K: int) -> int:
    return K & -K


def _turned(x: F32, matrix: F32) -> F32:
    *lead, K, V = x.shape
    n = len(matrix)
    out: F32 = (matrix @ x.reshape(*lead, K // n, n, V)).reshape(x.shape)
    return out


@cache
def rotation(n: int) -> F32:
    """H diag(signs) / sqrt(n) of order n, a power of two: Sylvester's H, hashed signs."""
    i = np.arange(n, dtype=np.uint32)
    x = (i + np.uint32(1)) * np.uint32(0x9E3779B1)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    sign = np.where((x ^ (x >> np.uint32(15))) >> np.uint32(16) & np.uint32(1), 1.0, -1.0)
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    out: F32 = (matrix * sign / np.sqrt(n)).astype(np.float32)
    return out


TRANSFORMS: dict[str, Transform] = {
    t.name: t
    for t in (
        Identity("none"),
        MeanSmoothing("mean_abs_sqrt", smooths=True),
        PowerSmoothing("rms_power", smooths=True),
        Rotation("rotation"),
    )
}
"""Every transform, by the word that specs use."""
