"""Faults that drawn recurrences have found, each as small as it gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matrices import update

from leapgen import pipeline
from leapgen.oracle.evaluate import definitions, evaluate
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import DECAYS, Heads, stream
from leapgen.oracle.tolerance import SMALLEST, distance
from leapgen.oracle.windowed import WindowModel
from leapgen.report.subjects import one_thread, subject
from leapgen.report.verify import operate
from leapgen.runtime.assemble import import_module, store
from leapgen.spec.loader import loads
from leapgen.spec.model import Spec

HEAD = """name: found
title: Found
dims: {key: 16, value: 24}
state: {format: leapquant-int8, window: 16}
inputs:
  q: {per: key, axes: K, dtype: bf16}
  k: {per: key, axes: K, dtype: bf16}
  v: {per: key, axes: V, dtype: bf16}
"""


def mean_decays(spec: Spec, heads: Heads) -> np.ndarray:
    """[HV] mean log decay of a token in a typical channel, over all sub-steps."""
    scope = definitions(spec, stream(spec, 256, heads, seed=3), heads.HV, np.float64)
    logs = [np.asarray(evaluate(s.decay.log.node, scope)) for s in spec.substeps if s.decay.log]
    means = [x.mean(axis=0) if x.ndim > 2 else x for x in logs]
    return np.exp(np.log(-sum(means)).mean(axis=-1))


def test_value_heads_without_an_input_of_their_own() -> None:
    """The state has more heads than any input; the interpreter counted the inputs' heads."""
    text = "recurrence:\n  native: S + k @ v.T\n  substeps: [{key: k, value: v}]\n"
    spec = loads(HEAD + text + "  output: {query: q}\n")
    tokens = stream(spec, 1, Heads(2, 4, 16, 24), seed=0)
    S = np.random.default_rng(0).standard_normal((4, 16, 24))
    token = {name: x[0] for name, x in tokens.items()}
    found, out, _ = Stepwise(spec).step(S, token)
    assert out.shape == (4, 24)
    np.testing.assert_allclose(found, update(spec, S, token), rtol=1e-12)


def test_constant_decays_are_calibrated_head_by_head() -> None:
    """The mean over tokens of a decay that has none was one over heads."""
    text = """  slope: {per: value, axes: K, dtype: fp32, constant: true}
recurrence:
  native: diag(exp(-softplus(slope))) @ S + k @ v.T
  decay: {kind: constant, log: -softplus(slope)}
  substeps: [{key: k, value: v}]
  output: {query: q}
"""
    found = mean_decays(loads(HEAD + text), Heads(2, 4, 16, 24))
    assert np.abs(np.log(found / np.array(DECAYS))).max() < 0.1


def test_sub_steps_that_decay_on_their_own_share_the_calibration() -> None:
    """No single input brings the decay of a token down when two sub-steps decay by themselves."""
    text = """  a: {per: value, axes: K, dtype: bf16}
  b: {per: value, dtype: bf16}
let: {g: -softplus(a), h: -5 * sigmoid(b)}
recurrence:
  native: exp(h) * (diag(exp(g)) @ S + k @ v.T) + q @ v.T
  substeps:
    - {decay: {kind: vector, log: g}, key: k, value: v}
    - {decay: {kind: scalar, log: h}, key: q, value: v}
  output: {query: q}
"""
    found = mean_decays(loads(HEAD + text), Heads(2, 4, 16, 24))
    assert np.abs(np.log(found / np.array(DECAYS))).max() < 1


def test_queries_of_value_heads_hit_what_their_key_heads_wrote() -> None:
    """Vectors of value heads shared their direction with the key head of the same number."""
    text = (
        HEAD.replace("q: {per: key", "q: {per: value")
        + """recurrence:
  native: S + k @ v.T
  substeps: [{key: k, value: v}]
  output: {query: q}
"""
    )
    tokens = stream(loads(text), 256, Heads(1, 3, 64, 24), seed=0)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (tokens["q"], tokens["k"]))
    along = (q * k).sum(axis=-1).mean(axis=0)
    assert along.min() > 0.5, along


