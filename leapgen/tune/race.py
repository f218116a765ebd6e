"""Comparing candidates fairly: interleaved laps, each against a canary of the same moment.

A GPU's clocks drift with heat and with its neighbours by more than candidates differ. So the canary
(the default config) runs before and after every few candidates; a lap counts as its ratio to the
canaries around it, and a stretch in which the canary itself moved is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from leapgen.tune.bench import Configs, Timer, Unfit

STRETCH = 4
"""Candidates between two laps of the canary."""
DRIFT = 0.04
"""How far two canaries around a stretch may lie apart."""
AGAIN = 3
"""How often a stretch is repeated at most; then it counts as it is."""
QUALIFYING, FINAL = 3, 8
"""Laps of every candidate, and further laps of the best."""
FINALISTS = 5


@dataclass
class Entry:
    """A candidate in a race: ratios of its laps to the canary's."""

    configs: Configs
    ratios: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def ratio(self) -> float:
        """Time over the canary's; infinite if it failed or never ran."""
        return median(self.ratios) if self.ratios and not self.failure else float("inf")


@dataclass
class Race:
    """One contest on one timer. enough: says that time is up."""

    timer: Timer
    canary: Configs
    enough: Callable[[], bool]
    canaries: list[float] = field(default_factory=list)
    repeats: int = 0

    def run(self, candidates: Sequence[Configs]) -> list[Entry] | None:
        """All candidates with their ratios, or None if time was up before all had run."""
        entries = [Entry(c) for c in candidates]
        for lap in range(QUALIFYING):
            if not self._round(entries, lap):
                return None
        best = sorted(entries, key=lambda e: e.ratio)[:FINALISTS]
        for lap in range(FINAL):
            if not self._round([e for e in best if not e.failure], lap):
                break
        return entries

    @property
    def canary_us(self) -> float:
        """Microseconds of the canary over the whole race."""
        return median(self.canaries)

    def _round(self, entries: Sequence[Entry], turn: int) -> bool:
        """A lap each, in another order each turn; False if time was up."""
        shift = turn * STRETCH % max(1, len(entries))
        order = [*entries[shift:], *entries[:shift]]
        for start in range(0, len(order), STRETCH):
            if self.enough():
                return False
            self._stretch(order[start : start + STRETCH])
        return True

    def _stretch(self, entries: Sequence[Entry]) -> None:
        for attempt in range(AGAIN):
            before = self.timer.lap(self.canary)
            laps = [self._lap(e) for e in entries]
            after = self.timer.lap(self.canary)
            if abs(before - after) <= DRIFT * min(before, after) or attempt == AGAIN - 1:
                break
            self.repeats += 1
        self.canaries += [before, after]
        for entry, lap in zip(entries, laps, strict=True):
            entry.ratios.append(2 * lap / (before + after))

    def _lap(self, entry: Entry) -> float:
        try:
            return float("inf") if entry.failure else self.timer.lap(entry.configs)
        except Unfit as error:
            entry.failure = str(error)
            return float("inf")
