"""Tables of tuned configs: `tuning/<gpu>/tables/<module>.json`, one record a line.

Written by `leapgen tune`, read when a module is loaded. A record is of one text of the kernels
that it configures on one device; one whose kernels have changed since is named in a warning, once,
and ignored. Where a step closes windows itself, the flush may change.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import TUNED
from leapgen.files import locked, write_atomic
from leapgen.runtime.host import Shape, Tuned, key_of

SCHEMA = 1
Digests = Callable[[tuple[str, ...]], str]
"""Kernels -> the digest of what a module's text says of them (`emit.parts.kernel_digest`)."""
_NAMED: set[tuple[str, str]] = set()
_LOCK = threading.Lock()


class BadTable(LeapgenError):
    """A file that is no table of this version."""


class StaleTable(UserWarning):
    """Records of a table were made for other kernels than the module's, and are ignored."""


@dataclass(frozen=True)
class Record:
    """The best configs of one shape and number of rows.

    K, V, H, HV, P, R   the shape
    rows                rows of a launch
    configs             kernel -> config; kernels that are not named keep their default rule's
    us, default_us      microseconds of one token, step and flush, at these and at default configs
    rule_us             microseconds with the step that the rule of predictions would have chosen,
                        to judge that rule by; 0 if not known
    predicted           True: no device ran it, the figures are of `leapgen.schedule.predict`
    registers, spills   of a thread, kernel -> number; empty where they are not known
    error               largest error against the reference over its bound, of the check that each
                        config passes before it is timed; 0 if predicted
    digest              of the part of the module's text that the kernels of `configs` come from
    device, sms         the driver's name of the device; its multiprocessors
    driver, versions    of the driver; package -> version
    date                YYYY-MM-DD
    """

    K: int
    V: int
    H: int
    HV: int
    P: int
    R: int
    rows: int
    configs: dict[str, dict[str, Any]]
    us: float
    default_us: float
    rule_us: float = 0.0
    predicted: bool = False
    registers: dict[str, int] = field(default_factory=dict)
    spills: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    digest: str = ""
    device: str = ""
    sms: int = 0
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def shape(self) -> Shape:
        """The shape as modules know it."""
        return Shape(self.K, self.V, self.H, self.HV, self.P, self.R)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Those that a token launches at these configs."""
        return tuple(kernel for kernel in TUNED if kernel in self.configs)

    def fresh(self, digests: Digests) -> bool:
        """Whether it was made for these kernels."""
        return self.digest == digests(self.kernels)

    @property
    def key(self) -> str:
        """Identifies what was tuned: a later record with the same key replaces this one."""
        return key_of(
            module=self.digest, device=self.device, shape=vars(self.shape), rows=self.rows
        )

    @property
    def place(self) -> tuple[Any, ...]:
        """What it is the best config for."""
        return self.device, self.shape, self.rows

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it stands in a table."""
        place = (self.K, self.V, self.P, self.R, self.H, self.HV, self.rows)
        return (*place, self.device, self.digest)

    @property
    def tuned(self) -> Tuned:
        """What a module needs of it."""
        return Tuned(self.shape, self.rows, self.configs)


def path_of(folder: Path, gpu: str, stem: str) -> Path:
    """The table of a module (its file's name without `.py`) and a GPU, in a `tuning` folder."""
    return folder / gpu / "tables" / f"{stem}.json"


def read(path: Path) -> tuple[Record, ...]:
    """The records of a table; none if there is no such file. Errors: BadTable."""
    if not path.is_file():
        return ()
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise BadTable(f"{path}: schema {data['schema']}, expected {SCHEMA}")
        known = {f.name for f in fields(Record)}
        return tuple(
            Record(**{name: value for name, value in row.items() if name in known})
            for row in data["records"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadTable(f"{path}: {type(error).__name__}: {error}") from error


def text(stem: str, records: Iterable[Record]) -> str:
    """A table as JSON: sorted, a record a line, so that a change is a readable diff."""
    rows = [json.dumps(asdict(r)) for r in sorted(records, key=lambda r: r.order)]
    body = ",\n".join(f"    {row}" for row in rows)
    head = f'  "schema": {SCHEMA},\n  "module": {json.dumps(stem)},\n'
    inner = f"[\n{body}\n  ]" if rows else "[]"
    return f'{{\n{head}  "records": {inner}\n}}\n'


def merge(path: Path, records: Collection[Record], digests: Digests | None = None) -> None:
    """Put records into a table; others that it has, also those another process has just written,
    stay, but for those of the same place and, as `digests` tells, of the same text, which had
    other kernels. Errors: BadTable."""
    with locked(path.parent):
        places = {record.place for record in records}
        kept = {
            record.key: record
            for record in read(path)
            if digests is None or record.place not in places or not record.fresh(digests)
        }
        kept.update({record.key: record for record in records})
        write_atomic(path, text(path.stem, kept.values()))


def usable(paths: Sequence[Path], digests: Digests, device: str) -> tuple[Record, ...]:
    """Records for kernels of these digests on a device, from the first table that has any.

    A record of another product of the same name's folder counts as well, unless the device has
    records of its own. Names stale records in a warning, once a process. Errors: BadTable.
    """
    for path in paths:
        found = read(path)
        fresh = _latest(record for record in found if record.fresh(digests))
        if stale := sum(not record.fresh(digests) for record in found):
            _warn(path, digests(TUNED), stale, len(found))
        if fresh:
            return tuple(r for r in fresh if r.device == device) or fresh
    return ()


def _latest(records: Iterable[Record]) -> tuple[Record, ...]:
    """One a place: a step alone and a step with its flush may both have been the best there."""
    return tuple({r.place: r for r in sorted(records, key=lambda r: r.date)}.values())


def _warn(path: Path, digest: str, stale: int, of: int) -> None:
    with _LOCK:
        if (str(path), digest) in _NAMED:
            return
        _NAMED.add((str(path), digest))
    message = (
        f"{path}: {stale} of {of} records are stale (made for other kernels than the "
        f"module's, {digest}) and are ignored; `leapgen tune` makes new ones"
    )
    warnings.warn(StaleTable(message), stacklevel=4)
