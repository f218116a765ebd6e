"""MANIFEST.json of a folder of generated modules: what lies there, and what else would be the same.

modules    path -> digest of a file that lies in the folder, with the spec, picks, format and arch
           that gave it
digests    path -> digest of a module that is not kept as a file
resources  path -> a record a kernel and shape, as measured by `build --compile`, each with the
           digest of the part of the module's text that the kernel comes from; a list whose entries
           `columns` names
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from leapgen.report.doctor import version
from leapgen.report.usage import Key, Usage

NAME = "MANIFEST.json"
SCHEMA = 3
COLUMNS = tuple(f.name for f in fields(Usage) if f.name not in ("path", "models"))


@dataclass
class Manifest:
    """The three tables, and the TileLang version that resources were measured with."""

    tilelang: str = ""
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    resources: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def forget_all_but(self, paths: set[str], archs: tuple[str, ...]) -> None:
        """Drops entries of modules of these archs that are no longer made."""
        for entries in (self.modules, self.digests, self.resources):
            for path in [p for p in entries if p.split("/")[0] in archs and p not in paths]:
                del entries[path]

    def known(self) -> dict[Key, Usage]:
        """Records of this version of TileLang; what another version made says nothing."""
        if self.tilelang != version("tilelang"):
            return {}
        rows = [
            Usage(path=path, models=(), **record)
            for path, records in self.resources.items()
            for record in records
        ]
        return {u.key: u for u in rows}

    def measured(self, usage: Iterable[Usage]) -> None:
        """Notes what kernels need; replaces the entries of these kernels at their shapes."""
        if self.tilelang != version("tilelang"):
            self.tilelang, self.resources = version("tilelang"), {}
        found = {**self.known(), **{u.key: u for u in usage}}
        for path in {u.path for u in usage}:
            rows = [asdict(u) for u in found.values() if u.path == path]
            self.resources[path] = [{name: row[name] for name in COLUMNS} for row in rows]

    def text(self) -> str:
        """JSON with one record a line, sorted, so that a change is a readable diff."""
        parts = [f'  "schema": {SCHEMA}', f'  "tilelang": {json.dumps(self.tilelang)}']
        parts += [
            _table("modules", {k: json.dumps(v) for k, v in self.modules.items()}),
            _table("digests", {k: json.dumps(v) for k, v in self.digests.items()}),
            f'  "columns": {json.dumps(COLUMNS)}',
            _table("resources", {k: _records(v) for k, v in self.resources.items()}),
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"


def read(folder: Path) -> Manifest:
    """The folder's manifest; an empty one where there is none, or of an older version."""
    path = folder / NAME
    data = json.loads(path.read_text()) if path.is_file() else {}
    if data.get("schema") != SCHEMA:
        return Manifest()
    columns = data["columns"]
    resources = {
        path: [dict(zip(columns, record, strict=True)) for record in records]
        for path, records in data["resources"].items()
    }
    return Manifest(data["tilelang"], data["modules"], data["digests"], resources)


def _table(name: str, rows: Mapping[str, str]) -> str:
    body = ",\n".join(f"    {json.dumps(path)}: {rows[path]}" for path in sorted(rows))
    return f'  "{name}": {{\n{body}\n  }}' if body else f'  "{name}": {{}}'


def _records(records: Iterable[Mapping[str, Any]]) -> str:
    rows = ([record[name] for name in COLUMNS] for record in records)
    lines = ",\n".join(f"      {json.dumps(row, separators=(',', ':'))}" for row in rows)
    return f"[\n{lines}\n    ]"
