"""`leapgen list --formats`: what every format is made of and the bytes that it takes, from plans.

Bytes are those of one head of 128 x 128: of the stored state, and of all that a slot holds for it
under the recurrence that most published models use (records, cursor and paddings included).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache

from leapgen import paths, pipeline
from leapgen.formats.composed import composed
from leapgen.formats.table import NAMED, choices_of
from leapgen.report import verified
from leapgen.report.text import integer, table
from leapgen.report.verified import Evidence
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.buffers import state_bytes
from leapgen.schedule.plan import make_plan
from leapgen.spec.model import Spec

ARCH = "sm90"
SIZE = 128


@dataclass(frozen=True)
class Row:
    """One format.

    bits         of a code
    state_bytes  payload, scales, compensators and residual of one head, without paddings
    per_element  those over SIZE * SIZE
    below_fp32   how many times less than an FP32 state
    slot_bytes   all that one head takes of a slot
    archs        that have kernels; none: the format exists in the reference model only
    verified     arch -> evidence that its kernels of today passed, see report.verified
    """

    name: str
    cadence: str
    bits: int
    state_bytes: int
    per_element: float
    below_fp32: float
    slot_bytes: int
    archs: tuple[str, ...]
    verified: Mapping[str, list[Evidence]]
    made_of: str


def rows() -> list[Row]:
    """A row a named format, in the order of the table."""
    state, window = _common().state, pipeline.derive(pipeline.lower(_common()))
    state = replace(state, compensators=None, smoothing=None)
    found, evidence = [], verified.by_format(verified.standing())
    for format in NAMED.values():
        plan = make_plan(window, state, ARCHES[ARCH], format)
        size = state_bytes(format, SIZE, SIZE)
        found.append(
            Row(
                name=format.name,
                cadence=format.cadence,
                bits=format.bits,
                state_bytes=size,
                per_element=size / SIZE**2,
                below_fp32=SIZE**2 * 4 / size,
                slot_bytes=plan.bytes_per_slot(plan.shape(SIZE, SIZE, 1, 1)),
                archs=tuple(n for n, a in ARCHES.items() if format.kernels_on(a.gpu)),
                verified=evidence.get(format.name, {}),
                made_of=composed(format.name, format.doc, choices_of(format.name)).describe(),
            )
        )
    return found


@cache
def _common() -> Spec:
    """The shipped spec with the most published models."""
    specs = [pipeline.parse(path.stem) for path in paths.shipped_specs()]
    return max(specs, key=lambda spec: len(spec.models))


def data() -> list[dict[str, object]]:
    """One dict a row."""
    return [asdict(row) for row in rows()]


def text() -> str:
    """The rows as a table."""
    columns = (
        *("format", "stored", "bits", "bytes", "B/element", "FP32/it", "slot", "archs", "verified"),
        "of",
    )
    cells = [
        [
            row.name,
            row.cadence,
            str(row.bits),
            integer(row.state_bytes),
            f"{row.per_element:.4f}",
            f"{row.below_fp32:.2f}",
            integer(row.slot_bytes),
            "|".join(row.archs) or "reference only",
            verified.words(row.verified),
            row.made_of,
        ]
        for row in rows()
    ]
    spec = _common()
    title = (
        f"formats: bytes of one head of {SIZE} x {SIZE}; slot: all that it takes of one, as "
        f"{spec.name} with windows of {spec.state.window}"
    )
    return f"{title}\n{table(columns, cells)}"
