"""Whether a contender computes what it should: a few rows of a case against the oracles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leapgen.bench.ours import Ours
from leapgen.integrations.peers import Case, Session
from leapgen.oracle import tolerance
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.windowed import WindowModel
from leapgen.spec.model import Spec

Array = npt.NDArray[Any]

STEP_BOUND = {4: 0.01, 2: 0.04, 1: 0.4}
"""Allowed difference from float64 over the peak, for kernels that store the state at every token,
by bytes of its elements: a BF16 output alone is half a percent off."""


def chosen_rows(rows: int) -> list[int]:
    """The first and the last."""
    return sorted({0, rows - 1})


def ours(session: Ours) -> tuple[float, float]:
    """(error, bound) of all tokens of a case against the NumPy window model, which starts from the
    module's own pool. Bounds count the flushes of both sides; an infinite error is an output that
    is not finite, in any row. Formats without records are compared as peers are."""
    contender, case = session.contender, session.case
    if not contender.records:
        return peer(session, case, contender.spec, contender.plan.format.dtype.bytes)
    rows = chosen_rows(case.rows)
    session.restore()
    shape = contender.shape(case.shape.H, case.shape.HV)
    model = WindowModel(contender.spec, contender.plan, shape, len(rows))
    data = session.module.export(session.pool, session.slots[0][rows].contiguous())
    for buffer in contender.plan.buffers:
        model.pool[buffer.name][...] = _bits(data[buffer.name])
    worst, allowed = 0.0, 1.0
    for token in range(case.tokens):
        out = session.step(0, token)
        expected = model.step(np.arange(len(rows)), _inputs(contender.spec, case, token, rows))
        error = _error(out, rows, expected)
        bound = _bound(session, token)
        if error / bound >= worst / allowed:
            worst, allowed = error, bound
    session.restore()
    return worst, allowed


def _bound(session: Ours, token: int) -> float:
    plan, spec = session.contender.plan, session.contender.spec
    shape = session.pool.shape
    bounds = tolerance.bounds(
        plan.format,
        plan.records,
        shape.P,
        spec.output.dtype,
        K=shape.K,
        compensators=shape.R,
        substeps=plan.records_per_token,
        flushes=2 * (1 + token // shape.P),
        walked=True,
    )
    return bounds["output"]


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
