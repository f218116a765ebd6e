"""`leapgen build --bundle`: a folder that runs without leapgen, nvcc and TileLang, and its wheel.

    OUT/<package>/         __init__.py, manifest.json, and parts of leapgen's runtime
    OUT/<package>/<arch>/  the generated sources
    OUT/<package>/lib/     compiled kernels, named by their contents
    OUT/*.whl              the same, for pip

The folder is made beside OUT and renamed when it is whole, so OUT is all of a bundle or absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

from leapgen import paths, pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import kernel_digest
from leapgen.emit.render import Source
from leapgen.files import new_folder
from leapgen.report import binaries, bundle_files
from leapgen.report.progress import Step
from leapgen.report.subjects import need_compiler, prepare
from leapgen.report.text import table
from leapgen.report.workers import Workers
from leapgen.runtime import assemble, tables
from leapgen.runtime.host import DRAFT_KERNELS, ArgumentError, Module, Shape, Tuned, key_of
from leapgen.schedule.arch import Arch, arch_named
from leapgen.spec.model import Spec

Row = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What to put in.

    picks    of every spec; empty: one module for each combination that its models use
    models   published models whose shapes are compiled; empty: all
    shapes   arguments of `Module.allocate` to compile for, in place of models' shapes
    kernels  names; empty: all of a module
    """

    specs: tuple[str, ...]
    archs: tuple[str, ...]
    out: Path
    format: str | None = None
    picks: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    shapes: tuple[Mapping[str, int], ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Module:
    """One generated module, the shapes to compile it for, and the records of its tables."""

    spec: Spec
    source: Source
    row: Arch
    module: Module
    place: Path
    shapes: tuple[Shape, ...]
    records: Mapping[str, tuple[tables.Record, ...]]
    kernels: tuple[str, ...]

    @property
    def stem(self) -> str:
        return Path(self.source.path).stem


@dataclass(frozen=True)
class _Job:
    """One kernel of a module, at one shape and config."""

    of: _Module
    kernel: str
    shape: Shape
    config: Mapping[str, Any]


def build(request: Request, step: Step) -> Row:
    """Compiles and writes a bundle; what is in it, for people (`text`) and machines.

    Errors: Diagnostics, LeapgenError (OUT that exists, a kernel that does not compile, a shape that
    a module refuses), MissingTool.
    """
    package = request.out.resolve().name
    if not package.isidentifier():
        raise LeapgenError(
            f"--bundle: expected a folder named as a Python package, found {package}"
        )
    with new_folder(request.out) as folder:
        prepare()
        modules = list(_modules(request, step))
        jobs = [job for m in modules for job in _jobs(m)]
        root = folder / package
        book = bundle_files.manifest(package, request.archs)
        book["modules"] = _compiled(modules, jobs, root / "lib", step)
        for m in modules:
            bundle_files.put(root / m.source.path, m.source.text)
        bundle_files.finish(root, book)
        wheel = bundle_files.wheel(folder, package, book)
    kernels = sum(len(m["kernels"]) for m in book["modules"])
    return {
        "folder": str(request.out),
        "wheel": str(request.out / wheel),
        "kernels": kernels,
        "bytes": sum(p.stat().st_size for p in (request.out / package).rglob("*") if p.is_file()),
        "modules": [_summary(m) for m in book["modules"]],
    }


def text(result: Row) -> str:
    """A line a module, where the bundle is, and how it is used: the folder that was asked for is
    not the package, which lies in it."""
    header = ("module", "arch", "shapes", "kernels", "tuned", "device code, KiB")
    rows = [
        (m["name"], m["arch"], str(m["shapes"]), str(m["kernels"]), str(m["tuned"]), m["size"])
        for m in result["modules"]
    ]
    last = f"{result['folder']}: {result['kernels']} kernels, {result['bytes']:,} bytes"
    package = Path(result["folder"]).name
    how = f"pip install {result['wheel']}  (or add {result['folder']} to PYTHONPATH)"
    example = f'import {package}; module = {package}.load("{result["modules"][0]["name"]}")'
    return f"{table(header, rows)}\n{last}\n{how}\n{example}"


def _summary(module: Row) -> Row:
    binaries_ = {b["file"]: b["bytes"] for k in module["kernels"] for b in k["binaries"].values()}
    return {
        "name": module["name"],
        "arch": module["arch"],
        "shapes": len({json.dumps(k["shape"]) for k in module["kernels"]}),
        "kernels": len(module["kernels"]),
        "tuned": sum(len(rows) for rows in module["tables"].values()),
        "size": f"{sum(binaries_.values()) / 1024:,.0f}",
    }


# ------------------------------------------------------------------ what to compile


def _modules(request: Request, step: Step) -> Iterator[_Module]:
    for name in request.specs:
        for picks, sizes in _groups(name, request):
            for arch in request.archs:
                step(f"{name} for {arch}")
                chain = pipeline.compile(name, arch, picks, request.format)
                yield _module(chain.spec, chain.source, arch_named(arch), sizes, request.kernels)


def _groups(name: str, request: Request) -> list[tuple[Mapping[str, str], list[Mapping[str, int]]]]:
    """Picks, and the shapes wanted of the module that they make."""
    if request.shapes:
        return [(request.picks, list(request.shapes))]
    models = pipeline.parse(name).models
    if unknown := set(request.models) - {m.name for m in models}:
        known = ", ".join(m.name for m in models) or "none"
        raise LeapgenError(f"--model: expected one of {known}, found {', '.join(unknown)}")
    groups: dict[str, tuple[Mapping[str, str], list[Mapping[str, int]]]] = {}
    for m in models:
        if request.models and m.name not in request.models:
            continue
        # A choice that nobody names has its first alternative, so that equal modules are one.
        picks = pipeline.parse(name, {**m.picks, **request.picks}).picks
        _, sizes = groups.setdefault(key_of(picks=dict(picks)), (picks, []))
        size = {"H": m.H, "HV": m.HV, "K": m.K, "V": m.V}
        sizes += [size] if size not in sizes else []
    if not groups:
        raise LeapgenError(f"{name}: has no published models; say which shapes with --shape")
    return list(groups.values())


def _module(
    spec: Spec,
    source: Source,
    row: Arch,
    sizes: Sequence[Mapping[str, int]],
    kernels: Sequence[str],
) -> _Module:
    need_compiler(row)
    module = pipeline.load(source)
    try:
        shapes = tuple(dict.fromkeys(module.shape(**size) for size in sizes))
    except (ArgumentError, TypeError) as error:
        raise LeapgenError(f"--shape: {error}") from error
    if unknown := set(kernels) - set(module.kernels):
        known = ", ".join(module.kernels)
        raise LeapgenError(f"--kernels: expected some of {known}, found {', '.join(unknown)}")
    stem = Path(source.path).stem
    records = _records(stem, row, partial(kernel_digest, source.text))
    chosen = tuple(kernels) or tuple(module.kernels)
    place = assemble.store(stem, source.text)
    return _Module(spec, source, row, module, place, shapes, records, chosen)


def _records(stem: str, row: Arch, digests: tables.Digests) -> dict[str, tuple[tables.Record, ...]]:
    """Folder of `tuning/` -> the records that were made for the module's text."""
    found = {}
    for gpu in dict.fromkeys([*(d.slug for d in row.devices), row.name]) if row.gpu else ():
        rows = tables.read(tables.path_of(paths.data("tuning"), gpu, stem))
        fresh = tuple(r for r in rows if r.fresh(digests))
        if fresh:
            found[gpu] = fresh
    return found


def _jobs(m: _Module) -> Iterator[_Job]:
    """Every config that the module may choose at its shapes, whatever the number of rows."""
    for shape in m.shapes:
        for kernel in m.kernels:
            if kernel in DRAFT_KERNELS and not shape.D:
                continue
            configs = [m.module.kernels[kernel].config(*shape.builder_arguments)]
            for records in m.records.values():
                configs += _chosen(m.module.with_table([r.tuned for r in records]), kernel, shape)
            for config in {key_of(config=dict(c)): c for c in configs}.values():
                yield _Job(m, kernel, shape, dict(config))


def _chosen(module: Module, kernel: str, shape: Shape) -> list[Mapping[str, Any]]:
    """Configs of a table that can be the nearest: those of the heads that the first one has."""
    found = module._tuned(shape, None)

    def like_first(t: Tuned) -> bool:
        if found[0].shape == shape:
            return t.shape == shape
        return isclose(t.shape.HV / t.shape.H, found[0].shape.HV / found[0].shape.H)

    return [t.configs[kernel] for t in found if kernel in t.configs and like_first(t)]


# ------------------------------------------------------------------ compiling


def _compiled(modules: Sequence[_Module], jobs: Sequence[_Job], lib: Path, step: Step) -> list[Row]:
    """The manifest's rows of modules; binaries are written to `lib`."""
    entries = {m.source.path: _entry(m) for m in modules}
    with closing(Workers()) as workers, ThreadPoolExecutor(workers.count) as threads:

        def one(job: _Job) -> Row:
            made: Row = {"kernel": job.kernel, "shape": dict(vars(job.shape))}
            made |= {"config": dict(job.config), "names": [], "binaries": {}}
            for target in binaries.targets(job.of.row.targets):
                step(f"{job.of.stem}: {job.kernel} for {target}")
                found, failure = workers.call(
                    binaries.make, job.of.place, job.kernel, job.shape, job.config, target
                )
                if found is None:
                    where = f"{job.of.source.path}: {job.kernel}, {job.shape}, {target}"
                    raise LeapgenError(f"{where}: {failure}")
                made["names"] = list(found.names)
                made["binaries"][target] = _stored(lib, found)
            return made

        for job, row in zip(jobs, threads.map(one, jobs), strict=True):
            entries[job.of.source.path]["kernels"].append(row)
    return list(entries.values())


def _entry(m: _Module) -> Row:
    return {
        "name": m.stem,
        "arch": m.row.name,
        "file": m.source.path,
        "spec": m.module.spec,
        "plan": m.module.digest,
        "format": m.spec.state.format,
        "picks": dict(m.spec.picks),
        "tables": {
            gpu: [
                {"device": r.device, "shape": vars(r.shape), "rows": r.rows, "configs": r.configs}
                for r in records
            ]
            for gpu, records in m.records.items()
        },
        "kernels": [],
    }


def _stored(lib: Path, binary: binaries.Binary) -> Row:
    digest = hashlib.sha256(binary.code).hexdigest()
    suffix = "so" if "grid" not in binary.entry else "cubin"
    path = lib / f"{digest[:24]}.{suffix}"
    bundle_files.put(path, binary.code)
    return {"file": f"lib/{path.name}", "bytes": len(binary.code), **binary.entry}
