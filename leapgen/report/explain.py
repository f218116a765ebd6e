"""`leapgen explain`: what follows from a spec, as one value that prints as Markdown or JSON.

Every number is computed from the plan at one shape: a published model's, or one head.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from leapgen import paths, pipeline
from leapgen.algebra.describe import Description, describe
from leapgen.diagnostics import LeapgenError, suggest
from leapgen.emit.parts import kernel_digest
from leapgen.runtime import tables
from leapgen.schedule import traffic
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import Plan, Shape
from leapgen.schedule.records import record_bytes, record_size
from leapgen.spec.model import PublishedModel, Spec

BATCHES = (1, 64, 512)
"""Rows for which the floor is given."""


@dataclass(frozen=True)
class BufferBytes:
    """A pool tensor at the shape; `bytes` is what one slot holds of it, paddings included."""

    name: str
    dims: str
    dtype: str
    role: str
    bytes: int
    doc: str


@dataclass(frozen=True)
class Item:
    """Bytes per token, row and value head of one tensor and way; `when` is step or flush.

    A step's records are a mean over the cursors 0..P-1; a flush counts 1/P, once a window. Without
    windows, and where it closes them itself, a step is all there is.
    """

    when: str
    way: str
    name: str
    kind: str
    bytes: float


@dataclass(frozen=True)
class Floor:
    """Least microseconds of one token of one layer on a device, by rows: bytes over bandwidth.

    bandwidth   bytes per second; `measured` False: the vendor's datasheet
    """

    arch: str
    device: str
    bandwidth: float
    measured: bool
    microseconds: dict[int, float]


@dataclass(frozen=True)
class Config:
    """Configs of one shape and number of rows from a table of `tuning/`; where none stands, the
    default rule of arch and shape applies.

    basis   measured, predicted (no device ran it), or stale (of another module text: ignored)
    """

    gpu: str
    H: int
    HV: int
    rows: int
    us: float
    default_us: float
    basis: str
    configs: dict[str, dict[str, object]]


@dataclass(frozen=True)
class Explanation:
    """All that `explain` says.

    fused   a step can close windows of this shape itself, and is counted so
    """

    name: str
    title: str
    path: str
    picks: dict[str, str]
    choices: dict[str, list[str]]
    description: Description
    format: str
    format_doc: str
    arch: str
    layout: str
    windowed: bool
    fused: bool
    model: str
    shape: Shape
    buffers: tuple[BufferBytes, ...]
    record: str
    record_values: int
    record_bytes: float
    bytes_per_slot: int
    bytes_by_role: dict[str, int]
    checkpoint_bytes: int
    draft_bytes: int
    state_bytes_per_element: float
    items: tuple[Item, ...]
    bytes_per_token: float
    floors: tuple[Floor, ...]
    tuned: tuple[Config, ...]

    def data(self) -> dict[str, object]:
        """The same for machines."""
        return asdict(self)


def explain(
    spec: str,
    arch: str,
    format: str | None,
    picks: dict[str, str],
    model: str | None,
) -> Explanation:
    """Explains one spec file. Errors: Diagnostics for the spec, LeapgenError for the arguments."""
    chosen = model_of(spec, model)
    picks = {**(dict(chosen.picks) if model and chosen else {}), **picks}
    chain = pipeline.compile(spec, arch, picks, format)
    shape = shape_of(chain.plan, chain.spec, chosen)
    return Explanation(
        name=chain.spec.name,
        title=chain.spec.title,
        path=chain.spec.path,
        picks=dict(chain.spec.picks),
        choices={c: list(options) for c, options in chain.spec.choices.items()},
        description=describe(chain.window, chain.spec),
        format=chain.plan.format.name,
        format_doc=chain.plan.format.doc,
        arch=chain.plan.arch.name,
        layout=chain.plan.layout(shape).name,
        windowed=chain.plan.windowed,
        model=chosen.name if chosen else "",
        shape=shape,
        buffers=_buffers(chain.plan, shape),
        record=(size := record_size(chain.plan.buffers)).formula,
        record_values=size.count(shape.K, shape.V),
        record_bytes=record_bytes(chain.plan.buffers, shape),
        bytes_per_slot=chain.plan.bytes_per_slot(shape),
        bytes_by_role=_by_role(chain.plan, shape),
        checkpoint_bytes=chain.plan.checkpoint_bytes(shape),
        draft_bytes=_draft_bytes(chain.plan, shape),
        state_bytes_per_element=chain.plan.state_bytes_per_element(shape),
        items=_items(chain.plan, shape),
        fused=(fused := chain.plan.fuses and chain.plan.closes(shape)),
        bytes_per_token=traffic.token_mean(chain.plan, shape, fused=fused).distinct,
        floors=_floors(chain.plan, shape),
        tuned=_tuned(chain, shape),
    )


def model_of(spec: str, name: str | None) -> PublishedModel | None:
    """A published model of a spec by name; the first one if no name is given.

    Errors: LeapgenError for an unknown name.
    """
    models = pipeline.parse(spec).models
    if name is None:
        return models[0] if models else None
    for model in models:
        if model.name == name:
            return model
    known = [m.name for m in models]
    hint = suggest(name, known) or f"known: {', '.join(known) or 'none'}"
    raise LeapgenError(f"{spec} has no model `{name}`; {hint}")


def shape_of(plan: Plan, spec: Spec, model: PublishedModel | None) -> Shape:
    """The shape of a model's layer; without one, of a single head of the spec's own dimensions."""
    if model is None:
        return plan.shape(spec.K, spec.V, 1, 1)
    return plan.shape(model.K, model.V, model.H, model.HV)


def _buffers(plan: Plan, shape: Shape) -> tuple[BufferBytes, ...]:
    return tuple(
        BufferBytes(
            name=b.name,
            dims=" x ".join(map(str, (shape.size(b.heads), *b.dims(shape)))),
            dtype=b.dtype,
            role=b.role,
            bytes=b.slot_bytes(shape),
            doc=b.doc,
        )
        for b in plan.buffers
    )


def _by_role(plan: Plan, shape: Shape) -> dict[str, int]:
    """Bytes of a slot's tensors by what they are for, paddings included."""
    found: dict[str, int] = {}
    for b in plan.buffers:
        found[b.role] = found.get(b.role, 0) + b.slot_bytes(shape)
    return found


