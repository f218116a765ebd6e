"""Raw inputs of a shipped spec in the ranges that its layer gives them, and start states."""

from __future__ import annotations

from typing import Any

import numpy as np

from leapgen.formats import elements
from leapgen.oracle.streams import Heads
from leapgen.spec.model import Input, Spec

Array = Any


def inputs(spec: Spec, T: int, heads: Heads, rng: np.random.Generator) -> dict[str, Array]:
    """[T, heads, axis], constants without T; every value is one of the declared element type."""
    drawn = {x.name: _raw(x, T, heads, rng) for x in spec.inputs}
    if {"alpha", "beta"} <= set(drawn):  # a transition I + beta alpha^T that shrinks, as layers do
        unit = drawn["alpha"] / np.linalg.norm(drawn["alpha"], axis=-1, keepdims=True)
        drawn["alpha"] = -unit
        drawn["beta"] = unit / (1 + np.exp(-drawn["beta"]))
    return {x.name: _stored(x, drawn[x.name]) for x in spec.inputs}


def _raw(x: Input, T: int, heads: Heads, rng: np.random.Generator) -> Array:
    shape = heads.of(x) if x.constant else (T, *heads.of(x))
    normal = rng.standard_normal(shape)
    match x.name:
        case "slope" | "bound" | "dt_min":
            return np.abs(normal) * {"slope": 0.1, "bound": 0.2, "dt_min": 0.05}[x.name]
        case "dt_max":
            return 0.3 + np.abs(normal)
        case "g" if x.constant:  # of RetNet
            return np.log(1 - 2.0 ** (-5 - np.arange(shape[0])))
        case "g":
            return -np.log1p(np.exp(normal - 3))
        case "w" if x.dtype == "fp32":  # the raw decay of RWKV6: exp(-exp(w))
            return normal - 3
        case "A_log" | "dt_bias":
            return 0.5 * normal - 1
    return normal


def states(
    spec: Spec, rows: int, heads: Heads, rng: np.random.Generator, kind: str = "normal"
) -> Array:
    """[rows, HV, K, V] in FP32; a state that is divided by has what positive keys would give."""
    S = rng.standard_normal((rows, heads.HV, heads.K, heads.V)).astype(np.float32)
    return np.abs(S) if kind == "positive" else S


def _stored(x: Input, drawn: Array) -> Array:
    values = np.asarray(drawn, np.float32)
    return elements.decode(x.dtype, elements.encode(x.dtype, values)).astype(np.float64)
