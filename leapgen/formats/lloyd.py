"""Levels of least squared error: of the normal law (Lloyd-Max), and those fitted to states."""

from __future__ import annotations

import json
from functools import cache
from math import erfc, exp, pi, sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

FITTED = Path(__file__).with_name("fitted_levels.json")
"""Levels of KVQuant's payload, written by `leapgen drift --fit-levels`."""


@cache
def lloyd_max(bits: int) -> F64:
    """The 2^bits levels of least mean squared error for N(0, 1), ascending.

    A level is the mean of its cell, and an edge lies midway between two levels (Lloyd, Least
    squares quantization in PCM, 1982; Max, 1960). Newton's method on these conditions, from levels
    of the density phi^(1/3), which is the best for many levels (Panter and Dite, 1951).
    """
    n = 1 << (bits - 1)
    quantile = NormalDist(0, sqrt(3)).inv_cdf
    x = np.array([quantile(0.5 + (i + 0.5) / (2 * n)) for i in range(n)])
    for _ in range(50):
        miss, slope = _conditions(x)
        step = np.linalg.solve(slope, miss)
        x = x - step
        if np.abs(step).max() < 1e-14:
            break
    return np.concatenate([-x[::-1], x])


def _conditions(x: F64) -> tuple[F64, F64]:
    """Positive levels minus the means of their cells, and the derivative of that."""
    edge = np.concatenate([[0.0], (x[1:] + x[:-1]) / 2, [np.inf]])
    density = np.array([exp(-e * e / 2) / sqrt(2 * pi) for e in edge])
    above = np.array([erfc(e / sqrt(2)) / 2 for e in edge])
    weight = above[:-1] - above[1:]
    mean = (density[:-1] - density[1:]) / weight
    low = density[:-1] * (mean - edge[:-1]) / weight
    high = np.zeros_like(low)
    high[:-1] = density[1:-1] * (edge[1:-1] - mean[:-1]) / weight[:-1]
    low[0] = 0.0  # the edge at zero stays
    slope = np.eye(len(x)) - np.diag((low + high) / 2)
    slope -= np.diag(high[:-1] / 2, 1) + np.diag(low[1:] / 2, -1)
    return x - mean, slope


@cache
def fitted(bits: int) -> F64:
    """Levels in [-1, 1] fitted once to states, ascending. Errors: KeyError, for other widths."""
    half: F64 = np.array(json.loads(FITTED.read_text())["levels"][str(bits)], np.float64)
    return np.concatenate([-half[::-1], half])


def k_means(data: F64, bits: int, rounds: int = 200) -> F64:
    """The positive half of symmetric levels of least squared error for data and its mirror image.

    data   numbers in [-1, 1], any order
    """
    size = np.sort(np.abs(data.ravel()))
    n = 1 << (bits - 1)
    total = np.concatenate([[0.0], np.cumsum(size)])
    # Half way to even spacing: a start from quantiles alone leaves the thin tail without levels.
    even = (np.arange(n) + 0.5) / n
    x = 0.5 * np.quantile(size, even) + 0.5 * even
    for _ in range(rounds):
        edge = np.searchsorted(size, (x[1:] + x[:-1]) / 2)
        edge = np.concatenate([[0], edge, [len(size)]])
        count = np.diff(edge)
        mean = (total[edge[1:]] - total[edge[:-1]]) / np.maximum(count, 1)
        x = np.where(count > 0, mean, x)
    out: F64 = x
    return out
