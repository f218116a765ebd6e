"""What a run of the tuner gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from leapgen.runtime.host import Shape
from leapgen.schedule.predict import Usage
from leapgen.tune.bench import Configs, Point
from leapgen.tune.candidates import Field


@dataclass(frozen=True)
class Result:
    """The outcome at one point: the best configs, the default's if none is worth a change.

    rule_us   microseconds with the step that the rule for absent devices picks, and the default
              flush; 0 if not known
    """

    point: Point
    configs: Configs
    us: float
    default_us: float
    error: float
    usage: dict[str, Usage | None]
    rule_us: float
    raced: int
    repeats: int


@dataclass
class Outcome:
    """All results, what became of the candidates, and the points that time did not allow."""

    results: list[Result] = field(default_factory=list)
    fields: list[tuple[Shape, Field]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unreached: list[Point] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0
