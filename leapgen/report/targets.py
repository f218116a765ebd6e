"""TARGETS.json of a folder of generated modules: which of the shipped specs' modules it keeps.

A table: spec -> target; `*` stands for every other spec. A target has

files     archs of which the default module lies there as a file
digests   archs of which the manifest keeps the default module's digest instead
every     every format and every alternative too, as build_report says; else the defaults alone
presets   archs of which the manifest keeps digests of all other named formats, for what they need

A folder without the table keeps everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leapgen.schedule.arch import ARCHES

NAME = "TARGETS.json"
OTHERS = "*"


@dataclass(frozen=True)
class Target:
    """What a folder keeps of one spec; see the module's docstring."""

    files: tuple[str, ...] = tuple(ARCHES)
    digests: tuple[str, ...] = ()
    every: bool = True
    presets: tuple[str, ...] = ()

    def archs(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the wanted archs that it names, in their order."""
        return tuple(arch for arch in wanted if arch in (*self.files, *self.digests))


def read(folder: Path) -> Mapping[str, Target]:
    """The folder's table."""
    path = folder / NAME
    if not path.is_file():
        return {OTHERS: Target()}
    return {spec: _target(entry) for spec, entry in json.loads(path.read_text()).items()}


def target_of(targets: Mapping[str, Target], spec: str) -> Target:
    """What is kept of a spec."""
    return targets.get(spec) or targets[OTHERS]


def _target(entry: Mapping[str, object]) -> Target:
    def archs(key: str) -> tuple[str, ...]:
        words = entry.get(key, [])
        assert isinstance(words, list)
        return tuple(ARCHES) if words == ["all"] else tuple(map(str, words))

    return Target(archs("files"), archs("digests"), entry.get("every") is True, archs("presets"))
