"""VERIFIED.json beside the generated modules: whose kernels passed `leapgen verify`, and where.

A record holds the digest of what its checked kernels come from. It says something as long as a
module that is rendered now has that digest; a later edit of anything else leaves it standing. A
verification that fails takes the module's record away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from leapgen import paths, pipeline
from leapgen.algebra.derive import derive
from leapgen.algebra.window import Window
from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import kernel_digest
from leapgen.files import locked, write_atomic

NAME = "VERIFIED.json"
CHECKED = ("step", "flush", "materialize", "load_state", "copy", "reset")
"""Kernels that `leapgen verify` runs; those for drafts have tests of their own."""


@dataclass(frozen=True)
class Evidence:
    """One verification that passed.

    how       `compiled`, `emulated`, or the GPU's name
    digest    of what the module's CHECKED kernels need
    date      of the run, UTC
    checks    properties that held
    """

    spec: str
    format: str
    arch: str
    how: str
    digest: str
    date: str
    checks: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a later record replaces."""
        return (self.spec, self.format, self.arch, self.how)


def read(path: Path) -> tuple[Evidence, ...]:
    """The records of a file, or of none."""
    return tuple(Evidence(*row) for row in json.loads(path.read_text())) if path.is_file() else ()


def text(records: Iterable[Evidence]) -> str:
    """JSON, a sorted record a line; what its entries are says `Evidence`."""
    rows = [list(asdict(r).values()) for r in sorted(records, key=lambda r: r.key)]
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def note(
    path: Path, passed: Iterable[Evidence], failed: Iterable[tuple[str, str, str, str]]
) -> None:
    """Adds records to a file, and takes those of failed modules away."""
    with locked(path.parent):
        kept = {r.key: r for r in read(path)}
        kept |= {r.key: r for r in passed}
        for key in failed:
            kept.pop(key, None)
        write_atomic(path, text(kept.values()))


Digest = Callable[[Evidence], str]


def standing(path: Path | None = None, now: Digest | None = None) -> tuple[Evidence, ...]:
    """Records of a file (default: the one that is shipped) whose digest is that of the present
    module; `now` gives the latter."""
    path = path or paths.data("generated") / NAME
    return tuple(r for r in read(path) if (now or present)(r) == r.digest)


def present(record: Evidence) -> str:
    """Digest of the module that is rendered now; empty where there is none any more."""
    try:
        spec = pipeline.parse(record.spec, None, record.format)
        plan = pipeline.schedule(_window(record.spec), spec, record.arch)
        return digest(pipeline.render(plan, spec).text)
    except LeapgenError:
        return ""


def digest(module: str) -> str:
    """Of a module's text: what its CHECKED kernels need, their default configs among it, since
    `leapgen verify` runs these."""
    return kernel_digest(module, CHECKED, configs=True)


@cache
def _window(spec: str) -> Window:
    return derive(pipeline.lower(pipeline.parse(spec)), prove=False)


def by_format(records: Iterable[Evidence]) -> Mapping[str, Mapping[str, list[Evidence]]]:
    """format -> arch -> records."""
    found: dict[str, dict[str, list[Evidence]]] = {}
    for r in records:
        found.setdefault(r.format, {}).setdefault(r.arch, []).append(r)
    return found


def words(found: Mapping[str, list[Evidence]]) -> str:
    """`cpu NAME 2026-11-30`: an arch (and how, if not compiled for a CPU), specs, oldest day."""
    parts = []
    for arch, everyone in found.items():
        for how in sorted({r.how for r in everyone}):
            records = [r for r in everyone if r.how == how]
            specs = " ".join(sorted({r.spec for r in records}))
            place = arch if how == "compiled" else f"{arch} ({how})"
            parts.append(f"{place} {specs} {min(r.date for r in records)}")
    return "; ".join(parts) or "-"
