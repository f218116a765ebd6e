"""FP32 states in a model's cache, updated in place: what a quantized state is compared with.

On a GPU by flash-linear-attention's fused recurrent kernels, with the new state written over the
old one. The library does that itself for one recurrence; for the other its kernel is launched here
as its wrapper launches it, but with one tensor for both states (a program reads its part before
it writes it). Where that fails, its public function is called and the new state copied back.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leapgen.integrations.state import Held
from leapgen.runtime.host import Input

Call = Callable[..., torch.Tensor]
"""(state [rows, HV, V, K], q, k, v, g, beta [rows, 1, heads, ...]) -> [rows, 1, HV, V]."""

_FAILURES = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError)


class Fp32State(Held):
    """All rows of one layer: row i of a batch is slot i.

    tensor  FP32 [rows, HV, V, K], updated in place

    Key heads are taken as the models of this version give them, repeated for the value heads: a
    copy of every other one would be this arm's alone.
    """

    def __init__(self, call: Call, tensor: torch.Tensor, inputs: Sequence[Input]) -> None:
        self.call, self.tensor, self.inputs = call, tensor, inputs
        self.H = self.HV = tensor.shape[1]

    def step(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Held`."""
        given = {i.name: x[:, None].contiguous() for i, x in zip(self.inputs, inputs, strict=True)}
        return self.call(self.tensor, *(given[n] for n in ("q", "k", "v", "g", "beta")))[:, 0]

    def materialize(self) -> torch.Tensor:
        """See `Held`."""
        return self.tensor.mT.contiguous()


def torch_call(function: Callable[..., Any]) -> Call:
    """By a model's own single-token function, of states [rows, HV, K, V]; for any device."""

    def call(state: torch.Tensor, q: Any, k: Any, *rest: Any) -> torch.Tensor:
        v, g, beta = rest
        group = v.shape[2] // q.shape[2]
        q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
        out, new = function(
            q,
            k,
            v,
            g=g,
            beta=beta,
            initial_state=state.mT,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        state.copy_(new.mT)
        result: torch.Tensor = out
        return result

    return call


def fla_call(recurrence: str) -> tuple[Call, str]:
    """flash-linear-attention's kernel of a recurrence and what is done with the new state. Checked
    against the public function on the present GPU. Errors: ImportError without the package."""
    public = _public(recurrence)
    make = {"gdn": _delta_in_place, "kda": _kimi_in_place}[recurrence]
    try:
        call = make()
        gap = _difference(call, public, recurrence)
    except _FAILURES as error:
        return public, f"copied back: {type(error).__name__}: {str(error)[:200]}"
    if not gap < 1e-3:
        return public, f"copied back: in place it differs by {gap:.1e}"
    return call, f"written in place (differs by {gap:.1e} from the public function)"


def _public(recurrence: str) -> Call:
    name = {"gdn": "gated_delta_rule", "kda": "kda"}[recurrence]
    module = importlib.import_module(f"fla.ops.{name}")
    function = getattr(module, f"fused_recurrent_{name}")

    def call(state: torch.Tensor, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
        out, new = function(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            state_v_first=True,
        )
        state.copy_(new)
        result: torch.Tensor = out
        return result

    return call


def _delta_in_place() -> Call:
    module = importlib.import_module("fla.ops.gated_delta_rule.fused_recurrent")
    kernel = module.fused_recurrent_gated_delta_rule_fwd_kernel

    def call(state: torch.Tensor, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
        rows, _, H, K = k.shape
        HV, V = v.shape[2:]
        out = torch.empty_like(v)
        block = min(8, 1 << (V - 1).bit_length())
        none = dict.fromkeys(("gk", "gv", "A_log", "dt_bias", "cu_seqlens"))
        flags = {
            "IS_BETA_HEADWISE": True,
            "USE_QK_L2NORM_IN_KERNEL": True,
            "APPLY_BETA_SIGMOID": False,
            "ALLOW_NEG_EIGVAL": False,
            "STATE_V_FIRST": True,
        }
        kernel[(-(-V // block) * rows * HV,)](
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            o=out,
            h0=state,
            ht=state,
            scale=K**-0.5,
            T=1,
            H=H,
            HV=HV,
            K=K,
            V=V,
            BK=1 << (K - 1).bit_length(),
            BV=block,
            num_warps=1,
            num_stages=3,
            **none,
            **flags,
        )
        return out

    return call


def _kimi_in_place() -> Call:
    function = importlib.import_module("fla.ops.kda.fused_recurrent").fused_recurrent_kda_fwd
    rows: dict[tuple[int, torch.device], torch.Tensor] = {}

    def call(state: torch.Tensor, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
        key = (state.shape[0], state.device)
        if key not in rows:
            rows[key] = torch.arange(key[0], dtype=torch.int32, device=key[1])
        out: torch.Tensor = function(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=state,
            output_final_state=True,
            inplace_final_state=True,
            state_v_first=True,
            ssm_state_indices=rows[key],
            use_qk_l2norm_in_kernel=True,
        )[0]
        return out

    return call


def _difference(call: Call, public: Call, recurrence: str) -> float:
    """Largest, of outputs and states after three tokens, over their largest value."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device="cuda").to(dtype)

    one = draw(3, 4, 128, 128, dtype=torch.float32)
    two, worst = one.clone(), 0.0
    axes = (128,) if recurrence == "kda" else ()
    heads = 4 if recurrence == "kda" else 2
    for _ in range(3):
        q, k, v = draw(3, 1, heads, 128), draw(3, 1, heads, 128), draw(3, 1, 4, 128)
        g = -draw(3, 1, 4, *axes, dtype=torch.float32).abs()
        given = (q, k, v, g, draw(3, 1, 4).sigmoid())
        for a, b in ((call(one, *given), public(two, *given)), (one, two)):
            worst = max(worst, float((a.float() - b.float()).abs().max() / b.float().abs().max()))
    return worst
