"""`leapgen list --table`: what a token of each recurrence stores and moves, all of it computed.

Bytes are those of one layer of a spec's first model (of one head of its own dimensions without
one), for one request: the paper's table 4, and the floor that follows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from leapgen import paths, pipeline
from leapgen.report import manifest
from leapgen.report.explain import shape_of
from leapgen.report.text import integer, table
from leapgen.schedule import traffic
from leapgen.schedule.arch import ARCHES, Device, arch_named
from leapgen.schedule.records import record_bytes, record_size

ARCH = "sm90"
ROWS = 64


@dataclass(frozen=True)
class Cost:
    """One spec.

    substeps, reads   records that a token appends, reads of the state in its one pass
    record            values of a token's records, by axis; `values`: their number at K, V
    decay             where the decays of records come from: stored, constant, key, or none
    record_bytes      per value head, keys that value heads share once a group
    slot_bytes        all that a slot holds; fp32_bytes: the state alone, in FP32
    token_bytes       least bytes that a token moves, the closing of windows included
    floor_us          microseconds of ROWS tokens at the device's bandwidth
    compiled          archs whose present step was assembled, as the shipped manifest records
    """

    spec: str
    substeps: int
    reads: int
    record: str
    values: int
    decay: str
    shape: str
    record_bytes: float
    slot_bytes: int
    fp32_bytes: int
    token_bytes: float
    floor_us: float
    compiled: tuple[str, ...] = ()


def costs() -> list[Cost]:
    """A row a shipped spec, of its default choices."""
    book, found = manifest.read(paths.data("generated")), []
    for name in (path.stem for path in paths.shipped_specs()):
        archs = tuple(
            arch for arch in ARCHES if f"{arch}/{name}.py" in book.steps and arch_named(arch).gpu
        )
        found.append(replace(cost(name), compiled=archs))
    return found


def cost(name: str, picks: dict[str, str] | None = None) -> Cost:
    """One spec. Errors: as pipeline.compile."""
    model = next(iter(pipeline.parse(name).models), None)
    chosen = {**(dict(model.picks) if model else {}), **(picks or {})}
    chain = pipeline.compile(name, ARCH, chosen)
    shape = shape_of(chain.plan, chain.spec, model)
    size = record_size(chain.plan.buffers)
    # Nothing moves less, whether or not this arch's step closes windows itself.
    token = traffic.token_mean(chain.plan, shape, ROWS, fused=True).distinct
    return Cost(
        spec=chain.spec.name,
        substeps=chain.window.records_per_token,
        reads=len(chain.window.reads),
        record=size.formula,
        values=size.count(shape.K, shape.V),
        decay=str(chain.window.decay_source) or "none",
        shape=f"{shape.H}/{shape.HV} x {shape.K} x {shape.V}",
        record_bytes=record_bytes(chain.plan.buffers, shape),
        slot_bytes=chain.plan.bytes_per_slot(shape),
        fp32_bytes=4 * shape.HV * shape.K * shape.V,
        token_bytes=token * shape.HV,
        floor_us=traffic.floor_us(token, shape, ROWS, device()),
    )


def device() -> Device:
    """The device of the floor."""
    return arch_named(ARCH).devices[0]


def data() -> list[dict[str, object]]:
    """One dict a row."""
    return [asdict(c) for c in costs()]


def text() -> str:
    """The table, and what its columns are."""
    header = (
        *("spec", "sub-steps", "reads", "record", "values", "decay", "H/HV x K x V"),
        *("B/record", "B/slot", "FP32 state", "B/token", f"us, {ROWS} rows", "compiled"),
    )
    rows = [
        (
            *(c.spec, c.substeps, c.reads, c.record, c.values, c.decay, c.shape),
            *(f"{c.record_bytes:.1f}", integer(c.slot_bytes), integer(c.fp32_bytes)),
            *(integer(round(c.token_bytes)), f"{c.floor_us:.2f}"),
            "|".join(c.compiled) or "-",
        )
        for c in costs()
    ]
    notes = (
        "record: values that a token adds to the window of a value head; B/record: their bytes,",
        "keys that the value heads of a key head share once. B/slot, B/token: one layer of one",
        f"request, all value heads. us: B/token times rows over the bandwidth of {device().match}.",
        "compiled: archs whose present step was assembled, at all published shapes, by nvcc.",
    )
    return "\n".join((table(header, rows), "", *notes))
