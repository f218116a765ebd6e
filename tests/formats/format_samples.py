"""States that a format must survive: plain, low rank, and at the edges of FP32."""

from __future__ import annotations

import numpy as np


def states(kind: str, K: int = 40, V: int = 24, heads: int = 3) -> np.ndarray:
    rng = np.random.default_rng(5)
    factors = {"rank1": 1, "rank3": 3, "rank4": 4}
    if kind in factors:
        r = factors[kind]
        S = rng.standard_normal((heads, K, r)) @ rng.standard_normal((heads, r, V))
    elif kind == "zero":
        S = np.zeros((heads, K, V))
    elif kind == "one_hot":
        S = np.zeros((heads, K, V))
        S[:, 7, 3] = -2.5
    elif kind == "outlier":
        S = rng.standard_normal((heads, K, V))
        S[:, 7, 3] = 1e6
    elif kind == "mixed_scales":
        S = rng.standard_normal((heads, K, V)) * 10.0 ** rng.integers(-30, 30, (heads, K, V))
    else:
        S = rng.standard_normal((heads, K, V)) * float(kind)
    return S.astype(np.float32)


KINDS = (
    *("zero", "one_hot", "outlier", "mixed_scales", "rank1", "rank3", "rank4"),
    *("1", "1e-30", "1e30", "1e-13", "1e-7", "1e5", "1e9"),
)


def squared(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) ** 2).sum(axis=(-2, -1))
