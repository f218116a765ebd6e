"""What a benchmark found, as data: one record a contender and configuration, and its JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leapgen.bench.timing import Ceilings, Timing
from leapgen.files import write_atomic

SCHEMA = 1
MOSTLY_READING = 0.25
"""Share of written bytes up to which time is held against the read-only ceiling."""


@dataclass(frozen=True)
class Position:
    """Mean and worst token over the places in a window, in microseconds.

    at   "mixed": rows at different cursors; "equal": all rows at one cursor, so that the last
         token of a window flushes them all
    """

    at: str
    mean: float
    worst: float


@dataclass(frozen=True)
class Module:
    """What was measured: path under generated/, digests of its text and its plan, configs."""

    path: str
    digest: str
    plan: str
    configs: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Record:
    """One contender at one configuration. Times are microseconds per token (a launch of all rows).

    contender    format of ours, or a peer's name
    role         subject, format or peer
    sets         sets of states that launches visit in turn
    tokens       consecutive tokens of one sample
    step         of the token, the step alone; flush: the flush kernel alone, where there is one
    read, write  counted bytes of one token, all rows and heads, as the least that memory must move
    step_bytes   the same of the step alone
    error        largest difference to the reference over its peak; bound: what is allowed
    """

    spec: str
    contender: str
    title: str
    role: str
    rows: int
    H: int
    HV: int
    K: int
    V: int
    window: int
    compensators: int
    sets: int
    tokens: int
    token: Timing
    read: float
    write: float
    step: Timing | None = None
    flush: Timing | None = None
    step_bytes: float = 0.0
    positions: tuple[Position, ...] = ()
    error: float = 0.0
    bound: float = 0.0
    module: Module | None = None

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The configuration."""
        return (self.spec, self.H, self.HV, self.rows)

    @property
    def bytes(self) -> float:
        """Counted bytes of a token."""
        return self.read + self.write

    @property
    def rate(self) -> float:
        """Counted bytes per second."""
        return self.bytes / self.token.median * 1e6

    @property
    def exposed(self) -> float | None:
        """What flushes add to a token beyond its step, as a share of the step."""
        return None if self.step is None else self.token.median / self.step.median - 1

    def ceiling(self, ceilings: Ceilings) -> float:
        """The one that its mix of reads and writes is held against."""
        mostly_reading = self.write <= MOSTLY_READING * self.bytes
        return ceilings.read if mostly_reading else ceilings.in_place

    @property
    def ok(self) -> bool:
        """Whether it computed what it should."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Operation:
    """One of the rarer calls, over all rows. time: microseconds; bytes: counted."""

    spec: str
    contender: str
    name: str
    rows: int
    H: int
    HV: int
    time: Timing
    bytes: float


@dataclass(frozen=True)
class Absent:
    """A contender that was asked for and did not take part, and why."""

    spec: str
    contender: str
    reason: str


@dataclass
class Report:
    """A whole run. environment: device, driver, versions, date, command."""

    environment: dict[str, Any]
    ceilings: Ceilings
    records: list[Record] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    complete: bool = False

    @property
    def ok(self) -> bool:
        """Whether something was measured and all of it was right."""
        return bool(self.records) and all(r.ok for r in self.records)

    def subject(self, record: Record) -> Record | None:
        """What is being compared at a record's configuration."""
        for other in self.records:
            if other.role == "subject" and other.key == record.key:
                return other
        return None

    def data(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "schema": SCHEMA,
            "complete": self.complete,
            "environment": self.environment,
            "ceilings": asdict(self.ceilings),
            "records": [asdict(r) for r in self.records],
            "operations": [asdict(o) for o in self.operations],
            "absent": [asdict(a) for a in self.absent],
        }

    def save(self, path: Path) -> None:
        """Writes the JSON, one record a line, numbers with five digits."""
        head = {k: v for k, v in self.data().items() if not isinstance(v, list)}
        parts = [f"  {json.dumps(k)}: {json.dumps(_short(v))}" for k, v in head.items()]
        for name in ("records", "operations", "absent"):
            rows = ",\n".join(f"    {json.dumps(_short(x))}" for x in self.data()[name])
            parts.append(f'  "{name}": [\n{rows}\n  ]' if rows else f'  "{name}": []')
        write_atomic(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _short(value: Any) -> Any:
    """Floats with five significant digits, wherever they stand."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_short(v) for v in value]
    return value


def read(path: Path) -> Report:
    """A report from its JSON. Errors: ValueError for another schema or fields that are missing."""
    data = json.loads(path.read_text())
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{path}: expected schema {SCHEMA}, found {data.get('schema')}")
    try:
        return Report(
            data["environment"],
            Ceilings(**data["ceilings"]),
            [_record(r) for r in data["records"]],
            [Operation(**{**o, "time": Timing(**o["time"])}) for o in data["operations"]],
            [Absent(**a) for a in data["absent"]],
            data["complete"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _record(data: dict[str, Any]) -> Record:
    nested: dict[str, Any] = {
        name: None if data[name] is None else Timing(**data[name])
        for name in ("token", "step", "flush")
    }
    nested["positions"] = tuple(Position(**p) for p in data["positions"])
    nested["module"] = None if data["module"] is None else Module(**data["module"])
    return Record(**{**data, **nested})
