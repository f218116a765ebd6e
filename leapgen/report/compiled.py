"""What `leapgen build --compile` adds: every kernel of a module, assembled for every shape.

The shapes are those of the spec's published models and the spec's own dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.emit.render import Source
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.report.progress import Step
from leapgen.report.resources import Resources, assemble_all
from leapgen.report.subjects import need_compiler, prepare
from leapgen.report.usage import Usage
from leapgen.runtime.host import CompileError, Module
from leapgen.schedule.arch import Arch, arch_named
from leapgen.spec.model import Spec


def usage(spec: Spec, source: Source, arch: str, step: Step) -> Iterator[Usage]:
    """Compiles all kernels of a module for all its shapes. Errors: MissingTool, LeapgenError."""
    row = arch_named(arch)
    need_compiler(row)
    prepare()
    module = pipeline.load(source)
    for (K, V, H, HV), models in shapes(spec).items():
        step(f"{source.path}: {K} x {V}, {HV} heads")
        shape = module.shape(K=K, V=V, H=H, HV=HV)
        arguments = (shape.K, shape.V, shape.H, shape.HV, shape.P, shape.R)
        common = {"path": source.path, "K": K, "V": V, "H": H, "HV": HV, "models": tuple(models)}
        if row.gpu:
            yield from _assembled(module, row, arguments, common)
        else:
            yield from _compiled(module, common)


def shapes(spec: Spec) -> dict[tuple[int, int, int, int], list[str]]:
    """Distinct (K, V, H, HV) with the models that have them; one head of the spec's own first."""
    found: dict[tuple[int, int, int, int], list[str]] = {(spec.K, spec.V, 1, 1): []}
    for m in spec.models:
        found.setdefault((m.K, m.V, m.H, m.HV), []).append(m.name)
    return found


def _assembled(
    module: Module, row: Arch, arguments: tuple[int, ...], common: Mapping[str, Any]
) -> Iterator[Usage]:
    # Compiled as the host compiles them; kernels of one module rarely differ in that.
    groups: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for name, kernel in module.kernels.items():
        groups.setdefault(tuple(sorted(kernel.pass_configs.items())), []).append(name)
    for configs, names in groups.items():
        kernels = [module.kernels[name] for name in names]
        jobs = [(k.build(*arguments, **k.config(*arguments)), row.target) for k in kernels]
        found = assemble_all(jobs, {**PASS_CONFIGS, **dict(configs)})
        yield from (_usage(name, r, common) for name, r in zip(names, found, strict=True))


def _usage(name: str, r: Resources, common: Mapping[str, Any]) -> Usage:
    return Usage(
        kernel=name,
        target=r.target,
        threads=r.threads,
        registers=r.registers,
        spills=r.spills,
        stack=r.stack,
        shared=r.shared,
        **common,
    )


def _compiled(module: Module, common: Mapping[str, Any]) -> Iterator[Usage]:
    sizes = {name: common[name] for name in ("K", "V", "H", "HV")}
    pool = module.allocate(1, **sizes)
    for name in module.kernels:
        try:
            module.kernel(name, pool)
        except CompileError as error:
            raise LeapgenError(str(error)) from error
        yield Usage(kernel=name, target="c", **common)
