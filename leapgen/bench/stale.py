"""Committed results whose module has changed since they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from leapgen import pipeline
from leapgen.bench.results import Record, Report, read
from leapgen.diagnostics import LeapgenError


OTHERS = ("*-dram", "host-*", "endtoend*")
"""Results of other kinds: memory counters, the host's costs, whole models."""


def reports(tuning: Path) -> Iterator[tuple[Path, Report]]:
    """Benchmark results under tuning/. Errors: ValueError for a file that cannot be read."""
    for path in sorted(tuning.glob("*/bench/*.json")):
        if not any(fnmatch(path.stem, pattern) for pattern in OTHERS):
            yield path, read(path)


def stale(tuning: Path) -> list[str]:
    """One line for each module of a result that renders to another text now, or no longer does."""
    lines: dict[str, None] = {}
    for path, report in reports(tuning):
        arch, picks = report.environment["arch"], report.environment.get("picks", {})
        for record in report.records:
            if record.module is None:
                continue
            now = _digest(record.spec, arch, record.contender, tuple(sorted(picks.items())))
            if now != record.module.digest:
                lines[_line(path.relative_to(tuning), record, now)] = None
    return list(lines)


def _line(path: Path, record: Record, now: str) -> str:
    assert record.module is not None
    return f"{path}: {record.module.path} was {record.module.digest}, is {now or 'gone'}"


@cache
def _digest(spec: str, arch: str, format: str, picks: tuple[tuple[str, str], ...]) -> str:
    """Of the module's text as it would be rendered; empty if there is no such module."""
    chosen: Mapping[str, str] = dict(picks)
    try:
        return pipeline.compile(spec, arch, chosen, format).source.digest
    except LeapgenError:
        return ""
