"""Fitting compensators: warm-started subspace iteration, in FP32 over any leading axes.

A compensator h is a rank-one record with no decay, comp_key[h] comp_u[h]^T. The fit finds the span
of the state's largest singular directions by rounds of Y = S X, Q = orth(Y), X = S^T Q, starting
from the window's old factors, so that one round is enough (LeapQuant section 3.4 asks for a power
iteration and leaves steps and start open).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]

COLD_ROUNDS = 4
WARM_ROUNDS = 1
RIDGE = 1e-7
"""Added to the Gram matrix, as a share of its trace: below FP32's epsilon a singular Gram matrix
turns the factors to noise."""
PIVOT_FLOOR = 0.5e-7
"""Least Cholesky pivot, as a share of the trace."""
FACTOR_MAX = 65504.0
"""Largest FP16. A factor beyond it is dropped on both sides."""
FACTOR_MIN = 2.0**-14
"""Smallest normal FP16. A factor whose largest entry is below it has too few bits to help: two
such factors can be off by more than the rank-one term that they stand for."""


def fit(state: F32, comp_u: F16) -> tuple[F16, F16]:
    """Factors (comp_key [..., R, K], comp_u [..., R, V]) of a state [..., K, V].

    comp_u   the old factors [..., R, V]; zero rows are replaced by a fixed pattern, and a head
             whose rows are all zero is fitted cold
    """
    heads, (K, V), R = state.shape[:-2], state.shape[-2:], comp_u.shape[-2]
    if R == 0:
        return np.zeros((*heads, 0, K), np.float16), np.zeros((*heads, 0, V), np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        key, u = split(*directions(state, comp_u))
        return key.astype(np.float16), u.astype(np.float16)


def directions(state: F32, comp_u: npt.NDArray[Any]) -> tuple[F32, F32, F32]:
    """(Q [..., K, R], X [..., V, R], peak [..., 1, 1]): the state is near peak Q X^T.

    Q is orthonormal, or zero in columns that have nothing to fit. `comp_u` as `fit` takes it; only
    the directions of its rows count. Errors: none; R is at least 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        peak = np.abs(state).max(axis=(-2, -1), keepdims=True)
        scaled = _over(state, peak)
        start, cold = _start(comp_u)
        Q, X = _round(scaled, start)
        if cold.any():
            Qc, Xc = Q, X
            for _ in range(COLD_ROUNDS - WARM_ROUNDS):
                Qc, Xc = _round(scaled, _unit(Xc))
            Q, X = np.where(cold, Qc, Q), np.where(cold, Xc, X)
        return Q, X, peak


def product(comp_key: F16, comp_u: F16) -> F32:
    """sum_h comp_key[h] comp_u[h]^T as FP32 [..., K, V]."""
    key = comp_key.astype(np.float32)
    out: F32 = np.swapaxes(key, -1, -2) @ comp_u.astype(np.float32)
    return out


def pattern(R: int, V: int) -> F32:
    """The start [V, R] of columns that have none: hashed signs over sqrt(V), nearly orthogonal."""
    v = np.arange(V, dtype=np.uint32)[:, None]
    h = np.arange(1, R + 1, dtype=np.uint32)[None, :]
    x = v * np.uint32(0x9E3779B1) + h * np.uint32(0x85EBCA77)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    signs: F32 = np.where((x >> np.uint32(16)) & np.uint32(1), 1.0, -1.0).astype(np.float32)
    return signs / np.float32(np.sqrt(V))


def _start(comp_u: npt.NDArray[Any]) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Unit columns [..., V, R] to start from, and whether each head starts cold [..., 1, 1]."""
    X = np.swapaxes(comp_u.astype(np.float32), -1, -2)
    empty = np.abs(X).max(axis=-2, keepdims=True) == 0
    R, V = comp_u.shape[-2:]
    return np.where(empty, pattern(R, V), _unit(X)), empty.all(axis=-1, keepdims=True)


def _unit(X: F32) -> F32:
    """Columns scaled to length one; a zero column stays zero."""
    return _over(X, np.sqrt((X * X).sum(axis=-2, keepdims=True)))


def _over(X: F32, size: F32) -> F32:
    """X / size, and X where size is zero."""
    return (X / np.where(size > 0, size, 1)).astype(np.float32)


def _round(S: F32, X: F32) -> tuple[F32, F32]:
    """One round: (Q [..., K, R] orthonormal or zero columns, S^T Q [..., V, R])."""
    Q = _orthonormal(S @ X)
    return Q, np.swapaxes(S, -1, -2) @ Q


def _orthonormal(Y: F32) -> F32:
    """Y L^-T with L the Cholesky factor of the regularised Gram matrix; zero where Y is zero."""
    R = Y.shape[-1]
    gram = np.swapaxes(Y, -1, -2) @ Y
    trace = np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
    gram = gram + np.float32(RIDGE) * trace * np.eye(R, dtype=np.float32)
    floor = np.maximum(np.float32(PIVOT_FLOOR) * trace[..., 0, 0], np.finfo(np.float32).tiny)
    L = np.zeros_like(gram)
    for j in range(R):
        rest = gram[..., j:, j] - (L[..., j:, :j] * L[..., j : j + 1, :j]).sum(axis=-1)
        pivot = np.sqrt(np.maximum(rest[..., 0], floor))
        L[..., j, j] = pivot
        L[..., j + 1 :, j] = rest[..., 1:] / pivot[..., None]
    Q = np.zeros_like(Y)
    for j in range(R):
        known = (Q[..., :j] * L[..., j : j + 1, :j]).sum(axis=-1)
        Q[..., j] = (Y[..., j] - known) / L[..., j, j][..., None]
    return np.where(trace > 0, Q, np.float32(0)).astype(np.float32)


def split(
    Q: F32, X: F32, peak: F32, least: float = FACTOR_MIN, largest: float = FACTOR_MAX
) -> tuple[F32, F32]:
    """Factors ([..., R, K], [..., R, V]) with the singular value shared evenly by both sides.

    least, largest   a pair whose largest entries are not within these is zero on both sides
    """
    length = np.sqrt((X * X).sum(axis=-2, keepdims=True))
    share = np.sqrt(length) * np.sqrt(peak)
    key = Q * share
    u = _over(X, length) * share
    top_key, top_u = (np.abs(f).max(axis=-2, keepdims=True) for f in (key, u))
    fits = (np.maximum(top_key, top_u) <= largest) & (np.minimum(top_key, top_u) >= least)
    kept = (np.where(fits, f, np.float32(0)) for f in (key, u))
    comp_key, comp_u = (np.ascontiguousarray(np.swapaxes(f, -1, -2)) for f in kept)
    return comp_key, comp_u
