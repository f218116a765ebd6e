"""Checks of a verification: what was measured, what was allowed, over how many comparisons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from leapgen.report.text import scientific


@dataclass
class Check:
    """One property. `measured` and `bound` are those of the comparison nearest to failing.

    count   comparisons made
    where   the shape or place of the worst one
    least   the bound is one from below
    """

    name: str
    measured: float = 0.0
    bound: float = 0.0
    count: int = 0
    ok: bool = True
    where: str = ""
    least: bool = False

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of the printed table."""
        state = "ok" if self.ok else "FAILED"
        if self.least:
            numbers = (f"{self.measured:.3g}", f">= {self.bound:.3g}")
        else:
            numbers = (scientific(self.measured), f"<= {scientific(self.bound)}")
        return (self.name, *numbers, f"{self.count:,}", state)


ROW = ("check", "measured", "bound", "comparisons", "")


@dataclass
class Ledger:
    """Collects comparisons under the names of their checks, in order of first appearance."""

    checks: dict[str, Check] = field(default_factory=dict)

    def compare(self, name: str, measured: Any, bound: Any, where: str = "") -> None:
        """Notes that each `measured` must not exceed its `bound` (arrays or numbers)."""
        errors, bounds = np.broadcast_arrays(np.asarray(measured, float), np.asarray(bound, float))
        if not errors.size:
            return
        check = self.checks.setdefault(name, Check(name))
        finite = np.where(np.isfinite(errors), errors, np.inf).ravel()
        ratio = finite / np.maximum(bounds.ravel(), 1e-300)
        worst = int(ratio.argmax())
        first = check.count == 0
        if first or ratio[worst] > check.measured / max(check.bound, 1e-300):
            check.measured, check.bound = float(finite[worst]), float(bounds.ravel()[worst])
            check.where = where
        check.count += errors.size
        check.ok = check.ok and bool((finite <= bounds.ravel()).all())

    def equal(self, name: str, differences: int, of: int = 1, where: str = "") -> None:
        """Notes that `of` things were compared for equality and `differences` of them differ."""
        check = self.checks.setdefault(name, Check(name))
        check.measured += differences
        check.count += of
        if differences:
            check.ok, check.where = False, where

    def at_least(self, name: str, measured: float, bound: float) -> None:
        """Notes that a figure must reach a bound from below."""
        self.checks[name] = Check(name, measured, bound, 1, measured >= bound, least=True)

    @property
    def ok(self) -> bool:
        """Whether no check failed. Without any check there is nothing to be pleased with."""
        return bool(self.checks) and all(c.ok for c in self.checks.values())

    def data(self) -> list[dict[str, Any]]:
        """One dict a check."""
        return [asdict(c) for c in self.checks.values()]
