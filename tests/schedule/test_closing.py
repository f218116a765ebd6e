"""Traffic of steps that close windows: which plans have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.schedule import traffic
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import Plan, PlanError, make_plan
from leapgen.spec.loader import load

SPECS = Path(__file__).resolve().parents[2] / "specs"


def plan_of(name: str, format: str | None = None) -> Plan:
    spec = load(SPECS / f"{name}.yaml", state={"format": format})
    return make_plan(derive(lower(spec)), spec.state, ARCHES["sm90"])


def test_only_a_windowed_step_closes_windows() -> None:
    plan = plan_of("gdn")
    with pytest.raises(PlanError, match="only a step of a windowed plan"):
        traffic.launch(plan, plan.shape(16, 24, 2, 4), "flush", 16, fused=True)
    lone = plan_of("gdn", format="fp32-step")
    shape = lone.shape(16, 24, 2, 4)
    with pytest.raises(PlanError, match="only a step of a windowed plan"):
        traffic.launch(lone, shape, "step", fused=True)
    assert traffic.token_mean(lone, shape, fused=True) == traffic.step_mean(lone, shape)
