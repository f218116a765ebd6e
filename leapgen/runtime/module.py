"""`leapgen.load`: find or generate a module for the present device, and import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from leapgen import paths
from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import kernel_digest
from leapgen.emit.render import render
from leapgen.emit.render import stem as module_stem
from leapgen.runtime import assemble
from leapgen.runtime import tables as tuned_tables
from leapgen.runtime.host import Module
from leapgen.schedule.arch import Arch, ArchError, arch_named, for_capability
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
    tables: Path | None = None,
    **picks: str,
) -> Module:
    """The module of a recurrence, ready to allocate pools and to step.

    name        a shipped spec, a spec file (`.yaml`), or a generated module (`.py`)
    arch        a row of `leapgen list archs`; default: the present GPU's, or cpu without a GPU
    format      state format in place of the spec's; so are `records` and `smoothing`
    pin_config  one config for all batch sizes, so that results do not depend on the batch: the
                tuned one of the largest batch, or the default rule's
    cache       folder for modules that are not shipped and are generated now; default: the user's
    tables      folder of tuned configs (`leapgen tune --out`) in place of the shipped one. Those of
                the present device are used: exact shape and nearest batch, nearest heads, or none;
                records of other kernels than the module's are named in a warning and ignored
    picks       an alternative of each choice of the spec: `gate="lower_bound"`

    A shipped module is imported as it is. Window, compensators and dimensions are arguments of
    `Module.allocate`, not of this call.

    Raises UnknownModule, Diagnostics for a spec or picks that are wrong, ArchError, NotAModule.
    """
    if Path(name).suffix == ".py":
        return _tuned(_generated(Path(name)), tables, pin_config)
    row = present_arch() if arch is None else arch_named(arch)
    path = _spec(str(name))
    shipped = None
    if path.parent == paths.data("specs") and records is None and smoothing is None:
        shipped = _shipped(path.stem, row, picks, format)
    if shipped is not None:
        return _tuned(shipped, tables, pin_config)
    options = {"format": format, "records": records, "smoothing": smoothing}
    spec = loader.load(path, picks, options)
    default = spec if format is None else loader.load(path, picks)
    stem = module_stem(spec, default.state.format)
    made = assemble.store(stem, generate(spec, row, default.state.format), cache)
    if records is None and smoothing is None:
        return _tuned(made, tables, pin_config)
    return assemble.import_module(made)  # no table is of such a module


def _shipped(name: str, arch: Arch, picks: Mapping[str, str], format: str | None) -> Path | None:
    """The file under generated/ for these options, if it is there."""
    path = paths.data("specs") / f"{name}.yaml"
    spec = loader.load(path, picks, {"format": format})
    default = spec if format is None else loader.load(path, picks)
    file = paths.data("generated") / arch.name / f"{module_stem(spec, default.state.format)}.py"
    return file if file.is_file() else None


def _tuned(path: Path, folder: Path | None, pin: bool) -> Module:
    """The module of a file, with the configs that were tuned for the present device, if any."""
    module = assemble.import_module(path)
    # A copy with a host of another version stands alone.
    if type(module).__module__ != Module.__module__:
        return module
    device, places = present_device(module.arch)
    folder = folder or paths.data("tuning")
    names = [tuned_tables.path_of(folder, place, path.stem) for place in places]
    names = [name for name in names if name.is_file()]
    text = path.read_text(encoding="utf-8") if names else ""
    found = tuned_tables.usable(names, partial(kernel_digest, text), device)
    if not found and not pin:
        return module
    return module.with_table([record.tuned for record in found], pin=pin)


def present_device(arch: str) -> tuple[str, tuple[str, ...]]:
    """Name of the device at hand that runs an arch, and the folders of `tuning/` that may know it,
    the closest first: its product's, its arch's (predictions). No folder where nothing runs it."""
    import torch

    row = arch_named(arch)
    if not row.gpu:
        return row.name, (row.name,)
    if not torch.cuda.is_available():
        return "", ()
    if torch.cuda.get_device_capability() not in dict(row.targets):
        return "", ()
    name = torch.cuda.get_device_name()
    return name, (gpu_slug(row, name), row.name)


def gpu_slug(arch: Arch, name: str) -> str:
    """The folder of a device in `tuning/`: its product's, or by the driver's name if the table of
    archs does not know it."""
    try:
        return arch.device(name).slug
    except ArchError:
        return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def generate(spec: Spec, arch: Arch, default_format: str | None = None) -> str:
    """The chain from a spec to the text of its module."""
    return render(make_plan(derive(lower(spec)), spec.state, arch), spec, default_format).text


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
