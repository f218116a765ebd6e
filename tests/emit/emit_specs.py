"""Recurrences of every shape that templates distinguish, beside the shipped ones."""

from __future__ import annotations

from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.algebra.window import Window
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import Plan, make_plan
from leapgen.spec.loader import loads
from leapgen.spec.model import Spec

HEAD = """name: other
title: Other
dims: {key: 16, value: 24}
state: {format: FORMAT, window: 4}
inputs:
  q: {per: key, axes: K, dtype: bf16}
  k: {per: key, axes: K, dtype: bf16}
  v: {per: value, axes: V, dtype: bf16}
"""

TEXTS = {
    "no decay, no read": """
recurrence:
  native: S + k @ v.T
  substeps: [{key: k, value: v}]
  output: {query: q * K**-0.5}
""",
    "constant decay": """
  slope: {per: value, dtype: fp32, constant: true}
recurrence:
  native: exp(-softplus(slope)) * S + k @ v.T
  decay: {kind: constant, log: -softplus(slope)}
  substeps: [{key: k, value: v}]
  output: {query: q * K**-0.5}
""",
    "read before the token, with a bonus and a skip": """
  w: {per: value, axes: K, dtype: bf16}
  bonus: {per: value, axes: K, dtype: fp32, constant: true}
  share: {per: value, dtype: fp32, constant: true}
recurrence:
  native: diag(exp(-exp(w))) @ S + k @ v.T
  decay: {kind: vector, log: -exp(w)}
  substeps: [{key: k, value: v}]
  output: {query: q, of: previous, add: "dot(q, bonus * k) * v + share * v", dtype: fp32}
""",
    "two sub-steps, keys of value heads": """
  a: {per: value, axes: K, dtype: bf16}
  total: {per: value, axes: K, dtype: bf16}
  w: {per: value, axes: K, dtype: bf16}
let: {g: -exp(-0.5) * sigmoid(w), total: "l2norm(total, eps=1e-6)"}
recurrence:
  native: (diag(exp(g)) - (sigmoid(a) * total) @ total.T) @ S + k @ v.T
  decay: {kind: vector, log: g}
  substeps:
    - {key: sigmoid(a) * total, read: total}
    - {key: k, value: v}
  output: {query: q}
""",
    "a constant decay of every channel": """
  slope: {per: value, axes: K, dtype: fp32, constant: true}
let: {g: -softplus(slope)}
recurrence:
  native: diag(exp(g)) @ S + k @ (v - S.T @ k).T
  decay: {kind: constant, log: g}
  substeps: [{key: k, read: k, value: v}]
  output: {query: q}
""",
    "a key that tells the decay": """
  f: {per: key, axes: K, dtype: bf16}
let: {w: sigmoid(-f) * 0.5, g: log(1 - w)}
recurrence:
  native: diag(1 - w) @ S + w @ v.T
  decay: {kind: vector, log: g}
  substeps: [{key: w, value: v}]
  output: {query: q + k, add: sigmoid(v) * v}
""",
    "a gate and sums of what is read": """
  z: {per: value, axes: V, dtype: bf16}
let: {v: "v * (1 - unit(V)) + unit(V)", z: silu(z)}
recurrence:
  native: S + max(k, 0) @ v.T
  substeps: [{key: "max(k, 0)", value: v}]
  output: {query: "max(q, 0)", result: "o * z / (max(dot(o, unit(V)), 0) + dot(o, o) / V + 1)"}
""",
    "two decaying sub-steps": """
  a: {per: value, axes: K, dtype: bf16}
  g: {per: value, dtype: fp32}
  h: {per: value, dtype: fp32}
let: {g: -softplus(g), h: -softplus(h)}
recurrence:
  native: exp(g + h) * S + exp(h) * a @ v.T + k @ v.T
  substeps:
    - {decay: {kind: scalar, log: g}, key: a, value: v}
    - {decay: {kind: scalar, log: h}, key: k, value: v}
  output: {query: q}
""",
}


def spec_of(name: str, format: str = "leapquant-int8") -> Spec:
    """One of TEXTS, loaded; inputs called `share` and `total` are names that templates use."""
    return loads((HEAD + TEXTS[name]).replace("FORMAT", format), name)


def window_of(spec: Spec) -> Window:
    return derive(lower(spec), prove=False)


def plan_of(spec: Spec, arch: str) -> Plan:
    return make_plan(window_of(spec), spec.state, arch_named(arch))
