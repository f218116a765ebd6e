"""KVQuant's dense-and-sparse split: a value channel's outliers in FP16, the rest on fitted levels.

A channel's `count` numbers farthest from its median are kept apart; what is left is normalised to
[-1, 1] by its own range (KVQuant, Hooper et al., section 3: per-channel non-uniform levels and 1%
outliers). Reference model only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats.base import F32, Part
from leapgen.formats.grids import Grid

Parts = dict[str, npt.NDArray[Any]]
LEAST = np.float32(1e-35)
FP16_MAX = np.float32(65504.0)


def parts(count: int) -> tuple[Part, ...]:
    """The tensors of the split. Indices of keys are bytes: K is at most 256."""
    n = str(count)
    return (
        Part("value_scale", ("V",), "fp32", "scale", "half the range of a value channel"),
        Part("value_offset", ("V",), "fp32", "scale", "middle of the range"),
        Part("outlier", (n, "V"), "fp16", "scale", "numbers that are kept apart"),
        Part("outlier_key", (n, "V"), "uint8", "scale", "their key channels"),
    )


def normalised(x: F32, count: int) -> tuple[F32, Parts]:
    """The dense part of x [..., K, V] in [-1, 1] (zero at outliers), and what is stored with it."""
    middle = np.median(x, axis=-2, keepdims=True).astype(np.float32)
    key = _farthest(np.abs(x - middle), count)
    dense = x.copy()
    np.put_along_axis(dense, key, np.broadcast_to(middle, key.shape), axis=-2)
    low, high = dense.min(axis=-2), dense.max(axis=-2)
    offset, scale = low / 2 + high / 2, high / 2 - low / 2
    live = scale >= LEAST
    unit = (dense - offset[..., None, :]) / np.where(live, scale, 1)[..., None, :]
    value = np.clip(np.take_along_axis(x, key, axis=-2), -FP16_MAX, FP16_MAX)
    return np.where(live[..., None, :], unit, np.float32(0)), {
        "value_scale": np.where(live, scale, np.float32(0)),
        "value_offset": offset,
        "outlier": value.astype(np.float16),
        "outlier_key": key.astype(np.uint8),
    }


def _farthest(distance: F32, count: int) -> npt.NDArray[np.intp]:
    """Keys [..., count, V] of the largest numbers of each channel; of equal ones the first."""
    found, left = [], distance.copy()
    for _ in range(count):
        key = left.argmax(axis=-2)[..., None, :]
        np.put_along_axis(left, key, np.float32(-1), axis=-2)
        found.append(key)
    return np.concatenate(found, axis=-2)


def encode(x: F32, grid: Grid, count: int) -> tuple[npt.NDArray[Any], Parts]:
    """Codes [..., K, V] of the dense part, and the rest."""
    unit, stored = normalised(x, count)
    return grid.encode(unit), stored


def decode(payload: npt.NDArray[Any], stored: Parts, grid: Grid) -> F32:
    """What codes and outliers stand for."""
    x = grid.decode(payload) * stored["value_scale"][..., None, :]
    x = x + stored["value_offset"][..., None, :]
    key = stored["outlier_key"].astype(np.intp)
    np.put_along_axis(x, key, stored["outlier"].astype(np.float32), axis=-2)
    out: F32 = x.astype(np.float32, copy=False)
    return out
