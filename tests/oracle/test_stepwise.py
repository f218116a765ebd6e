"""The float64 interpreter against equations written out by hand, and at the edges of a decay."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_samples import Inputs, spec_of

from leapgen.oracle.stepwise import Stepwise

H, HV, K, V = 2, 4, 16, 24


def l2(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum() + 1e-6)


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_the_delta_rule_as_its_authors_write_it(name: str) -> None:
    """S = (I - beta k k^T) Diag(exp g) S + beta k v^T, o = S^T q, head by head."""
    spec = spec_of(name)
    x = Inputs(spec, 3)()
    rng = np.random.default_rng(9)
    S = rng.standard_normal((3, HV, K, V))
    new, out, us = Stepwise(spec).step(S, x)
    x = {n: a.astype(np.float64) for n, a in x.items()}
    for row in range(3):
        for hv in range(HV):
            h = hv // (HV // H)
            q, k = l2(x["q"][row, h]) * K**-0.5, l2(x["k"][row, h])
            gate = np.log1p(np.exp(x["a"][row, hv] + x["dt_bias"][hv]))
            decay = np.exp(-np.exp(x["A_log"][hv]) * gate) * np.ones(K)
            beta = 1 / (1 + np.exp(-x["b"][row, hv]))
            v = x["v"][row, hv]
            transition = (np.eye(K) - beta * np.outer(k, k)) @ np.diag(decay)
            expected = transition @ S[row, hv] + beta * np.outer(k, v)
            assert np.abs(new[row, hv] - expected).max() < 1e-12
            assert np.abs(out[row, hv] - expected.T @ q).max() < 1e-12
            u = beta * (v - S[row, hv].T @ (decay * k))
            assert np.abs(us[0][row, hv] - u).max() < 1e-12


def test_two_substeps_and_a_read_of_the_previous_state() -> None:
    """RWKV-like: S = (Diag(exp w) - e e^T) S + k v^T with o = S_prev^T q + d v."""
    spec = spec_of("erase_write")
    x = Inputs(spec, 1)()
    S = np.random.default_rng(9).standard_normal((1, HV, K, V))
    new, out, us = Stepwise(spec).step(S, x)
    assert len(us) == 2
    x = {n: a.astype(np.float64) for n, a in x.items()}
    for hv in range(HV):
        h = hv // (HV // H)
        q, k, e = l2(x["q"][0, h]), l2(x["k"][0, h]), l2(x["e"][0, hv])
        decay = np.exp(-np.log1p(np.exp(x["w"][0, hv])))
        expected = (np.diag(decay) - np.outer(e, e)) @ S[0, hv] + np.outer(k, x["v"][0, hv])
        assert np.abs(new[0, hv] - expected).max() < 1e-12
        o = S[0, hv].T @ q + x["d"][hv] * x["v"][0, hv]
        assert np.abs(out[0, hv] - o).max() < 1e-12


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_an_infinite_decay_resets_and_no_decay_keeps(name: str) -> None:
    spec = spec_of(name, picks={"gate": "log_decay"})
    x = Inputs(spec, 1)()
    S = np.random.default_rng(9).standard_normal((1, HV, K, V))
    x["g"] = np.full_like(x["g"], -np.inf)
    fresh = Stepwise(spec).step(np.zeros_like(S), x)
    reset = Stepwise(spec).step(S, x)
    assert (fresh[0] == reset[0]).all()
    assert (fresh[1] == reset[1]).all()
    x["g"] = np.zeros_like(x["g"])
    x["v"] = np.zeros_like(x["v"])
    x["b"] = np.full_like(x["b"], -np.inf)
    assert (Stepwise(spec).step(S, x)[0] == S).all()


@pytest.mark.parametrize("name", ["gdn", "kda", "erase_write"])
def test_a_sequence_at_once_is_its_tokens_one_by_one(name: str) -> None:
    spec = spec_of(name)
    x = Inputs(spec, 6)()  # six tokens of one row
    interpreter = Stepwise(spec)
    whole = interpreter.token(x)
    S = T = np.zeros((HV, K, V))
    constants = {i.name for i in spec.inputs if i.constant}
    for t in range(6):
        one = {n: a if n in constants else a[t] for n, a in x.items()}
        S, a, _ = interpreter.step(S, one)
        T, b, _ = interpreter.advance(T, whole.at(t))
        assert (a == b).all()
        assert (S == T).all()


def test_coefficients_are_named_as_in_the_spec() -> None:
    spec = spec_of("kda")
    got = Stepwise(spec).coefficients(Inputs(spec, 3)())
    assert got["g"].shape == (3, HV, K)
    assert got["beta"].shape == (3, HV, 1)
    assert got["k"].shape == (3, HV, K)
    assert (got["k"][:, 0] == got["k"][:, 1]).all()  # value heads of one key head
    assert (got["K"], got["V"]) == (K, V)
