"""Streams and drift: the storage method earns its complexity on inputs like a trained layer's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from oracle_samples import plan_of, spec_of

from leapgen.formats.base import F32, Codes
from leapgen.formats.integer import Integer
from leapgen.formats.table import format_named
from leapgen.oracle.drift import Direct, Drift, Method, drift, standard_methods
from leapgen.oracle.evaluate import definitions
from leapgen.oracle.roles import Role, roles
from leapgen.oracle.stepwise import Stepwise, token_of
from leapgen.oracle.streams import DECAYS, Heads, stream
from leapgen.oracle.tolerance import distance
from leapgen.oracle.windowed import WindowModel
from leapgen.report.drift_section import INDEPENDENT

SMALL = Heads(2, 4, 32, 16)

CHOICES = [
    ("gdn", {}),
    ("gdn", {"gate": "log_decay", "beta": "activated"}),
    ("gdn", {"beta": "raw2", "norm": "none", "scale": "one"}),
    ("kda", {}),
    ("kda", {"gate": "lower_bound"}),
    ("kda", {"gate": "lower_bound_plain"}),
    ("kda", {"gate": "log_decay", "beta": "activated"}),
    ("erase_write", {}),
]


@pytest.mark.parametrize(("name", "picks"), CHOICES)
def test_streams_fit_every_choice(name: str, picks: dict[str, str]) -> None:
    spec = spec_of(name, picks=picks or None)
    x = stream(spec, 200, SMALL, seed=3)
    again = stream(spec, 200, SMALL, seed=3)
    assert all((x[n] == again[n]).all() for n in x)
    for i in spec.inputs:
        lead = () if i.constant else (200,)
        assert x[i.name].shape == (*lead, *SMALL.of(i))
        assert np.isfinite(x[i.name]).all()
        if i.dtype == "bf16":
            assert (x[i.name].view(np.uint32) & 0xFFFF == 0).all()
    token = Stepwise(spec).token(x)
    logs = [s.log for s in token.substeps if s.log is not None]
    assert all((log <= 0).all() for log in logs)
    mean = -sum(log.mean(axis=0) for log in logs)
    typical = np.exp(np.log(np.maximum(mean, 1e-30)).mean(axis=-1))
    assert (np.abs(np.log(typical / np.array(DECAYS))) < 1.0).all()


def test_roles_follow_from_formulas() -> None:
    found = roles(spec_of("kda"))
    assert found["q"] is found["k"] is Role.VECTOR
    assert found["v"] is Role.VALUE
    assert found["b"] is Role.GAIN
    assert found["a"] is found["A_log"] is found["dt_bias"] is Role.DECAY


@pytest.mark.parametrize("name", ["gdn", "kda", "erase_write"])
def test_a_direct_state_is_what_the_window_model_reads(name: str) -> None:
    """A rounding that falls apart moves a record by 2^-11; most tokens must agree far better."""
    spec = spec_of(name, {"format": "fp32-window", "window": 24, "records": "fp16"})
    plan = plan_of(spec)
    model = WindowModel(spec, plan, plan.shape(32, 16, 2, 4), 1)
    x = stream(spec, 60, SMALL)
    token = token_of(spec, definitions(spec, x, SMALL.HV, np.float32))
    direct = Direct((4, 32, 16), np.float32, spec, "fp16")
    constants = {i.name for i in spec.inputs if i.constant}
    apart = []
    for t in range(60):
        one = {n: a if n in constants else a[t : t + 1] for n, a in x.items()}
        out = model.step(np.array([0]), one)[0]
        apart.append(distance(out, direct.advance(token.at(t))))
        assert distance(model.materialize(np.array([0]))[0], direct.S, 2).max() < 1e-3
    assert np.max(apart) < 1e-3
    assert np.median(apart) < 2e-6


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_window_and_method_earn_their_keep(name: str) -> None:
    """4096 tokens at 128 x 128: the figures that the paper's ablation and our study report."""
    spec = spec_of(name)
    result: Drift = drift(spec, standard_methods(spec, format_named(spec.state.format)))
    assert result.tokens == 4096
    assert result.ratio("per step", "per window") >= 10
    assert result.ratio("per window", "full") >= 10


def test_errors_of_a_window_are_as_independent_as_dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that round towards zero lose at every window what they lost before."""
    spec = spec_of("gdn")
    window, dice = standard_methods(spec, format_named("int8-window"))[1:3]
    assert (window.independent, dice.independent) == (False, True)
    honest = Integer.encode

    def towards_zero(self: Integer, residual: F32) -> Codes:
        codes = honest(self, residual)
        over = np.abs(self.decode(codes)) > np.abs(residual)
        payload = np.where(over, codes.payload - np.sign(codes.payload), codes.payload)
        return replace(codes, payload=payload)

    ratios = []
    for encode in (honest, towards_zero):
        monkeypatch.setattr(Integer, "encode", encode)
        result = drift(spec, (window, dice), 2048, SMALL)
        ratios.append(result.ratio("per window", "independent"))
    assert 0.7 < ratios[0] < 1.4 < INDEPENDENT < ratios[1]


def test_an_exact_method_does_not_drift() -> None:
    spec = spec_of("kda")
    exact = Method("exact", format_named("fp32-window"), 16, "fp32", 0)
    result = drift(spec, (exact,), 512, SMALL)
    assert result.line("exact").state_mean < 1e-10
    assert result.line("exact").output_mean < 1e-10
    assert "exact" in result.text()


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 512 tokens, found 100"):
        drift(spec_of("gdn"), (), 100)


def test_constants_have_no_token_axis() -> None:
    spec = spec_of("kda")
    x = stream(spec, 8, SMALL)
    scope = definitions(spec, x, SMALL.HV, np.float64)
    assert scope["A_log"].shape == (4, 1)
    assert scope["g"].shape == (8, 4, 32)
