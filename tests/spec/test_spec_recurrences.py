"""Recurrences beside the shipped ones: what the language can say, and how alternatives patch it."""

from __future__ import annotations

import pytest

from leapgen.diagnostics import Diagnostics
from leapgen.spec.loader import loads

HEAD = """name: other
title: Other
dims: {key: 16, value: 24}
state: {format: leapquant-int8, window: 16}
inputs:
  q: {per: key, axes: K, dtype: bf16}
  k: {per: key, axes: K, dtype: bf16}
  v: {per: value, axes: V, dtype: bf16}
"""

OTHERS = {
    "linear attention": """
recurrence:
  native: S + k @ v.T
  substeps:
    - {key: k, value: v}
  output: {query: q}
""",
    "constant decay": """
  slope: {per: value, dtype: fp32, constant: true}
let: {s: abs_free * 1, q: q * K**-0.5}
recurrence:
  native: exp(-s) * S + k @ v.T
  decay: {kind: constant, log: -s}
  substeps:
    - {key: k, value: v}
  output: {query: q}
""".replace("abs_free * 1", "softplus(slope)"),
    "read before the token, with a bonus": """
  w: {per: value, axes: K, dtype: bf16}
  u: {per: value, axes: K, dtype: fp32, constant: true}
recurrence:
  native: diag(exp(-exp(w))) @ S + k @ v.T
  decay: {kind: vector, log: -exp(w)}
  substeps:
    - {key: k, value: v}
  output: {query: q, of: previous, add: "dot(q, bonus * k) * v"}
""".replace("  u:", "  bonus:"),
    "skip and shared keys": """
  dt: {per: value, dtype: bf16}
  A_log: {per: value, dtype: fp32, constant: true}
  skip: {per: value, dtype: fp32, constant: true}
let:
  dt: softplus(dt)
  x: dt * v
recurrence:
  native: exp(-dt * exp(A_log)) * S + k @ x.T
  decay: {kind: scalar, log: -dt * exp(A_log)}
  substeps:
    - {key: k, value: x}
  output: {query: q, add: skip * v, dtype: fp32}
""",
    "erase, then write": """
  a: {per: value, axes: K, dtype: bf16}
  kappa: {per: value, axes: K, dtype: bf16}
  w: {per: value, axes: K, dtype: bf16}
let: {g: -exp(-0.5) * sigmoid(w)}
recurrence:
  native: (diag(exp(g)) - (a * kappa) @ kappa.T) @ S + k @ v.T
  decay: {kind: vector, log: g}
  substeps:
    - {key: a * kappa, read: kappa}
    - {key: k, value: v}
  output: {query: q}
""",
    "decay in a later sub-step, read of the decayed state": """
  g: {per: value, dtype: fp32}
recurrence:
  native: exp(g) * (S + k @ v.T) + q @ (v - exp(g) * S.T @ q).T
  substeps:
    - {key: k, value: v}
    - {decay: {kind: scalar, log: g}, key: q, read: q, of: decayed, value: v, gain: sigmoid(v)}
  output: {query: q}
""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_recurrences_load(name: str) -> None:
    spec = loads(HEAD + OTHERS[name], name)
    assert spec.choices == {}
    assert spec.picks == {}


def test_defaults_of_substeps() -> None:
    spec = loads(HEAD + OTHERS["decay in a later sub-step, read of the decayed state"])
    first, second = spec.substeps
    assert (first.decay.kind, first.read, first.gain, first.reads_decayed) == (
        "none",
        None,
        None,
        False,
    )
    assert (second.decay.kind, second.reads_decayed) == ("scalar", True)


CHOICE = """
  a: {per: value, dtype: bf16}
let:
  rate: exp(a)
  g: -rate
recurrence:
  native: exp(g) * S + k @ v.T
  decay: {kind: scalar, log: g}
  substeps: [{key: k, value: v}]
  output: {query: q}
choices:
  gate:
    exponential: {doc: default}
    shifted: {let: {shift: softplus(a), rate: shift + 1, tail: rate * 2, g: -tail}}
    none:
      drop: [a, rate, g]
      recurrence: {native: S + k @ v.T, decay: {kind: none}}
"""


def test_new_definitions_stand_before_what_uses_them() -> None:
    spec = loads(HEAD + CHOICE, picks={"gate": "shifted"})
    assert [d.name for d in spec.definitions] == ["shift", "rate", "tail", "g"]


def test_alternatives_replace_parts_of_the_recurrence() -> None:
    spec = loads(HEAD + CHOICE, picks={"gate": "none"})
    assert spec.definitions == ()
    assert spec.substeps[0].decay.kind == "none"
    assert [i.name for i in spec.inputs] == ["q", "k", "v"]


def test_errors_of_alternatives_that_nobody_picked() -> None:
    with pytest.raises(Diagnostics) as caught:
        loads(HEAD + CHOICE.replace("shift + 1", "shfit + 1"))
    (d,) = caught.value.items
    assert d.code == "unknown-symbol"
    assert d.notes == ("with the choice `gate: shifted`",)
