"""`leapgen tune`: which module on which device, then the tuner, then the table."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError, MissingTool, listing
from leapgen.emit.parts import kernel_digest
from leapgen.report.progress import aside
from leapgen.report.subjects import subject
from leapgen.report.text import configs_text, table
from leapgen.runtime import tables
from leapgen.runtime.host import Shape
from leapgen.runtime.module import gpu_slug, present_arch
from leapgen.schedule.arch import ARCHES, Arch, Device, arch_named
from leapgen.schedule.predict import device_of
from leapgen.tune.bench import Bench
from leapgen.tune.candidates import known_device
from leapgen.tune.compiled import Predicted, driver_version
from leapgen.tune.device import DeviceBench
from leapgen.tune.journal import Journal
from leapgen.tune.outcome import Outcome, Result
from leapgen.tune.tuner import Tuner

BATCHES = (1, 8, 64, 256, 512)
HEADS = ((32, 32), (16, 32))
BUDGET = 240.0


@dataclass(frozen=True)
class Request:
    """What to tune; see the command's options.

    gpu      `auto`: the GPU at hand; `cpu`; or an arch or product, whose times are predicted
             unless it is the product at hand
    heads    pairs of key and value heads
    dims     K, V; the spec's own if absent
    budget   seconds
    out      folder of tables; the journal lies there too
    again    forget what earlier runs have measured
    compile  compile the candidates, which needs no device, and leave the rest to a later run
    """

    spec: str
    gpu: str = "auto"
    format: str | None = None
    picks: dict[str, str] = field(default_factory=dict)
    batches: tuple[int, ...] = BATCHES
    heads: tuple[tuple[int, int], ...] = HEADS
    dims: tuple[int, int] | None = None
    budget: float = BUDGET
    out: Path = Path("tuning")
    again: bool = False
    compile: bool = False


@dataclass(frozen=True)
class Where:
    """A device. folder: in `tuning/`; name: the driver's, or the product's if predicted."""

    arch: Arch
    folder: str
    name: str
    product: Device | None
    predicted: bool
    sms: int = 0


@dataclass
class Tuned:
    """What a run did, for people and machines. path: the table; notes: the journal; compiled: it
    compiled and did no more."""

    module: str
    where: Where
    path: Path
    notes: Path
    digest: str
    outcome: Outcome
    records: list[tables.Record]
    compiled: bool = False

    def data(self) -> dict[str, Any]:
        """The same for machines."""
        o = self.outcome
        return {
            "module": self.module,
            "gpu": self.where.folder,
            "device": self.where.name,
            "predicted": self.where.predicted,
            "digest": self.digest,
            "table": self.path.as_posix(),
            "journal": self.notes.as_posix(),
            "compiled": self.compiled,
            "seconds": round(o.seconds, 1),
            "resumed": o.resumed,
            "unreached": [str(p) for p in o.unreached],
            "failures": o.failures,
            "candidates": [
                {
                    "kernel": f.kernel,
                    "H": shape.H,
                    "HV": shape.HV,
                    "considered": f.considered,
                    "dropped": f.dropped,
                    "left": f.left,
                    "finalists": len(f.candidates),
                }
                for shape, f in o.fields
            ],
            "records": [asdict(r) for r in self.records],
        }


def units(request: Request) -> int:
    """Points of a request, for a progress bar."""
    return len(set(request.batches)) * len(request.heads)


def tune(request: Request, notice: Callable[[str, int], None]) -> Tuned:
    """Runs the tuner and writes the table, record by record.

    Errors: Diagnostics for the spec, MissingTool, LeapgenError for the arguments.
    """
    where = locate(request.gpu)
    notice("rendering", 0)
    chain = pipeline.compile(request.spec, where.arch.name, request.picks, request.format)
    bench = _bench(chain, where, request.compile)
    stem = Path(chain.source.path).stem
    path = tables.path_of(request.out, where.folder, stem)
    notes = path.parent.parent / "journal" / f"{stem}.jsonl"
    if request.again:
        notes.unlink(missing_ok=True)
    records: list[tables.Record] = []
    digests = partial(kernel_digest, chain.source.text)

    def save(result: Result) -> None:
        record = _record(result, bench, where, digests(tuple(result.configs)))
        records.append(record)
        tables.merge(path, [record], digests)

    shapes = []
    K, V = request.dims or (chain.spec.K, chain.spec.V)
    for H, HV in dict.fromkeys(request.heads):
        planned = chain.plan.shape(K, V, H, HV)
        shapes.append(Shape(**vars(planned)))
    device = where.product
    journal = Journal(notes, bench.identity)
    tuner = Tuner(bench, chain.plan, device, journal, request.budget, notice, save)
    with aside(notes.with_suffix(".log")), closing(bench.workers):
        work = tuner.compile if request.compile else tuner.run
        outcome = work(shapes, request.batches)
    digest = kernel_digest(chain.source.text)
    return Tuned(stem, where, path, notes, digest, outcome, records, request.compile)


def locate(gpu: str) -> Where:
    """The device that `--gpu` names. Errors: MissingTool, LeapgenError with the known names."""
    if gpu == "cpu":
        return Where(arch_named("cpu"), "cpu", "cpu", None, predicted=False)
    here = _present()
    if gpu == "auto":
        if here is None:
            raise MissingTool("no GPU here; `--gpu sm100` and the like predict, `--gpu cpu` runs")
        return here
    if here is not None and gpu == here.folder:
        return here
    if gpu in ARCHES:
        arch = arch_named(gpu)
        product = device_of(arch)
        return Where(arch, arch.name, product.match, product, True, product.sms)
    products = {d.slug: (a, d) for a in ARCHES.values() for d in a.devices}
    if gpu not in products:
        known = listing([*(a for a in ARCHES if a != "cpu"), *products])
        raise LeapgenError(f"unknown GPU {gpu!r}; known: auto, cpu, {known}")
    arch, product = products[gpu]
    return Where(arch, product.slug, product.match, product, True, product.sms)


def _present() -> Where | None:
    import torch

    if not torch.cuda.is_available():
        return None
    arch, name = present_arch(), torch.cuda.get_device_name()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    product = known_device(arch, name)
    return Where(arch, gpu_slug(arch, name), name, product, predicted=False, sms=sms)


def _bench(chain: pipeline.Chain, where: Where, compile: bool) -> Predicted | DeviceBench:
    if where.predicted or compile:
        module = pipeline.load(chain.source)
        return Predicted(chain, module, where.name, where.sms, product=where.product)
    on = subject(chain.source, where.arch.name)
    driver = driver_version() if where.arch.gpu else ""
    return DeviceBench(chain, on.module, where.name, where.sms, driver, subject=on)


def _record(result: Result, bench: Bench, where: Where, digest: str) -> tables.Record:
    s, identity = result.point.shape, bench.identity
    known = {kernel: usage for kernel, usage in result.usage.items() if usage is not None}
    return tables.Record(
        **{name: getattr(s, name) for name in ("K", "V", "H", "HV", "P", "R")},
        rows=result.point.rows,
        configs={kernel: dict(config) for kernel, config in result.configs.items()},
        us=round(result.us, 2),
        default_us=round(result.default_us, 2),
        rule_us=round(result.rule_us, 2),
        predicted=where.predicted,
        registers={kernel: usage.registers for kernel, usage in known.items()},
        spills={kernel: usage.spills for kernel, usage in known.items()},
        error=round(result.error, 3),
        digest=digest,
        device=where.name,
        sms=where.sms,
        driver=identity["driver"],
        versions=identity["versions"],
        date=datetime.date.today().isoformat(),
    )


def text(tuned: Tuned) -> str:
    """A line a point, what became of the candidates, and what is left to do."""
    where, o = tuned.where, tuned.outcome
    how = "predicted, nothing was run" if where.predicted else f"{where.sms} SMs"
    if tuned.compiled:
        how = "nothing was run"
    header = ("H", "HV", "rows", "us", "default us", "gain", "rule us", "configs")
    rows = [
        (
            r.H,
            r.HV,
            r.rows,
            f"{r.us:.2f}",
            f"{r.default_us:.2f}",
            _gain(r),
            f"{r.rule_us:.2f}",
            configs_text(r.configs),
        )
        for r in sorted(tuned.records, key=lambda r: r.order)
    ]
    lines = [f"{tuned.module} on {where.name} ({how}), module {tuned.digest}", ""]
    lines += [table(header, rows)] if rows else []
    for shape, f in o.fields:
        out = "".join(f"; {n} {reason}" for reason, n in f.dropped.items())
        out += f"; {f.left} not reached" if f.left else ""
        head = f"{f.kernel}, H={shape.H} HV={shape.HV}: {f.considered} candidates"
        what = "to race" if tuned.compiled else "raced"
        lines.append(f"{head}, {len(f.candidates)} {what}{out}")
    lines += [f"FAILED {failure}" for failure in o.failures]
    if left := sum(f.left for _, f in o.fields) + len(o.unreached):
        lines.append(f"{left} candidates or points not reached; the same command goes on with them")
    kept = f"{tuned.path}: {len(tuned.records)} records"
    lines.append(f"{tuned.notes if tuned.compiled else kept}, {o.seconds:.0f} s")
    lines[-1] += f", {o.resumed} results of earlier runs" if o.resumed else ""
    return "\n".join(lines)


def _gain(record: tables.Record) -> str:
    return f"{100 * (1 - record.us / record.default_us):.1f}%" if record.default_us else "-"
