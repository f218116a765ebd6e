"""Bounds on what composed formats round off, element by element: no estimates, always true.

A code's own error is half the step of its grid where it lies (a whole one where rounding is drawn),
times its scale; a code at the grid's end may also have been clipped by as much as its scale allows.
The transform carries that back: a smoothed channel's error grows with its scale, and a rotation
spreads a channel's error over all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import elements
from leapgen.formats.base import F32, Codes
from leapgen.formats.composed import Composed
from leapgen.formats.grids import Grid, Levels, Minifloat, Symmetric, Wide

FP16_STEP = 2.0**-24
"""Step of FP16's subnormal numbers."""


def half_steps(format: Composed, codes: Codes) -> F32:
    """Bound [..., K, V] on the rounding of these codes."""
    named = {"key_scale": codes.key_scale, "value_scale": codes.value_scale}
    parts = {**codes.parts, **{n: p for n, p in named.items() if p is not None}}
    grid, payload = format.grid, codes.payload
    steps = _steps(grid, payload) * (2.0 if format.stochastic else 1.0)
    if format.choices.feedback != "none":
        low = np.abs(parts["residual_scale"])[..., None, :]
        steps = np.broadcast_to(low / 2, payload.shape)
    elif format.scale.per != "none":
        steps = np.maximum(steps, _clipped(format, payload))
        steps = steps * format.scale.decode(dict(parts), grid, *payload.shape[-2:])
    return _carried(format, np.asarray(steps, np.float64), parts)


def _steps(grid: Grid, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Half the step at each code, in the grid's units."""
    match grid:
        case Symmetric():
            return np.full(codes.shape, 0.5)
        case Minifloat():
            field = codes.astype(np.int32) >> grid.mantissa & (1 << grid.exponent) - 1
            half = np.maximum(field, 1) - grid.bias - grid.mantissa - 1.0
            return np.asarray(2.0**half, np.float64)
        case Levels():
            gaps = np.diff(grid.levels.astype(np.float64))
            wider = np.maximum(np.append(gaps, 0), np.append(0, gaps)) / 2
            out: npt.NDArray[np.float64] = wider[codes]
            return out
        case Wide():
            size = np.abs(elements.decode(grid.dtype, codes)).astype(np.float64)
            floor = FP16_STEP / 2 if grid.dtype == "fp16" else 0.0
            return np.maximum(size * grid.gap, floor)
    raise TypeError(f"no steps of {grid}")


def _clipped(format: Composed, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What codes at the grid's ends may leave out, in the grid's units; 0 elsewhere."""
    grid, scale = format.grid, format.scale
    if isinstance(grid, Levels):
        K, V = codes.shape[-2:]
        members = {"head": K * V, "value": K, "key": V}[scale.per]
        members = min(members, scale.block or members)
        # All of a group's squares may be those of one number.
        most = members**0.5 if grid.scaled_by_rms else 1.0
        left, size = most - float(grid.levels[-1]), len(grid.levels)
        return np.where((codes == 0) | (codes == size - 1), max(left, 0.0), 0.0)
    _, part = scale.slack(grid)
    at_end = np.abs(grid.decode(codes)) >= grid.top
    return np.where(at_end, grid.top * part / (1 - part), 0.0)


def _carried(
    format: Composed, steps: npt.NDArray[np.float64], parts: dict[str, npt.NDArray[Any]]
) -> F32:
    if format.transform.smooths:
        steps = steps * parts["key_scale"].astype(np.float64)[..., :, None]
    elif format.transform.name == "rotation":
        *lead, K, V = steps.shape
        n = K & -K
        whole = steps.reshape(*lead, K // n, n, V).sum(axis=-2, keepdims=True) / n**0.5
        steps = np.broadcast_to(whole, (*lead, K // n, n, V)).reshape(steps.shape)
    return steps.astype(np.float32)