def test_the_model_of_a_window_whose_first_sub_step_does_not_decay() -> None:
    """A record of it has a level of its own, as in kernels' pools; the model's had none."""
    text = """  a: {per: value, axes: K, dtype: bf16}
let: {g: -softplus(a), k: "l2norm(k, eps=1e-6)"}
recurrence:
  native: diag(exp(g)) @ (S + k @ v.T)
  substeps:
    - {key: k, value: v}
    - {decay: {kind: vector, log: g}, key: q, value: 0 * v}
  output: {query: q}
"""
    spec = loads(HEAD + text)
    plan = pipeline.schedule(pipeline.derive(pipeline.lower(spec)), spec, "cpu")
    shape = plan.shape(16, 24, 2, 4)
    model = WindowModel(spec, plan, shape, 1)
    tokens = stream(spec, 3, Heads(2, 4, 16, 24), seed=0)
    for t in range(3):
        model.step(np.array([0]), {n: x[t : t + 1] for n, x in tokens.items()})
    scope = definitions(spec, tokens, 4, np.float64)
    G = np.cumsum(scope["g"], axis=0) / np.log(2)  # [tokens, HV, K]
    before = np.concatenate([np.zeros_like(G[:1]), G[:-1]])
    entries = model.pool["record_decay"][0][:, :6]  # [HV, two levels a token, K]
    expected = np.stack([before, G], axis=1).reshape(6, 4, 16).swapaxes(0, 1)
    np.testing.assert_allclose(entries, expected, rtol=1e-4, atol=1e-6)


def test_corrections_below_what_fp16_holds_are_no_error() -> None:
    """A record of 1e-6 is off by half of FP16's smallest number, whatever that is of its peak."""
    u = np.array([9.1e-7, -2.2e-7])
    stored = u.astype(np.float16).astype(float)
    assert distance(stored, u) > 1e-3
    assert distance(stored, u, floor=SMALLEST["fp16"]) == 0
    assert distance(stored + 2e-7, u, floor=SMALLEST["fp16"]) > 0.1
    assert distance(np.array([np.nan, 0]), u, floor=SMALLEST["fp16"]) == np.inf


def test_a_step_that_reads_once_traces_for_gpus(tmp_path: Path) -> None:
    """Nothing is corrected, so the query alone reads: an odd number of reads, at a shape whose
    state is held in registers."""
    text = "recurrence:\n  native: S + k @ v.T\n  substeps: [{key: k, value: v}]\n"
    path = tmp_path / "found.yaml"
    path.write_text(HEAD + text + "  output: {query: q}\n")
    chain = pipeline.compile(str(path), "sm90")
    module = import_module(store("found", chain.source.text, tmp_path))
    shape = module.shape(H=2, HV=4, K=64, V=32)
    config = module.config("step", shape, None)
    assert config["held"]
    module.kernels["step"].build(*shape.builder_arguments, **config)


def test_a_sub_step_that_erases_what_the_one_before_wrote(tmp_path: Path) -> None:
    """Little is left of the state, so the rounding of two large records is much of it."""
    text = """recurrence:
  native: S + k @ v.T - k @ ((S + k @ v.T).T @ r).T
  substeps: [{key: k, value: v}, {key: k, read: r}]
  output: {query: q}
"""
    head = HEAD.replace("leapquant-int8, window: 16", "fp32-window, window: 3, records: bf16")
    path = tmp_path / "found.yaml"
    path.write_text(head + "let: {k: 'l2norm(k)', r: 'l2norm(k + 0.5 * q)'}\n" + text)
    chain = pipeline.compile(str(path), "cpu")
    with one_thread():
        section = operate(chain, subject(chain.source, "cpu"), chain.plan.shape(16, 24, 2, 4), 40)
    assert [c.row for c in section.ledger.checks.values() if not c.ok] == []
