"""What the times at a point say: the order of configs, and how good the rule's pick is."""

from __future__ import annotations

from collections.abc import Mapping

from leapgen.runtime.host import key_of
from leapgen.schedule.arch import Device
from leapgen.schedule.plan import Plan
from leapgen.schedule.predict import kernel_us
from leapgen.tune.bench import Config, Configs, launched
from leapgen.tune.candidates import Field, as_planned
from leapgen.tune.measured import Measured

WORTH, PREDICTED = 0.01, 0.32
"""Gain below which the default stays: less is noise, and fewer configs are fewer kernels. Where
times are predictions, it is what the pick of predictions has lost to the default at most on the one
chip where both were run (`rule_us` of the tables of the H200)."""


def field_configs(fields: Mapping[str, Field]) -> tuple[list[Config], list[Config]]:
    """Configs of steps and of flushes; none of the latter where there are no windows."""
    found = {kernel: [c.config for c in f.candidates] for kernel, f in fields.items()}
    return found["step"], found.get("flush", [])


def ranking(measured: Measured, canary: Configs, predicted: bool) -> list[Configs]:
    """Those worth a change from the default, the fastest first; then the default."""
    worth = (1 - (PREDICTED if predicted else WORTH)) * measured.ratio(canary)
    return [*(c for c in measured.ranking() if measured.ratio(c) <= worth), canary]


def rule_ratio(
    measured: Measured,
    canary: Configs,
    fields: Mapping[str, Field],
    plan: Plan,
    device: Device | None,
) -> float:
    """Ratio to the default of the step that the rule for absent devices picks, with the default
    flush; 0 where it has no figures."""
    point = measured.point
    shape = as_planned(point.shape)
    known = {
        key_of(kernel=kernel, config=c.config): c.usage
        for kernel, found in fields.items()
        for c in found.candidates
    }
    if device is None:
        return 0.0

    def us(configs: Configs) -> float:
        total = 0.0
        for kernel, config in launched(configs).items():
            usage = known.get(key_of(kernel=kernel, config=config))
            if usage is None:
                return float("inf")
            total += kernel_us(kernel, config, usage, shape, point.rows, plan, device)
        return total

    tried = [c for c in measured.ranking() if c.get("flush") == canary.get("flush")]
    best = min(tried, key=us, default=None)
    return 0.0 if best is None or us(best) == float("inf") else measured.ratio(best)
