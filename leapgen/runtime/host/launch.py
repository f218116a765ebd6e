"""Compiles kernels when they are first asked for, and launches them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .allocation import Allocation
from .compilation import BUILD_ERRORS, TRACING, Launch, shorten
from .configs import key_of
from .descriptors import Shape
from .errors import CompileError
from .pool import Pool


class Launches(Allocation):
    """Adds compiled kernels to what a module is."""

    def prepare(self, pool: Pool) -> None:
        """Compile all that calls on a pool may launch, tuned configs of every number of rows
        included: nothing is compiled later, while requests wait or a CUDA graph is captured."""
        for name in self.kernels if pool.shape.D else self.plain_kernels:
            self.kernel(name, pool)
            for tuned in self._tuned(pool.shape, None):
                self.kernel(name, pool, tuned.rows * tuned.shape.HV // pool.shape.HV or 1)

    def kernel(self, name: str, pool: Pool, rows: int | None = None) -> Launch:
        """The compiled kernel for a pool's shape and device, at the `config` for some rows."""
        shape, device = pool.shape, pool.device
        rows = rows if self.table and not self.pinned else None
        pick = (name, shape, device, rows)
        if pick not in self._picked:
            config = self.config(name, shape, rows)
            key = key_of(kernel=name, shape=vars(shape), device=str(device), config=config)
            self._picked[pick] = self._made.get(
                key, lambda: self._compile(name, shape, device, config)
            )
        return self._picked[pick]

    def _compile(
        self, name: str, shape: Shape, device: torch.device, config: Mapping[str, Any]
    ) -> Launch:
        kernel, target = self.kernels[name], self._compile_target(device)
        try:
            with TRACING:
                func = kernel.build(*shape.builder_arguments, **config)
            call = self._runner.compile(func, target, kernel.pass_configs)
        except BUILD_ERRORS as error:
            where = f"{self.name} for {self.arch}, {name}, {shape}, config {dict(config)}"
            reason = f"{type(error).__name__}: {shorten(str(error))}"
            raise CompileError(f"{where}: {reason}") from None
        buffers = func.buffer_map
        names = tuple(buffers[p].name if p in buffers else p.name for p in func.params)
        return Launch(names, call, bool(config.get("fused")), config.get("min_blocks", 0))

    def _launch(
        self,
        name: str,
        pool: Pool,
        rows: int,
        values: Mapping[str, Any],
        check: bool,
    ) -> None:
        if rows:
            self._run([self.kernel(name, pool, rows)], pool, values, check)

    def _run(
        self, kernels: Sequence[Launch], pool: Pool, values: Mapping[str, Any], check: bool
    ) -> None:
        """Launches of one call. All are compiled before the first, so that none is left half done
        where one does not compile."""
        device, arguments = pool.device, {**pool.arguments, **values}
        cuda = device.type == "cuda"
        with torch.cuda.device(device) if cuda else contextlib.nullcontext():
            for launch in kernels:
                launch(arguments)
        if cuda and check:
            torch.cuda.synchronize(device)
