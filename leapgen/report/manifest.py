"""MANIFEST.json of a folder of generated modules: what lies there, and what else would be the same.

modules    path -> digest of a file that lies in the folder, with the spec, picks, format and arch
           that gave it
digests    path -> digest of a module that is not kept as a file
steps      path -> digest of the step, its default configs included, that was compiled at all the
           module's shapes; none where it has changed since
resources  path -> a record a kernel and shape, as measured by `build --compile`, each with the
           digest of the part of the module's text that the kernel comes from; a list whose entries
           `columns` names
nvcc       version of nvcc that measured them; one that another measured ends with that one's
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from leapgen.emit.parts import kernel_digest
from leapgen.report.doctor import version
from leapgen.report.usage import Key, Usage

NAME = "MANIFEST.json"
SCHEMA = 3
COLUMNS = tuple(f.name for f in fields(Usage) if f.name not in ("path", "models", "nvcc"))


@dataclass
class Manifest:
    """The four tables, and the TileLang version that resources were measured with. Each record of
    a GPU's kernel has its nvcc here; on disk, what most have in common stands once."""

    tilelang: str = ""
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    resources: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)

    def forget_all_but(self, paths: set[str], archs: tuple[str, ...]) -> None:
        """Drops entries of modules of these archs that are no longer made."""
        for entries in (self.modules, self.digests, self.resources, self.steps):
            for path in [p for p in entries if p.split("/")[0] in archs and p not in paths]:
                del entries[path]

    def renew(self, path: str, text: str, compiled: bool = False) -> None:
        """Drops records of kernels that a module of this text does not build any more, and what is
        known of its step if that is another now. compiled: it was just now, at all shapes."""
        if path not in self.resources:
            return
        rows = self.resources[path]
        self.resources[path] = [r for r in rows if f"def build_{r['kernel']}(" in text]
        step = kernel_digest(text, ("step",), configs=True)
        if compiled:
            self.steps[path] = step
        elif self.steps.get(path) != step:
            self.steps.pop(path, None)

    def known(self, nvcc: str = "") -> dict[Key, Usage]:
        """Records of this version of TileLang; what another version made says nothing. nvcc: of
        this version of it too, if one is named."""
        if self.tilelang != version("tilelang"):
            return {}
        rows = [
            Usage(path=path, models=(), **record)
            for path, records in self.resources.items()
            for record in records
        ]
        return {u.key: u for u in rows if not nvcc or u.nvcc == nvcc or not u.registers}

    def measured(self, usage: Iterable[Usage]) -> None:
        """Notes what kernels need; replaces all entries of these kernels."""
        if self.tilelang != version("tilelang"):
            self.tilelang, self.resources = version("tilelang"), {}
        fresh: dict[str, list[dict[str, Any]]] = {}
        for u in usage:
            record = {k: v for k, v in asdict(u).items() if k not in ("path", "models")}
            fresh.setdefault(u.path, []).append(record)
        for path, records in fresh.items():
            kernels = {r["kernel"] for r in records}
            kept = [r for r in self.resources.get(path, ()) if r["kernel"] not in kernels]
            self.resources[path] = [*kept, *records]

    def text(self) -> str:
        """JSON with one record a line, sorted, so that a change is a readable diff."""
        found = Counter(
            r["nvcc"] for records in self.resources.values() for r in records if r["registers"]
        )
        nvcc = max(sorted(found), key=found.__getitem__, default="")
        head = {"schema": SCHEMA, "tilelang": self.tilelang, "nvcc": nvcc}
        parts = [f'  "{name}": {json.dumps(value)}' for name, value in head.items()]
        parts += [
            _table("modules", {k: json.dumps(v) for k, v in self.modules.items()}),
            _table("digests", {k: json.dumps(v) for k, v in self.digests.items()}),
            _table("steps", {k: json.dumps(v) for k, v in self.steps.items()}),
            f'  "columns": {json.dumps(COLUMNS)}',
            _table("resources", {k: _records(v, nvcc) for k, v in self.resources.items()}),
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"


def read(folder: Path) -> Manifest:
    """The folder's manifest; an empty one where there is none, or of an older version."""
    path = folder / NAME
    data = json.loads(path.read_text()) if path.is_file() else {}
    if data.get("schema") != SCHEMA:
        return Manifest()
    columns, nvcc = data["columns"], data.get("nvcc", "")
    resources = {
        path: [_record(columns, row, nvcc) for row in rows]
        for path, rows in data["resources"].items()
    }
    steps = data.get("steps", {})
    return Manifest(data["tilelang"], data["modules"], data["digests"], resources, steps)


def _record(columns: list[str], row: list[Any], nvcc: str) -> dict[str, Any]:
    record = dict(zip(columns, row, strict=False))
    record["nvcc"] = row[-1] if len(row) > len(columns) else _measured_with(record, nvcc)
    return record


def _measured_with(record: Mapping[str, Any], nvcc: str) -> str:
    """The nvcc of a record that names none; a CPU's kernel has no registers and needs none."""
    return nvcc if record["registers"] else ""


def _table(name: str, rows: Mapping[str, str]) -> str:
    body = ",\n".join(f"    {json.dumps(path)}: {rows[path]}" for path in sorted(rows))
    return f'  "{name}": {{\n{body}\n  }}' if body else f'  "{name}": {{}}'


def _records(records: Iterable[Mapping[str, Any]], nvcc: str) -> str:
    rows = []
    for record in records:
        other = [record["nvcc"]] if record["nvcc"] != _measured_with(record, nvcc) else []
        rows.append([record[name] for name in COLUMNS] + other)
    lines = ",\n".join(f"      {json.dumps(row, separators=(',', ':'))}" for row in rows)
    return f"[\n{lines}\n    ]"
