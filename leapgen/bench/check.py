"""Whether a contender computes what it should: a few rows of a case against the oracles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leapgen.bench.ours import Ours
from leapgen.integrations.peers import Case, Session
from leapgen.oracle import in_place, tolerance
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.windowed import WindowModel
from leapgen.schedule.buffers import Shape
from leapgen.spec.model import Spec

Array = npt.NDArray[Any]

STEP_BOUND = {4: 0.01, 2: 0.04, 1: 0.4}
"""Allowed difference from float64 over the peak, for kernels that store the state at every token,
by bytes of its elements: a BF16 output alone is half a percent off."""


def chosen_rows(rows: int) -> list[int]:
    """The first and the last."""
    return sorted({0, rows - 1})


def ours(session: Ours) -> tuple[float, float]:
    """(error, bound) of all tokens of a case against the NumPy model of the module's own format.

    Before each token the model takes over the module's pool, so that what a format loses is not
    held against the kernel that loses it: outputs must agree within the noise of FP32 and of the
    records' and the output's types, and the state behind the token must be the float64 one that
    follows from the state before it, within half a code where it was stored. The output's error is
    given unless the state is wrong; then it is the error over its bound of one. An infinite error
    is an output that is not finite, in any row.
    """
    contender, case = session.contender, session.case
    rows = chosen_rows(case.rows)
    places = np.arange(len(rows))
    session.restore()
    model = in_place.model_of(contender.spec, contender.plan, _shape(session), len(rows))
    _adopt(model, session, rows)
    bound = _bounds(session, contender.spec.output.dtype)["output"]
    noise = _bounds(session, "fp32")["state"]
    worst, stored = 0.0, 0.0
    for token in range(case.tokens):
        before, inputs = model.state(places), _inputs(contender.spec, case, token, rows)
        out = session.step(0, token)
        worst = max(worst, _error(out, rows, model.step(places, inputs)))
        _adopt(model, session, rows)
        truth, _, _ = Stepwise(contender.spec).step(before, inputs)
        stored = max(stored, _state_share(model, places, truth, noise))
    session.restore()
    return (worst, bound) if stored <= 1.0 else (stored, 1.0)


def _adopt(model: WindowModel, session: Ours, rows: list[int]) -> None:
    """Puts what the module's pool holds of these rows into the model's slots."""
    data = session.module.export(session.pool, session.slots[0][rows].contiguous())
    for buffer in model.plan.buffers:
        model.pool[buffer.name][...] = _bits(data[buffer.name])


def _state_share(model: WindowModel, slots: Array, truth: Array, noise: float) -> float:
    """Largest error of a stored state over what its rounding and FP32 may leave."""
    found = model.state(slots)
    allowed = noise * np.abs(truth).max(axis=(-2, -1), keepdims=True)
    half = tolerance.half_steps(model.plan.format, model.pool.stored(slots).codes)
    if "cursor" in model.pool:
        closed = model.pool["cursor"][slots] == 0
        half = np.where(closed[..., None, None], half, 0)
    error = np.abs(found - truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / (allowed + half))
    return float(np.where(np.isnan(share), np.inf, share).max())


def _shape(session: Ours) -> Shape:
    """As the plan counts."""
    return session.contender.shape(session.case.shape.H, session.case.shape.HV)


def _bounds(session: Ours, output: str) -> dict[str, float]:
    """In lockstep: no flush lies between the two sides."""
    plan, spec = session.contender.plan, session.contender.spec
    shape = session.pool.shape
    return tolerance.bounds(
        plan.format,
        plan.records,
        shape.P,
        output,
        K=shape.K,
        compensators=shape.R,
        substeps=plan.records_per_token,
        combined=tolerance.combined_in(spec),
    )


def peer(session: Session, case: Case, spec: Spec, state_bytes: int) -> tuple[float, float]:
    """(error, bound) of all tokens of a case against the spec in float64."""
    rows = chosen_rows(case.rows)
    session.restore()
    states = case.states[0][rows].transpose(-1, -2).double().cpu().numpy()
    interpreter, worst = Stepwise(spec), 0.0
    for token in range(case.tokens):
        out = session.step(0, token)
        states, expected, _ = interpreter.step(states, _inputs(spec, case, token, rows))
        worst = max(worst, _error(out, rows, expected))
    session.restore()
    return worst, STEP_BOUND[state_bytes]


def _error(out: torch.Tensor, rows: list[int], expected: Array) -> float:
    """Of the chosen rows; infinite if any row is not finite."""
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    found = out.float().cpu().numpy()
    found = found.reshape(found.shape[0], *expected.shape[1:])[rows]
    return float(np.max(tolerance.distance(found, expected)))


def _inputs(spec: Spec, case: Case, token: int, rows: list[int]) -> Mapping[str, Array]:
    values = case.inputs[token]
    return {
        x.name: (values[x.name] if x.constant else values[x.name][rows]).float().cpu().numpy()
        for x in spec.inputs
    }


def _bits(tensor: torch.Tensor) -> Array:
    """As the oracle stores it: BF16 as its 16 bits."""
    tensor = tensor.cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
