"""Faults that were found in emitted kernels, of compositions that have no name of their own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from composed_codes import chain_of

from leapgen.oracle.streams import Heads, stream
from leapgen.report.subjects import one_thread, subject
from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import DTYPES

pytestmark = pytest.mark.slow  # each compiles kernels for an emulated GPU
SLOT = torch.zeros(1, dtype=torch.int32)


@cache
def module_of(spec: str, format: str) -> Any:
    return subject(chain_of(spec, format, "sm90").source, "sm90").module


def start(spec: str, format: str, K: int, V: int, **more: int) -> tuple[Any, Any, dict[str, Any]]:
    """A module, a pool whose slot 0 holds a state of 3.96 and -3.96, and a token's inputs."""
    module, inputs = module_of(spec, format), chain_of(spec, format, "sm90").spec.inputs
    pool = module.allocate(1, H=1, HV=2, K=K, V=V, **more)
    rng = np.random.default_rng(0)
    state = 3.96 * np.sign(rng.normal(size=(1, 2, K, V)))
    module.load_state(pool, SLOT, torch.from_numpy(state.astype(np.float32)), layout="KV")
    given = stream(chain_of(spec, format, "sm90").spec, 1, Heads(1, 2, K, V), 5)
    token = {x.name: torch.tensor(given[x.name]).to(DTYPES[x.dtype]) for x in inputs}
    return module, pool, token


@pytest.mark.parametrize("V", [32, 48])  # records in registers; staged
def test_a_nan_gate_shows_at_the_first_token(V: int) -> None:
    """Where nothing but the payload is read, only the peak of the read vector has the NaN."""
    module, pool, token = start("kda", "int8-window", 64, V)
    token["a"][0, 0] = float("nan")
    with one_thread():
        out = module.step(pool, SLOT, *token.values())
    assert out[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()


def test_a_nan_gate_shows_at_the_first_draft() -> None:
    module, pool, token = start("kda", "leapquant-int4[compensators=0]", 64, 32, drafts=2)
    constant = {x.name for x in module.inputs if x.constant}
    drafts = {n: t if n in constant else torch.stack([t, t], 1) for n, t in token.items()}
    drafts["a"][0, 0, 0] = float("nan")
    with one_thread():
        out = module.verify(pool, SLOT, *drafts.values())
    assert out[0, :, 0].isnan().all()
    assert out[0, :, 1].isfinite().all()


def test_words_hold_the_largest_payload_of_small_codes() -> None:
    """A token that writes nothing and halves the state: with codes up to 7 the payload's factors
    were beyond FP16."""
    module, pool, token = start("gdn", "leapquant-int4[compensators=0]", 32, 32, window=1)
    before = module.materialize(pool, SLOT, layout="KV")
    token["b"].fill_(float("-inf"))
    # exp(-exp(A_log) softplus(a + dt_bias)) just above a half
    token["A_log"].fill_(0.0), token["dt_bias"].fill_(0.0), token["a"].fill_(-0.015625)
    with one_thread():
        module.step(pool, SLOT, *token.values())
    after = module.materialize(pool, SLOT, layout="KV")
    decay = float(torch.sigmoid(torch.tensor(0.015625)))
    step = before.abs().amax() * decay / 7
    assert (after - decay * before).abs().max() <= 0.55 * step


def test_scales_of_drafts_wait_for_the_records_keys() -> None:
    """Without a transform no barrier stood between; every access is watched."""
    module, pool, token = start("gdn", "leap8[transform=none]", 64, 64, window=4, drafts=2)
    constant = {x.name for x in module.inputs if x.constant}
    drafts = {n: t if n in constant else t[:, None] for n, t in token.items()}
    watched = module.with_backend(Emulator(checked=True))
    with one_thread():
        module.step(pool, SLOT, *token.values())
        out = watched.verify(pool, SLOT, *drafts.values())
    assert out.isfinite().all()
