"""`leapgen.load`: find or generate a module for the present device, and import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leapgen import paths
from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.diagnostics import LeapgenError
from leapgen.emit.render import render, stem
from leapgen.runtime import assemble
from leapgen.runtime.host import Module
from leapgen.schedule.arch import Arch, arch_named, for_capability
from leapgen.schedule.plan import make_plan
from leapgen.spec import loader
from leapgen.spec.model import Spec


class UnknownModule(LeapgenError):
    """No spec and no generated module has this name."""


def load(
    name: str | Path,
    *,
    arch: str | None = None,
    format: str | None = None,
    records: str | None = None,
    smoothing: str | None = None,
    pin_config: bool = False,
    cache: Path | None = None,
    **picks: str,
) -> Module:
    """The module of a recurrence, ready to allocate pools and to step.

    name        a shipped spec, a spec file (`.yaml`), or a generated module (`.py`)
    arch        a row of `leapgen list archs`; default: the present GPU's, or cpu without a GPU
    format      state format in place of the spec's; so are `records` and `smoothing`
    pin_config  one config for all batch sizes, so that results do not depend on the batch. The
                default rule knows arch and shape only and keeps to that in any case; pinned, a
                module takes no config from tuned tables either
    cache       folder for modules that are not shipped and are generated now; default: the user's
    picks       an alternative of each choice of the spec: `gate="lower_bound"`

    A shipped module is imported as it is. Window, compensators and dimensions are arguments of
    `Module.allocate`, not of this call.

    Raises UnknownModule, Diagnostics for a spec or picks that are wrong, ArchError, NotAModule.
    """
    if Path(name).suffix == ".py":
        return assemble.import_module(_generated(Path(name)))
    row = present_arch() if arch is None else arch_named(arch)
    path = _spec(str(name))
    shipped = None
    if path.parent == paths.data("specs") and records is None and smoothing is None:
        shipped = _shipped(path.stem, row, picks, format)
    if shipped is not None:
        return assemble.import_module(shipped)
    options = {"format": format, "records": records, "smoothing": smoothing}
    spec = loader.load(path, picks, options)
    return assemble.import_module(assemble.store(spec.name, generate(spec, row), cache))


def _shipped(name: str, arch: Arch, picks: Mapping[str, str], format: str | None) -> Path | None:
    """The file under generated/ for these options, if it is there."""
    path = paths.data("specs") / f"{name}.yaml"
    spec = loader.load(path, picks, {"format": format})
    default = spec if format is None else loader.load(path, picks)
    file = paths.data("generated") / arch.name / f"{stem(spec, default.state.format)}.py"
    return file if file.is_file() else None


def generate(spec: Spec, arch: Arch) -> str:
    """The chain from a spec to the text of its module."""
    return render(make_plan(derive(lower(spec)), spec.state, arch), spec).text


def present_arch() -> Arch:
    """The row of this machine's GPU, or the CPU's. Errors: ArchError for an unknown GPU."""
    import torch

    if not torch.cuda.is_available():
        return arch_named("cpu")
    return for_capability(torch.cuda.get_device_capability())[0]


def _spec(name: str) -> Path:
    path = paths.spec_file(name)
    if not path.is_file():
        known = ", ".join(p.stem for p in paths.shipped_specs())
        raise UnknownModule(f"{name}: no such spec; shipped: {known}")
    return path


def _generated(path: Path) -> Path:
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("[!_]*.py"))) or "nothing"
        raise UnknownModule(f"{path}: no such module; the folder has {there}")
    return path
