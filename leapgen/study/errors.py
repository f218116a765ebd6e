"""State and output error of every format on the same tokens: one record a spec, seed and format.

Every format sees the same inputs (teacher forcing), so ratios between formats are what to read. A
record names what it was measured of; a file of records is completed, not measured anew: what is
missing, or whose format or window has changed since, is run.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from leapgen.diagnostics import LeapgenError
from leapgen.files import write_atomic
from leapgen.formats.base import Format
from leapgen.formats.table import NAMED, format_spelled
from leapgen.oracle.drift import Method, drift
from leapgen.oracle.streams import Heads
from leapgen.report.progress import Step
from leapgen.report.text import table
from leapgen.schedule.buffers import state_bytes
from leapgen.spec.model import Spec

HEADS = 4
"""Key and value heads of a stream: one a rate of decay."""


@dataclass(frozen=True)
class Record:
    """Errors of one format: squared error over squared size, one entry a head.

    made_of   what the format was when it was measured, with window and records
    bytes     of one head's stored state
    """

    spec: str
    seed: int
    tokens: int
    format: str
    made_of: str
    bytes: int
    state: tuple[float, ...]
    output: tuple[float, ...]

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        """What makes two records the same measurement."""
        return (self.spec, self.seed, self.tokens, self.format, self.made_of)


def method_of(spec: Spec, format: Format) -> Method:
    """A format as the spec would run it: its window and records where it has any."""
    state = spec.state
    window, records = (state.window, state.records) if format.windowed else (1, "fp32")
    return Method(format.name, format, window, records, format.compensators)


def made_of(method: Method) -> str:
    """Everything that a record's errors depend on beside its inputs."""
    how = f"window {method.window}, records {method.records}"
    return f"{method.format.describe()}; {how if method.format.windowed else 'every step'}"


def measure(
    specs: tuple[Spec, ...],
    seeds: Iterable[int],
    formats: tuple[str, ...],
    tokens: int,
    known: tuple[Record, ...],
    step: Step,
) -> tuple[Record, ...]:
    """Known records that were asked for, and the others measured, in the order asked for.

    Errors: LeapgenError for an unknown format or too few tokens.
    """
    found = {record.key: record for record in known}
    wanted = []
    for spec in specs:
        methods = [method_of(spec, format_spelled(name)) for name in formats]
        for seed in seeds:
            keys = [(spec.name, seed, tokens, m.name, made_of(m)) for m in methods]
            missing = tuple(m for m, key in zip(methods, keys, strict=True) if key not in found)
            if missing:
                step(f"{spec.name}, seed {seed}: {len(missing)} formats, {tokens:,} tokens")
                found |= {r.key: r for r in _run(spec, seed, missing, tokens)}
            wanted += keys
    return tuple(found[key] for key in wanted)


def _run(spec: Spec, seed: int, methods: tuple[Method, ...], tokens: int) -> list[Record]:
    heads = Heads(HEADS, HEADS, spec.K, spec.V)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # some diverge
            lines = drift(spec, methods, tokens, heads, seed).lines
    except ValueError as error:
        raise LeapgenError(str(error)) from error
    return [
        Record(
            spec=spec.name,
            seed=seed,
            tokens=tokens,
            format=line.method.name,
            made_of=made_of(line.method),
            bytes=state_bytes(line.method.format, spec.K, spec.V),
            state=_digits(line.state),
            output=_digits(line.output),
        )
        for line in lines
    ]


def _digits(errors: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{error:.3g}") for error in errors)


# ---- what is read from records


def mean(records: Iterable[Record], what: str) -> float:
    """Geometric mean of `state` or `output` errors over heads and records."""
    errors = np.array([getattr(record, what) for record in records], np.float64)
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(errors).mean()))


def of(records: Iterable[Record], format: str, spec: str | None = None) -> list[Record]:
    """The records of a format, of one spec or of all."""
    return [r for r in records if r.format == format and spec in (None, r.spec)]


def ratio(records: tuple[Record, ...], worse: str, better: str, what: str) -> float:
    """How many times lower the error of `better` is, the geometric mean over everything."""
    return mean(of(records, worse), what) / mean(of(records, better), what)


def text(records: tuple[Record, ...]) -> str:
    """One row a format: bytes an element, and the errors of each spec."""
    if not records:
        return "no records"
    specs = list(dict.fromkeys(r.spec for r in records))
    columns = ("format", "bytes", *(f"{s} {what}" for s in specs for what in ("state", "output")))
    rows = []
    for name in dict.fromkeys(r.format for r in records):
        cells = [f"{mean(of(records, name, s), w):.1e}" for s in specs for w in ("state", "output")]
        rows.append([name, str(of(records, name)[0].bytes), *cells])
    seeds, tokens = len({r.seed for r in records}), sorted({r.tokens for r in records})
    head = (
        f"squared error over squared size over the last half of {tokens[-1]:,} tokens: geometric "
        f"mean of {len(records[0].state)} heads and {seeds} seeds"
    )
    return f"{head}\n{table(columns, rows)}"


# ---- files


def merged(known: tuple[Record, ...], found: tuple[Record, ...]) -> tuple[Record, ...]:
    """All records, those found in place of known ones of the same spec, seed and format; as many
    tokens as were found. In the order of the table of formats, others behind."""
    order = {name: i for i, name in enumerate(NAMED)}
    tokens = found[0].tokens
    kept = {(r.spec, r.seed, r.format): r for r in (*known, *found) if r.tokens == tokens}
    place = {r.format: order.get(r.format, len(order)) for r in kept.values()}
    return tuple(sorted(kept.values(), key=lambda r: (r.spec, r.seed, place[r.format])))


def read(path: Path) -> tuple[Record, ...]:
    """The records of a file; none where there is no such file."""
    if not path.is_file():
        return ()
    data = json.loads(path.read_text())
    formats = {row["name"]: row for row in data["formats"]}
    return tuple(
        Record(
            spec=spec,
            seed=seed,
            tokens=data["tokens"],
            format=name,
            made_of=formats[name]["made_of"],
            bytes=formats[name]["bytes"],
            state=tuple(state),
            output=tuple(output),
        )
        for spec, seed, name, state, output in data["records"]
    )


def write(path: Path, command: str, records: tuple[Record, ...]) -> None:
    """Keep records of one number of tokens, one a line, with what measured them."""
    about: dict[str, Any] = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "tokens": records[0].tokens,
    }
    named = {r.format: {"name": r.format, "bytes": r.bytes, "made_of": r.made_of} for r in records}
    rows = [[r.spec, r.seed, r.format, r.state, r.output] for r in records]
    formats, lines = (",\n".join(map(json.dumps, x)) for x in (named.values(), rows))
    head = json.dumps(about)[:-1]
    write_atomic(path, f'{head}, "formats": [\n{formats}\n], "records": [\n{lines}\n]}}\n')
