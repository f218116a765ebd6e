"""`leapgen list`: specs, formats, archs and published models, each a table and the same as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leapgen import paths
from leapgen.formats.table import NAMED
from leapgen.report.text import table
from leapgen.schedule.arch import ARCHES
from leapgen.spec import loader
from leapgen.spec.model import Spec

Row = dict[str, object]


def data(topic: str) -> list[Row]:
    """One dict a row; `topic` is a key of TOPICS."""
    return TOPICS[topic].rows()


def text(topic: str) -> str:
    """The rows as a table under the topic's name."""
    entry = TOPICS[topic]
    rows = [[_cell(row[column]) for column in entry.columns] for row in entry.rows()]
    return f"{topic}\n{table(entry.columns, rows)}"


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "|".join(map(str, value))
    return str(value)


def _specs() -> tuple[Spec, ...]:
    return tuple(loader.load(str(path)) for path in paths.shipped_specs())


def _spec_rows() -> list[Row]:
    return [
        {
            "name": spec.name,
            "title": spec.title,
            "shape": f"{spec.K}x{spec.V}",
            "format": spec.state.format,
            "window": spec.state.window,
            "choices": {choice: list(options) for choice, options in spec.choices.items()},
            "models": len(spec.models),
        }
        for spec in _specs()
    ]


def _format_rows() -> list[Row]:
    return [
        {
            "name": f.name,
            "family": f.family,
            "payload": f.payload,
            "bits": f.bits,
            "cadence": f.cadence,
            "compensators": f.compensators,
            "smoothing": f.key_scale or "none",
            "archs": [n for n, a in ARCHES.items() if f.kernels_on(a.gpu)],
            "doc": f.doc,
        }
        for f in NAMED.values()
    ]


def _arch_rows() -> list[Row]:
    return [
        {
            "name": a.name,
            "title": a.title,
            "targets": {f"{major}.{minor}": target for (major, minor), target in a.targets}
            or {"any": a.target},
            "devices": [d.match for d in a.devices],
        }
        for a in ARCHES.values()
    ]


def _model_rows() -> list[Row]:
    return [
        {
            "name": m.name,
            "spec": spec.name,
            "H": m.H,
            "HV": m.HV,
            "K": m.K,
            "V": m.V,
            "layers": m.layers,
            "picks": dict(m.picks),
        }
        for spec in _specs()
        for m in spec.models
    ]


@dataclass(frozen=True)
class Topic:
    """A table: its columns and what fills them."""

    columns: tuple[str, ...]
    rows: Callable[[], list[Row]]


TOPICS = {
    "specs": Topic(("name", "title", "shape", "format", "window", "models", "choices"), _spec_rows),
    "formats": Topic(
        (
            *("name", "family", "payload", "bits", "cadence", "compensators", "smoothing"),
            *("archs", "doc"),
        ),
        _format_rows,
    ),
    "archs": Topic(("name", "title", "targets", "devices"), _arch_rows),
    "models": Topic(("name", "spec", "H", "HV", "K", "V", "layers", "picks"), _model_rows),
}
