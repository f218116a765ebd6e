"""Adapters to other packages, on stand-ins for those packages."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from bench_fakes import small_case, subject

from leapgen.bench import check, measure
from leapgen.bench.timing import WallTimer
from leapgen.diagnostics import LeapgenError
from leapgen.integrations.fla import FusedRecurrent
from leapgen.integrations.peers import PEERS, failures, peer_named
from leapgen.integrations.vllm_peer import MODULES, PackedDecode


def delta_rule(q: Any, k: Any, v: Any, a: Any, b: Any, A_log: Any, dt_bias: Any, S: Any) -> Any:
    """One token of the gated delta rule: [rows, heads, ..] and S [rows, HV, K, V] to (o, S)."""
    group = v.shape[1] // q.shape[1]
    q, k = (torch.nn.functional.normalize(x.float(), dim=-1, eps=1e-12) for x in (q, k))
    q, k = (x.repeat_interleave(group, dim=1) for x in (q * q.shape[-1] ** -0.5, k))
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    S = S * g.exp()[..., None, None]
    u = b.float().sigmoid()[..., None] * (v.float() - torch.einsum("bhkv,bhk->bhv", S, k))
    S = S + k[..., :, None] * u[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", S, q).bfloat16(), S


def fused_recurrent(
    q: Any, k: Any, v: Any, g: Any, beta: Any, A_log: Any, dt_bias: Any, **options: Any
) -> Any:
    """With the library's signature."""
    assert options.pop("output_final_state")
    assert all(v for name, v in options.items() if name.startswith("use_"))
    S = options["initial_state"]
    first = options["state_v_first"]
    S = S.transpose(-1, -2) if first else S
    tokens = (x[:, 0] for x in (q, k, v, g, beta))
    o, S = delta_rule(*tokens, A_log, dt_bias, S)
    return o[:, None], S.transpose(-1, -2) if first else S


def packed(mixed_qkv: Any, a: Any, b: Any, A_log: Any, dt_bias: Any, **options: Any) -> Any:
    """With vLLM's signature: states in place."""
    places, pool = options["ssm_state_indices"].long(), options["initial_state"]
    assert int(places.min()) > 0
    rows, (HV, V, K) = len(places), pool.shape[1:]
    H = (mixed_qkv.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed_qkv.split([H * K, H * K, HV * V], dim=1)
    parts = (q.reshape(rows, H, K), k.reshape(rows, H, K), v.reshape(rows, HV, V), a, b)
    S = pool[places].float().transpose(-1, -2)
    o, S = delta_rule(*parts, A_log, dt_bias, S)
    pool[places] = S.transpose(-1, -2).to(pool.dtype)
    options["out"].copy_(o[:, None])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, function in (
        ("fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule", fused_recurrent),
        (MODULES[1], "fused_recurrent_gated_delta_rule_packed_decode", packed),
    ):
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(
                sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end]))
            )
        setattr(sys.modules[module], name, function)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "peer",
    [FusedRecurrent("a", True), FusedRecurrent("b", False), PackedDecode("c", "fp32"),
     PackedDecode("d", "bf16")],
)  # fmt: skip
def test_adapters_compute_the_recurrence(peer: Any) -> None:
    assert peer.lacks("gdn", ()) == ""
    case, spec = small_case(), subject().spec
    session = peer.open(case)
    error, bound = check.peer(session, case, spec, peer.state_bytes)
    assert 0 < error <= bound
    again, _ = check.peer(session, case, spec, peer.state_bytes)
    assert again == error  # restored
    assert measure.tokens(WallTimer(), session, case, 1).median > 0


@pytest.mark.usefixtures("installed")
def test_a_peer_that_is_wrong_is_noticed() -> None:
    case = small_case()
    session = FusedRecurrent("a", True).open(case)
    right = session.step
    session.step = lambda chosen, token: right(chosen, token) * 1.1  # type: ignore[method-assign]
    error, bound = check.peer(session, case, subject().spec, 4)
    assert error > bound
    session.step = lambda chosen, token: right(chosen, token) * torch.nan  # type: ignore[method-assign]
    assert check.peer(session, case, subject().spec, 4)[0] == float("inf")


def test_reasons() -> None:
    for peer in PEERS:
        assert "cannot be imported" in peer.lacks("gdn", ())
        assert "log_decay" in peer.lacks("gdn", ("log_decay",))
        assert "no kernel" in peer.lacks("nosuch", ())
        assert peer.title


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_named("fla") is PEERS[0]
    with pytest.raises(LeapgenError, match="known: `fla`"):
        peer_named("nosuch")
    with pytest.raises(LeapgenError, match="No module named 'nosuch'"):
        peer_named("nosuch:PEER")
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(PEER=PEERS[1]))
    assert peer_named("mine:PEER") is PEERS[1]


def test_failures_are_exceptions() -> None:
    assert RuntimeError in failures()
    assert all(issubclass(f, Exception) for f in failures())
