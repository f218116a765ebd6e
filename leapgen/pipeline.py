"""The whole compiler on one page.

    parse -> Spec, lower -> Recurrence, derive -> Window, schedule -> Plan, render -> Source,
    load -> Module

Each arrow is one function, each noun one frozen dataclass. All but the last are pure: no torch, no
TileLang, no device, no clock. `compile` runs the pure ones and keeps every value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from leapgen import paths
from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.algebra.recurrence import Recurrence
from leapgen.algebra.window import Window
from leapgen.diagnostics import LeapgenError, listing
from leapgen.emit.render import Source, render
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import Plan, make_plan
from leapgen.spec import loader
from leapgen.spec.model import Spec

if TYPE_CHECKING:
    from leapgen.runtime.host import Module

__all__ = ["Chain", "compile", "derive", "load", "lower", "parse", "render", "schedule"]


@dataclass(frozen=True)
class Chain:
    """Every value between a spec file and the text of its module.

    default_format   the spec file's own; another one becomes part of the module's name
    """

    spec: Spec
    recurrence: Recurrence
    window: Window
    plan: Plan
    default_format: str

    @cached_property
    def source(self) -> Source:
        """The text, rendered when it is first asked for: much is known without it."""
        return render(self.plan, self.spec, self.default_format)


def compile(
    name: str, arch: str, picks: Mapping[str, str] | None = None, format: str | None = None
) -> Chain:
    """Runs the pure stages.

    name    a spec file, or the name of a shipped spec
    arch    a row of the table of architectures
    picks   choice -> alternative; the first one where absent
    format  state format in place of the spec's

    Raises:
        Diagnostics: everything that is wrong with the spec, or a native form that is not proved.
        LeapgenError: an unknown file, arch or format; a plan that cannot be.
    """
    row = arch_named(arch)
    spec = parse(name, picks, format)
    recurrence = lower(spec)
    window = derive(recurrence)
    plan = schedule(window, spec, row.name)
    return Chain(spec, recurrence, window, plan, parse(name, picks).state.format)


def parse(name: str, picks: Mapping[str, str] | None = None, format: str | None = None) -> Spec:
    """Spec file -> Spec. Raises Diagnostics, or LeapgenError if there is no such file."""
    path = paths.spec_file(name)
    if not path.is_file():
        shipped = listing(p.stem for p in paths.shipped_specs())
        raise LeapgenError(f"{name}: no such spec file; leapgen ships {shipped}")
    return loader.load(path, picks, {"format": format})


def schedule(window: Window, spec: Spec, arch: str) -> Plan:
    """Window -> Plan, with the state stored as the spec says."""
    return make_plan(window, spec.state, arch_named(arch))


def load(source: Source, cache: Path | None = None) -> Module:
    """Source -> Module: written with its host file to `cache` (default: the user's) and imported.

    Kernels compile when they are first called. Raises NotAModule.
    """
    from leapgen.runtime import assemble

    stem = Path(source.path).stem
    return assemble.import_module(assemble.store(stem, source.text, cache))
