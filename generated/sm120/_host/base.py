"""What a module is: its plan as data, and the config that each of its kernels gets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any, Self

from .compilation import Backend, Launch, Once
from .configs import Tuned
from .descriptors import DRAFT_KERNELS, Buffer, Input, Kernel, Layout, Shape
from .errors import refuse


@dataclass(frozen=True)
class Base:
    """The data of a generated module.

    target    "c", or nvcc's names of the arch ("sm_90a"; "sm_120a", "sm_121a"): a device gets the
              one of its compute capability
    digest    of the plan; `spec`: of the spec with its format, equal for all archs
    defaults  K, V, P, R of `shape` where the caller gives none
    output    dtype of the step's output
    limits    (K, V, H, HV, P, R) -> None, or why the module cannot run that shape; with a D too,
              why it cannot verify so many drafts, or flush a window that they overrun
    """

    name: str
    arch: str
    target: str | tuple[str, ...]
    digest: str
    defaults: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    inputs: tuple[Input, ...]
    output: str
    kernels: Mapping[str, Kernel]
    layout: Layout
    spec: str = ""
    format: str = ""
    limits: Callable[..., str | None] | None = None
    backend: Backend | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    table: tuple[Tuned, ...] = ()
    pinned: bool = False
    _made: Once = field(default_factory=Once, init=False, repr=False, compare=False)
    _picked: dict[Hashable, Launch] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def with_backend(self, backend: Backend) -> Self:
        """The same module, compiled and launched by something else."""
        return replace(self, backend=backend)

    def with_configs(self, **configs: Mapping[str, Any]) -> Self:
        """The same module with these configs, by kernel, in place of the default rule's."""
        for kernel in configs:
            if kernel not in self.kernels:
                raise refuse("configs", f"one of {', '.join(self.kernels)}", kernel)
        return self._changed(configs={**self.configs, **configs})

    def with_table(self, table: Sequence[Tuned], *, pin: bool = False) -> Self:
        """The same module with tuned configs in place of the default rule's; see `config`.

        pin   one config for all batch sizes, so that results do not depend on the batch: that of
              the largest number of rows
        """
        return self._changed(table=tuple(table), pinned=pin)

    def _changed(self, **fields: Any) -> Self:
        changed = replace(self, **fields)
        object.__setattr__(changed, "_made", self._made)  # compiled kernels are kept by config
        return changed

    def config(self, name: str, shape: Shape, rows: int | None = None) -> Mapping[str, Any]:
        """The config of a kernel for a number of rows (None: the largest that was tuned).

        From `with_configs`; else from the table, if it has the shape's K, V, P, R, D: of the same
        heads, or else of the nearest ratio and number of heads, the nearest number of rows; else
        by the default rule of arch and shape.
        """
        if name in self.configs:
            return self.configs[name]
        for tuned in self._tuned(shape, rows)[:1]:
            if name in tuned.configs:
                return tuned.configs[name]
        return self.kernels[name].config(*shape.builder_arguments)

    def _tuned(self, shape: Shape, rows: int | None) -> list[Tuned]:
        """Records that may serve a shape, the best one first."""

        def kin(s: Shape) -> tuple[int, ...]:
            return (s.K, s.V, s.P, s.R, s.D)

        def far(tuned: Tuned) -> tuple[Any, ...]:
            other = tuned.shape
            heads = log2(other.HV / shape.HV)
            group = abs(log2(other.HV / other.H) - log2(shape.HV / shape.H))
            apart = heads
            if rows and not self.pinned:  # blocks of a launch are rows * HV
                apart += log2(tuned.rows / rows)
            return (other != shape, round(group, 9), round(abs(apart), 9), -tuned.rows)

        return sorted((t for t in self.table if kin(t.shape) == kin(shape)), key=far)

    @property
    def plain_kernels(self) -> tuple[str, ...]:
        """All that pools without drafts need."""
        return tuple(name for name in self.kernels if name not in DRAFT_KERNELS)

    @property
    def windowed(self) -> bool:
        """Whether tokens are recorded until a flush; otherwise every step rewrites the state."""
        return "flush" in self.kernels
