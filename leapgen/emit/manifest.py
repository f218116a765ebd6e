"""MANIFEST.json of a folder of generated modules: digests, and what kernels take once compiled."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leapgen.diagnostics import LeapgenError

NAME = "MANIFEST.json"
VERSION = 1


@dataclass
class Manifest:
    """What a folder of generated modules holds.

    modules   path -> digest, spec, picks, format, arch and, after a compilation, resources
    digests   path -> digest of modules that are rendered by tests but not kept as files
    """

    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def forget_all_but(self, paths: Collection[str]) -> None:
        """Drops the entries of every module whose path is not among `paths`."""
        self.modules = {p: m for p, m in self.modules.items() if p in paths}
        self.digests = {p: d for p, d in self.digests.items() if p in paths}

    def text(self) -> str:
        """The file's text: sorted, one line a digest, so that a change is a short diff."""
        value = {"version": VERSION, "modules": self.modules, "digests": self.digests}
        return json.dumps(value, indent=2, sort_keys=True) + "\n"


def read(folder: Path) -> Manifest:
    """The manifest of a folder; an empty one where there is none.

    Errors: LeapgenError for a file that is not a manifest of this version.
    """
    path = folder / NAME
    if not path.is_file():
        return Manifest()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LeapgenError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise LeapgenError(f"{path}: no manifest of version {VERSION}; remove it and build again")
    return Manifest(dict(value["modules"]), dict(value["digests"]))
