"""Our modules as contenders: a spec in one format, its plan, and the module that loads for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from leapgen import pipeline
from leapgen.bench.muted import Muted, mutable
from leapgen.report.subjects import need_compiler, prepare
from leapgen.runtime.host import Module
from leapgen.runtime.module import load
from leapgen.schedule import buffers
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

KERNELS = ("step", "flush", "load_state", "materialize", "copy", "reset")


class Sizes(TypedDict):
    """Keywords of the module's calls that take a shape."""

    H: int
    HV: int
    K: int
    V: int


@dataclass(frozen=True)
class Contender:
    """One module that takes part.

    path, digest   of the module's file: where generated/ keeps it, and the first 16 hexadecimal
                   digits of the SHA-256 of what was run
    backend        what launches it; can leave out kernels
    """

    spec: Spec
    plan: Plan
    module: Module
    backend: Muted
    path: str
    digest: str

    @property
    def name(self) -> str:
        """The format's name."""
        return self.plan.format.name

    @property
    def records(self) -> bool:
        """Whether tokens are recorded; otherwise each one rewrites the state."""
        return self.plan.buffer("cursor") is not None

    @property
    def windowed(self) -> bool:
        """Whether there is more than one place in a window."""
        return self.records and self.module.defaults["P"] > 1

    def sizes(self, H: int, HV: int) -> Sizes:
        """See Sizes; channels are the spec's."""
        return Sizes(H=H, HV=HV, K=self.spec.K, V=self.spec.V)

    def shape(self, H: int, HV: int) -> buffers.Shape:
        """As the plan counts. The window and the compensators are the module's own."""
        return buffers.Shape(**vars(self.module.shape(**self.sizes(H, HV))))

    def config(self, kernel: str, H: int, HV: int, rows: int) -> dict[str, Any]:
        """Tuning arguments of a kernel at a shape and a number of rows."""
        return dict(self.module.config(kernel, self.module.shape(**self.sizes(H, HV)), rows))

    def compile(self, kernel: str, H: int, HV: int, rows: int) -> None:
        """Compiles one kernel for a shape and a number of rows ahead of its first call."""
        pool = self.module.allocate(1, **self.sizes(H, HV))
        self.module.kernel(kernel, pool, rows)


def contender(
    spec: str, arch: str, picks: Mapping[str, str] | None = None, format: str | None = None
) -> Contender:
    """The module that `leapgen.load` gives, on a backend that can leave out kernels.

    Errors: Diagnostics, LeapgenError for unknown names, MissingTool.
    """
    need_compiler(arch_named(arch))
    prepare()
    chain = pipeline.compile(spec, arch, picks, format)
    chosen: dict[str, Any] = dict(picks or {})
    module, backend = mutable(load(spec, arch=arch, format=format, **chosen))
    file = Path(module.kernels["step"].build.__code__.co_filename)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return Contender(chain.spec, chain.plan, module, backend, chain.source.path, digest)
