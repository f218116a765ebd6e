"""`leapgen new NAME`: a spec file to start from, with a comment on every part.

As it stands it is a gated delta rule that `explain` and `verify` accept, so that a first kernel is
there before anything was written.
"""

from __future__ import annotations

import os
from pathlib import Path

from leapgen import paths
from leapgen.diagnostics import LeapgenError
from leapgen.files import create_atomic
from leapgen.spec.names import LOWER_WORD, RESERVED

TEXT = """\
# yaml-language-server: $schema=@schema@
# A linear-attention recurrence. As it stands: a gated delta rule. Change any part of it, then
#   leapgen explain @name@.yaml     equations, proof, what a slot stores, bytes a token
#   leapgen verify @name@.yaml      a kernel, run against a float64 interpreter of this file
# Every error names line and column, all of them at once.
name: @name@
title: @title@
heads: {key: H, value: HV}      # HV is a multiple of H: neighbouring value heads share a key head
dims: {key: 64, value: 64}      # channels of a head: multiples of 8; kernels take other sizes too

# What a step receives, in this order. per: one for each key head or each value head. axes: K, V,
# or absent for one number a head. constant: a weight, the same for all requests and tokens.
inputs:
  q:       {per: key, axes: K, dtype: bf16, doc: query}
  k:       {per: key, axes: K, dtype: bf16, doc: key}
  v:       {per: value, axes: V, dtype: bf16, doc: value}
  a:       {per: value, dtype: bf16, doc: raw gate}
  b:       {per: value, dtype: bf16, doc: raw step size}
  dt_bias: {per: value, dtype: fp32, constant: true, doc: bias of the raw gate}

# From what arrives to coefficients, line by line; a name means its latest meaning above.
# Beside + - * / ** there are:
#   @functions@
let:
  q: l2norm(q, eps=1e-6) * K**-0.5
  k: l2norm(k, eps=1e-6)
  g: -softplus(a + dt_bias)     # the natural log of a decay, never above 0
  beta: sigmoid(b)

# What a token does to the state, and what it returns.
recurrence:
  # The update as a paper has it. S is the state, K x V; vectors are columns; `@` multiplies
  # matrices, `.T` transposes, `diag(x)` and `I` are what they say. It is proved equal to the
  # sub-steps below, or the error points here.
  native: (I - beta * k @ k.T) @ (exp(g) * S) + beta * k @ v.T
  decay: {kind: scalar, log: g} # none, constant, scalar (a number a head) or vector (over K)
  # One to n sub-steps: u = gain * (value - S^T read), then S <- decay * S + key u^T.
  # Leave out `read`, `value` or `gain` where there is none. `of: decayed` reads S after its decay.
  # A later sub-step may have a `decay: {...}` of its own.
  substeps:
    - {key: k, read: k, of: decayed, value: v, gain: beta}
  # o = S^T query, plus `add` (over V) if given; `of: previous` reads S before the token.
  output: {query: q, of: updated}

# How the state is stored (`leapgen list formats`), and how many tokens lie between two roundings.
state: {format: leapquant-int8, window: 16}
"""


def new(name: str, folder: Path) -> Path:
    """Write `<name>.yaml` in a folder; the file appears whole or not at all.

    Errors: LeapgenError, where the name cannot be a spec's or the file is there already.
    """
    _check(name)
    path = folder / f"{name}.yaml"
    if not create_atomic(path, text(name, path.parent)):
        raise LeapgenError(f"{path}: there is such a file already; it was left as it is")
    return path


def text(name: str, folder: Path) -> str:
    """The starter spec of a name; `folder` decides how its first line points to the schema."""
    from leapgen.spec.expression import FUNCTIONS

    fill = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "schema": _schema(folder),
        "functions": ", ".join(FUNCTIONS),
    }
    result = TEXT
    for key, value in fill.items():
        result = result.replace(f"@{key}@", value)
    return result


def _check(name: str) -> None:
    if not LOWER_WORD.fullmatch(name):
        rule = "use lower-case letters, digits and underscores, a letter first, as in `my_rule`"
        raise LeapgenError(f"`{name}` cannot name a spec: {rule}")
    if name in RESERVED:
        raise LeapgenError(f"`{name}` cannot name a spec: generated modules use the word")
    if name in {path.stem for path in paths.shipped_specs()}:
        raise LeapgenError(
            f"`{name}` is a spec that leapgen ships (`leapgen explain {name}`): choose another name"
        )


def _schema(folder: Path) -> str:
    """Where editors find the schema from a folder: relative inside one source tree."""
    schema, start = paths.data("specs") / "schema.json", folder.resolve()
    inside = start.is_relative_to(schema.parent.parent)
    return Path(os.path.relpath(schema, start)).as_posix() if inside else schema.as_posix()
