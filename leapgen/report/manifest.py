"""MANIFEST.json of a folder of generated modules: what lies there, and what else would be the same.

modules    path -> digest of a file that lies in the folder, with the spec, picks, format and arch
           that gave it
digests    path -> digest of a module that is not kept as a file
resources  path -> a record a kernel and shape, as measured by `build --compile`, and the digest of
           the text that was compiled
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leapgen.report.doctor import pin
from leapgen.report.usage import Usage

NAME = "MANIFEST.json"
SCHEMA = 1


@dataclass
class Manifest:
    """The three tables, and the TileLang version that resources were measured with."""

    tilelang: str = ""
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)

    def forget_all_but(self, paths: set[str], archs: tuple[str, ...]) -> None:
        """Drops entries of modules of these archs that are no longer made."""
        for entries in (self.modules, self.digests, self.resources):
            for path in [p for p in entries if p.split("/")[0] in archs and p not in paths]:
                del entries[path]

    def measured(self, usage: Iterable[Usage]) -> None:
        """Notes what kernels need; replaces the entries of their modules."""
        self.tilelang = pin("tilelang")
        fresh: dict[str, dict[str, Any]] = {}
        for u in usage:
            digest = self.modules[u.path]["digest"]
            entry = fresh.setdefault(u.path, {"digest": digest, "kernels": []})
            record = {k: v for k, v in asdict(u).items() if k not in ("path", "models")}
            entry["kernels"].append(record)
        self.resources |= fresh

    def text(self) -> str:
        """JSON with one record a line, sorted, so that a change is a readable diff."""
        parts = [f'  "schema": {SCHEMA}', f'  "tilelang": {json.dumps(self.tilelang)}']
        parts += [
            _table("modules", {k: json.dumps(v) for k, v in self.modules.items()}),
            _table("digests", {k: json.dumps(v) for k, v in self.digests.items()}),
            _table("resources", {k: _records(v) for k, v in self.resources.items()}),
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"


def read(folder: Path) -> Manifest:
    """The folder's manifest; an empty one where there is none."""
    path = folder / NAME
    if not path.is_file():
        return Manifest()
    data = json.loads(path.read_text())
    return Manifest(data["tilelang"], data["modules"], data["digests"], data["resources"])


def _table(name: str, rows: Mapping[str, str]) -> str:
    body = ",\n".join(f"    {json.dumps(path)}: {rows[path]}" for path in sorted(rows))
    return f'  "{name}": {{\n{body}\n  }}' if body else f'  "{name}": {{}}'


def _records(entry: Mapping[str, Any]) -> str:
    lines = ",\n".join(f"      {json.dumps(record)}" for record in entry["kernels"])
    return f'{{"digest": {json.dumps(entry["digest"])}, "kernels": [\n{lines}\n    ]}}'
