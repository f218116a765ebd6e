"""What `leapgen build --compile` adds: every kernel of a module, assembled for every shape.

The shapes are those of the spec's published models and the spec's own dimensions; of a format that
is not the spec's own, the latter alone: models take the spec's. A kernel whose
text has not changed since the manifest's record of it is not assembled again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import kernel_digest
from leapgen.emit.render import Source
from leapgen.report.progress import Step
from leapgen.report.resources import nvcc_version
from leapgen.report.subjects import need_compiler, prepare
from leapgen.report.usage import Key, Usage
from leapgen.report.workers import Workers, needs
from leapgen.runtime import assemble
from leapgen.runtime.host import CompileError, Module
from leapgen.schedule.arch import Arch, arch_named
from leapgen.spec.model import Spec

Known = Mapping[Key, Usage]


@dataclass(frozen=True)
class _Job:
    """A kernel at a shape, on a target, and where its module's text lies."""

    wanted: Usage
    place: Path
    module: Module


def usage(
    modules: Iterable[tuple[Spec, Source, str, bool]],
    known: Known,
    step: Step,
    kernels: Collection[str] = (),
) -> list[Usage]:
    """Needs of all kernels, or of some, of modules (spec, text, arch, whether the format is the
    spec's own) at all their shapes; records of `known` with the same text stand for themselves.
    Errors: MissingTool, LeapgenError."""
    prepare()
    jobs = [
        job
        for spec, source, arch, own in modules
        for job in _jobs(spec, source, arch_named(arch), own)
        if not kernels or job.wanted.kernel in kernels
    ]
    with closing(Workers()) as workers, ThreadPoolExecutor(workers.count) as threads:

        def one(job: _Job) -> Usage:
            u = job.wanted
            old = known.get(u.key)
            if old is not None and (old.digest, old.config) == (u.digest, u.config):
                return replace(old, models=u.models)
            step(f"{u.path}: {u.kernel}, {u.K} x {u.V}, {u.HV} heads")
            return _assembled(job, workers) if arch_named(u.arch).gpu else _compiled(job)

        return list(threads.map(one, jobs))


def shapes(spec: Spec) -> dict[tuple[int, int, int, int], list[str]]:
    """Distinct (K, V, H, HV) with the models that have them; one head of the spec's own first."""
    found: dict[tuple[int, int, int, int], list[str]] = {(spec.K, spec.V, 1, 1): []}
    for m in spec.models:
        found.setdefault((m.K, m.V, m.H, m.HV), []).append(m.name)
    return found


def _jobs(spec: Spec, source: Source, row: Arch, own: bool) -> Iterator[_Job]:
    need_compiler(row)
    module = pipeline.load(source)
    place = assemble.store(Path(source.path).stem, source.text)
    digests = {name: kernel_digest(source.text, (name,)) for name in module.kernels}
    target = row.target if row.gpu else "c"
    found = list(shapes(spec).items())
    for (K, V, H, HV), models in found if own else found[:1]:
        numbers = module.shape(K=K, V=V, H=H, HV=HV).builder_arguments
        for name, digest in digests.items():
            config = dict(module.kernels[name].config(*numbers))
            wanted = Usage(source.path, name, target, K, V, H, HV, tuple(models))
            yield _Job(replace(wanted, digest=digest, config=config), place, module)


def _assembled(job: _Job, workers: Workers) -> Usage:
    u = job.wanted
    shape = job.module.shape(K=u.K, V=u.V, H=u.H, HV=u.HV)
    found, failure = workers.call(needs, job.place, u.kernel, shape, u.config, u.target)
    if found is None:
        raise LeapgenError(f"{u.path}: {u.kernel} at {u.K} x {u.V}, {u.HV} heads: {failure}")
    return replace(
        u,
        threads=found.threads,
        registers=found.registers,
        spills=found.spills,
        stack=found.stack,
        shared=found.shared,
        nvcc=nvcc_version(),
    )


def _compiled(job: _Job) -> Usage:
    u = job.wanted
    try:
        job.module.kernel(u.kernel, job.module.allocate(1, H=u.H, HV=u.HV, K=u.K, V=u.V))
    except CompileError as error:
        raise LeapgenError(str(error)) from error
    return u