def _draft_bytes(plan: Plan, shape: Shape) -> int:
    """Bytes that a reserve of eight drafts adds to a slot; 0 where there can be none."""
    if not plan.draft_kernels:
        return 0
    return plan.bytes_per_slot(replace(shape, D=8)) - plan.bytes_per_slot(shape)


def _items(plan: Plan, shape: Shape) -> tuple[Item, ...]:
    """The lines of the traffic model, weighted by how often a token meets them."""
    P = shape.P
    fused = plan.fuses and plan.closes(shape)
    steps = (traffic.launch(plan, shape, "step", c, fused=fused) for c in range(P))
    launches = [("step", step, 1 / P) for step in steps]
    if plan.windowed and not fused:
        launches.append(("flush", traffic.launch(plan, shape, "flush", P), 1 / P))
        launches.append(("flush", traffic.idle_flush(plan, shape), 1 - 1 / P))
    totals: dict[tuple[str, str, str, str], float] = {}
    for when, launch, weight in launches:
        for line in launch.lines:
            key = (when, line.way, line.name, line.kind)
            totals[key] = totals.get(key, 0.0) + line.amount.distinct * weight
    items = (Item(*key, bytes) for key, bytes in totals.items())
    return tuple(sorted(items, key=lambda i: (i.when != "step", i.way != "read")))


def _tuned(chain: pipeline.Chain, shape: Shape) -> tuple[Config, ...]:
    """Records of the arch's devices at the shape's K, V, P, R."""
    arch, stem = chain.plan.arch, Path(chain.source.path).stem
    found, digests = [], partial(kernel_digest, chain.source.text)
    for gpu in (*(d.slug for d in arch.devices), arch.name):
        for r in tables.read(tables.path_of(paths.data("tuning"), gpu, stem)):
            if (r.K, r.V, r.P, r.R) == (shape.K, shape.V, shape.P, shape.R):
                basis = "predicted" if r.predicted else "measured"
                basis = basis if r.fresh(digests) else "stale"
                row = Config(gpu, r.H, r.HV, r.rows, r.us, r.default_us, basis, r.configs)
                found.append(row)
    return tuple(found)


def _floors(plan: Plan, shape: Shape) -> tuple[Floor, ...]:
    floors = []
    for arch in ARCHES.values():
        for device in arch.devices:
            times = {
                rows: traffic.floor_us(
                    # Nothing moves less, whether or not this arch's step closes windows.
                    traffic.token_mean(plan, shape, rows, fused=True).distinct,
                    shape,
                    rows,
                    device,
                )
                for rows in BATCHES
            }
            row = Floor(arch.name, device.match, device.bandwidth, device.measured, times)
            floors.append(row)
    return tuple(floors)
