"""Specs, shapes and random inputs for the tests of the oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.oracle.windowed import WindowModel
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import Plan, make_plan
from leapgen.spec.loader import load, loads
from leapgen.spec.model import Spec
from leapgen.tensors import Axis, Per

SPECS = Path(__file__).resolve().parents[2] / "specs"

# Two sub-steps, the second without a decay; a value without a gain; an output that reads the
# state before the token and adds a term.
ERASE_THEN_WRITE = """
name: erase_write
title: an erasing and a writing sub-step
heads: {key: H, value: HV}
dims: {key: 16, value: 24}
inputs:
  q: {per: key, axes: K, dtype: bf16}
  k: {per: key, axes: K, dtype: bf16}
  e: {per: value, axes: K, dtype: bf16}
  v: {per: value, axes: V, dtype: bf16}
  w: {per: value, axes: K, dtype: fp32}
  d: {per: value, dtype: fp32, constant: true}
let:
  q: l2norm(q, eps=1e-6)
  k: l2norm(k, eps=1e-6)
  e: l2norm(e, eps=1e-6)
  w: -softplus(w)
recurrence:
  native: (diag(exp(w)) - e @ e.T) @ S + k @ v.T
  substeps:
    - {decay: {kind: vector, log: w}, key: e, read: e}
    - {key: k, value: v}
  output: {query: q, of: previous, add: d * v}
state: {format: fp32-window, window: 4, records: fp32}
"""


def spec_of(name: str, state: dict[str, Any] | None = None, picks: Any = None) -> Spec:
    """A spec of the repository, or the one above, with state options replaced."""
    if name == "erase_write":
        return loads(ERASE_THEN_WRITE, state=state)
    return load(SPECS / f"{name}.yaml", picks, state)


def plan_of(spec: Spec, arch: str = "sm90") -> Plan:
    return make_plan(derive(lower(spec)), spec.state, ARCHES[arch])


def model_of(spec: Spec, K: int = 16, V: int = 24, slots: int = 5, **shape: int) -> WindowModel:
    """A model of H=2, HV=4 heads whose tensors are all poisoned where nothing was written."""
    plan = plan_of(spec)
    model = WindowModel(spec, plan, plan.shape(K, V, 2, 4, **shape), slots)
    for b in plan.buffers:
        array = model.pool[b.name]
        array[...] = np.nan if array.dtype.kind == "f" else 0x7F
    return model


class Inputs:
    """Random raw inputs of a spec; constants stay the same from call to call."""

    def __init__(self, spec: Spec, rows: int, K: int = 16, V: int = 24, seed: int = 0) -> None:
        self.spec, self.rows, self.sizes = spec, rows, {Axis.KEY: (K,), Axis.VALUE: (V,)}
        self.rng = np.random.default_rng(seed)
        self.constants = {x.name: self._draw(x) for x in spec.inputs if x.constant}

    def _draw(self, x: Any) -> np.ndarray:
        heads = 2 if x.per is Per.KEY else 4
        rows = () if x.constant else (self.rows,)
        size = (*rows, heads, *self.sizes.get(x.axis, ()))
        return self.rng.standard_normal(size).astype(np.float32)

    def __call__(self) -> dict[str, np.ndarray]:
        drawn = {x.name: self._draw(x) for x in self.spec.inputs if not x.constant}
        return {**drawn, **self.constants}
