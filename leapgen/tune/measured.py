"""Times at one point: what earlier runs have noted, and what races add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leapgen.tune.bench import Config, Configs, Lost, Point
from leapgen.tune.journal import Journal
from leapgen.tune.race import Race

INFINITE = float("inf")


@dataclass
class Measured:
    """Ratios to the default of all candidates at one point, earlier runs' included.

    canary  the default configs: what is noted against others is of no use, so keys name them
    """

    journal: Journal
    point: Point
    canary: Configs
    ratios: list[tuple[Configs, float]] = field(default_factory=list)
    canary_us: float = 0.0
    repeats: int = 0

    def ratio(self, configs: Configs) -> float:
        """Time over the canary's; infinite for one that failed or has not run."""
        return next((r for c, r in self.ratios if c == configs), INFINITE)

    def ranking(self) -> list[Configs]:
        """Those that ran, the fastest first."""
        ran = [(r, i) for i, (_, r) in enumerate(self.ratios) if r < INFINITE]
        return [self.ratios[i][0] for _, i in sorted(ran)]

    def pairs(
        self,
        race: Race | None,
        steps: Sequence[Config],
        flushes: Sequence[Config],
    ) -> bool:
        """Steps with the default flush, then flushes with the best step that needs one; False if
        time was up first. Without a race: what earlier ones have noted."""
        if not self.all(race, [{**self.canary, "step": s} for s in steps]):
            return False
        if not flushes:
            return True
        separate = [c for c in self.ranking() if not c["step"].get("fused")]
        return not separate or self.all(race, [{**separate[0], "flush": f} for f in flushes])

    def all(self, race: Race | None, candidates: Sequence[Configs]) -> bool:
        """Measures those that are new, and notes them; False if time was up first."""
        where: dict[str, Any] = {
            "what": "time",
            "shape": vars(self.point.shape),
            "rows": self.point.rows,
            "canary": self.canary,
        }
        new: list[Configs] = []
        for configs in candidates:
            if configs in new or any(configs == c for c, _ in self.ratios):
                continue
            known = self.journal.get(**where, configs=configs)
            if known is None:
                new.append(configs)
                continue
            self.ratios.append((configs, INFINITE if known["failure"] else known["ratio"]))
            self.canary_us = self.canary_us or known["canary_us"]
        if not new:
            return True
        if race is None:
            return False
        try:
            entries = race.run(new)
        except Lost as error:
            note = {"ratio": None, "canary_us": 0.0, "laps": 0, "failure": error.reason}
            self.journal.put(note, **where, configs=error.configs)
            raise
        if entries is None:
            return False
        self.canary_us, self.repeats = race.canary_us, race.repeats
        for entry in entries:
            self.ratios.append((entry.configs, entry.ratio))
            note = {
                "ratio": None if entry.failure else entry.ratio,
                "canary_us": race.canary_us,
                "laps": len(entry.ratios),
                "failure": entry.failure,
            }
            self.journal.put(note, **where, configs=entry.configs)
        return True
