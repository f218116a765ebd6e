"""The interpreter of every shipped spec against its layer's published recurrence, in float64."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import draws
import fla_naive
import numpy as np
import pytest
from kernels import SMALL, check, module_name, wrong
from published import PUBLISHED, run, spread

from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads
from leapgen.report.subjects import one_thread
from leapgen.spec.loader import load
from leapgen.spec.model import Spec

ROOT = Path(__file__).resolve().parents[2]
T = 96
HEADS = Heads(H=2, HV=4, K=16, V=24)
SHIPPED = {p.stem for p in (ROOT / "specs").glob("*.yaml")}
CASES = [pytest.param(case, id=module_name(case)) for case in PUBLISHED]


def spec_of(case: tuple[str, ...]) -> Spec:
    name, *picks = case
    return load(ROOT / "specs" / f"{name}.yaml", dict(p.split("=") for p in picks))


def constants(spec: Spec) -> frozenset[str]:
    return frozenset(x.name for x in spec.inputs if x.constant)


def start(spec: Spec, rows: int = 1, heads: Heads = HEADS) -> Any:
    """A start state; one whose last column is a sum of positive keys where it is divided by."""
    kind = "positive" if spec.picks.get("normaliser") == "column" else "normal"
    return draws.states(spec, rows, heads, np.random.default_rng(1), kind)


def test_references_and_specs_match() -> None:
    """A spec without one is listed, not refused: a recurrence is added without any Python."""
    assert {case[0] for case in PUBLISHED} <= SHIPPED
    alone = SHIPPED - {case[0] for case in PUBLISHED}
    if alone:
        warnings.warn(f"no published reference: {', '.join(sorted(alone))}", stacklevel=1)


@pytest.mark.parametrize("case", CASES)
def test_the_interpreter_is_the_published_recurrence(case: tuple[str, ...]) -> None:
    spec, S = spec_of(case), start(spec_of(case))[0].astype(np.float64)
    raw = draws.inputs(spec, T, HEADS, np.random.default_rng(0))
    fixed = constants(spec)
    expected, last = run(PUBLISHED[case], raw, S, fixed)
    interpreter, found = Stepwise(spec), []
    for t in range(T):
        S, o, _ = interpreter.step(S, {n: x if n in fixed else x[t] for n, x in raw.items()})
        found.append(o)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(S, last, rtol=1e-9, atol=1e-10 * np.abs(last).max())


@pytest.mark.parametrize("case", CASES)
def test_flash_linear_attention_agrees(case: tuple[str, ...]) -> None:
    """Its naive functions run on a CPU too, where the package and triton are installed."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    spec, S = spec_of(case), start(spec_of(case))[0]
    raw = draws.inputs(spec, T, HEADS, np.random.default_rng(0))
    layer, fixed = PUBLISHED[case], constants(spec)
    expected, last = run(layer, raw, S, fixed)
    coefficients = layer.prepare(spread(raw, HEADS.HV, fixed))
    found = fla_naive.run(module_name(case), coefficients, S, "cpu")
    assert found is not None
    o, state = found
    channels = o.shape[-1]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(o, expected[..., :channels], rtol=1e-4, atol=1e-5 * scale)
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-5 * np.abs(last).max())


def test_their_recurrent_comba_reads_another_state() -> None:
    """The library's two references of this layer disagree; ours is the one that its kernels run."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    import torch
    from fla.ops.comba.naive import naive_recurrent_comba

    case = ("comba",)
    spec, S = spec_of(case), start(spec_of(case))[0]
    raw = draws.inputs(spec, T, HEADS, np.random.default_rng(0))
    coefficients = PUBLISHED[case].prepare(spread(raw, HEADS.HV, constants(spec)))
    x = {n: torch.tensor(np.asarray(c), dtype=torch.float32)[None] for n, c in coefficients.items()}
    gates = (x["beta"], x["alpha"].log())
    o, _ = naive_recurrent_comba(
        x["q"], x["k"], x["v"], x["p"], *gates, scale=1.0, initial_state=torch.tensor(S)[None]
    )
    expected, _ = run(PUBLISHED[case], raw, S.astype(np.float64), constants(spec))
    gap = np.abs(o[0].numpy() - expected).max() / np.abs(expected).max()
    assert gap > 1e-2, "they agree now: say so in fla_naive.py"


@pytest.mark.parametrize("case", [("gdn",), ("kda", "gate=lower_bound")], ids=module_name)
def test_kernels_on_the_cpu(case: tuple[str, ...]) -> None:
    """What the GPU's record is made of (tests/gpu/test_published_kernels.py), on two specs."""
    with one_thread():
        row = check(case, "cpu", "fp32-window", SMALL)
    assert not wrong(row)
    assert min(row["flushes"]) > 1
    assert 0 < row["output"] < 1e-2


def test_a_wrong_reference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run against a layer that reads the decayed state is over its bound."""
    right = PUBLISHED[("gdn",)]
    late = dataclasses.replace(right, token=lambda S, c: (S, S.T @ c["q"]))
    monkeypatch.setitem(PUBLISHED, ("gdn",), late)
    with one_thread():
        row = check(("gdn",), "cpu", "fp32-window", SMALL)
    assert len(wrong(row)) == 2
