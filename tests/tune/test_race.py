"""Races: what interleaving and the canary are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from leapgen.runtime import tables
from leapgen.tune import ranking
from leapgen.tune.bench import Configs, Unfit
from leapgen.tune.race import AGAIN, FINAL, QUALIFYING, Race

ROOT = Path(__file__).resolve().parents[2]
CANARY = {"step": {"n": 0}}


@dataclass
class Scripted:
    us: Callable[[int, int], float]
    laps: list[int] = field(default_factory=list)

    def lap(self, configs: Configs) -> float:
        n = configs["step"]["n"]
        self.laps.append(n)
        return self.us(n, len(self.laps))


def candidates(count: int) -> list[Configs]:
    return [{"step": {"n": n}} for n in range(count)]


def test_ratios_are_those_of_the_moment() -> None:
    """Clocks fall by a tenth of a percent with every lap; candidate n is n percent slower."""
    timer = Scripted(lambda n, lap: (100 + n) * (1 + lap / 1000))
    entries = Race(timer, CANARY, lambda: False).run(candidates(6))
    assert entries is not None
    for n, entry in enumerate(entries):
        assert abs(entry.ratio - (1 + n / 100)) < 0.004


def test_a_stretch_in_which_the_canary_moved_is_run_again() -> None:
    spike = {2, 3, 4, 5, 6}  # a neighbour took the memory for a while, the last canary included
    timer = Scripted(lambda n, lap: 100 * (1.5 if lap in spike else 1.0))
    race = Race(timer, CANARY, lambda: False)
    entries = race.run(candidates(4))
    assert race.repeats == 1
    assert entries is not None
    assert all(e.ratio == 1.0 for e in entries)
    restless = Scripted(lambda n, lap: 100.0 * (1 + lap % 2))
    race = Race(restless, CANARY, lambda: False)
    assert race.run(candidates(2)) is not None
    assert race.repeats == (AGAIN - 1) * (QUALIFYING + FINAL)


def test_only_the_best_run_on() -> None:
    timer = Scripted(lambda n, lap: 100 + n)
    entries = Race(timer, CANARY, lambda: False).run(candidates(20))
    assert entries is not None
    assert [len(e.ratios) for e in entries] == [QUALIFYING + FINAL] * 5 + [QUALIFYING] * 15


def test_time_up_before_all_have_run() -> None:
    timer = Scripted(lambda n, lap: 100)
    assert Race(timer, CANARY, lambda: len(timer.laps) > 8).run(candidates(20)) is None


def test_a_candidate_that_fails_drops_out() -> None:
    def us(n: int, lap: int) -> float:
        if n == 2:
            raise Unfit("does not run")
        return 100.0

    entries = Race(Scripted(us), CANARY, lambda: False).run(candidates(4))
    assert entries is not None
    assert entries[2].failure == "does not run"
    assert entries[2].ratio == float("inf")
    assert entries[3].ratio == 1.0


def test_predictions_are_trusted_as_far_as_they_were_right() -> None:
    """In every committed record of a device, the pick of predictions loses no more."""
    lost = [
        record.rule_us / record.default_us - 1
        for path in (ROOT / "tuning").glob("*/tables/*.json")
        for record in tables.read(path)
        if record.rule_us and not record.predicted
    ]
    assert len(lost) > 50
    assert 0.1 < max(lost) <= ranking.PREDICTED
