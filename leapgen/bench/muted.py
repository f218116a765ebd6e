"""A backend that leaves out kernels on demand, so that parts of a call can be timed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leapgen.runtime.host import Backend, Module, TileLang


@dataclass
class Muted:
    """Compiles with `inner`; while a kernel's name is in `silent`, its launches do nothing."""

    inner: Backend
    silent: set[str] = field(default_factory=set)

    @property
    def device(self) -> str:
        """See Backend."""
        return self.inner.device

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """See Backend."""
        call = self.inner.compile(func, target, pass_configs)
        name = str(func.attrs["global_symbol"])

        def launch(*arguments: Any) -> Any:
            return None if name in self.silent else call(*arguments)

        return launch

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Leaves these kernels out."""
        self.silent |= set(names)
        try:
            yield
        finally:
            self.silent -= set(names)


def mutable(module: Module) -> tuple[Module, Muted]:
    """The module on such a backend, and the backend."""
    inner = module.backend or TileLang("cpu" if module.target == "c" else "cuda")
    backend = Muted(inner)
    return module.with_backend(backend), backend
