"""GPU modules on a machine without a GPU: kernels run by the emulator over CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leapgen.oracle.emulator import EmulatedKernel, lower


@dataclass(frozen=True)
class Emulator:
    """A backend for `Module.with_backend`: emitted CUDA text, compiled by g++, thread by thread.

    seed     order of blocks and threads; 0 is ascending, any other number a random order
    checked  watch every access: races, bounds, alignment (about ten times slower). Equal stores to
             `status` are meant, and matrix instructions may have columns that nobody wrote
    """

    seed: int = 1
    device: str = "cpu"
    checked: bool = False

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., None]:
        """See `host.Backend`."""
        if isinstance(target, str):
            raise ValueError(f"target: expected a CUDA target to emulate, found {target}")
        configs = {"tl.disable_safe_memory_legalize": True, **pass_configs}
        lowered = lower(func, target["arch"], configs)
        kernel = EmulatedKernel(
            lowered.source,
            lowered.threads,
            kernel=lowered.kernel,
            dynamic_bytes=lowered.shared_bytes,
            checked=self.checked,
        )
        names = [func.buffer_map[p].name if p in func.buffer_map else p.name for p in func.params]
        grid = _Grid(lowered.device)

        def launch(*arguments: Any) -> None:
            values = dict(zip(names, arguments, strict=True))
            lengths = {f"n_{k}": v.numel() for k, v in values.items() if hasattr(v, "numel")}
            values |= lengths
            kernel.launch(
                grid.extents(values),
                values,
                seed=self.seed,
                races_allowed=("status",),
                unwritten_allowed=True,
            )

        return launch


class _Grid:
    """Extents of the grid, as functions of a kernel's scalar arguments."""

    def __init__(self, device: Any) -> None:
        extents = device.attrs["thread_extent"]
        self._extents = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]

    def extents(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        """Numbers of blocks."""
        return tuple(_number(e, values) for e in self._extents)


def _number(expression: Any, values: Mapping[str, Any]) -> int:
    """An integer expression of TIR over scalar arguments."""
    from tilelang import tvm

    if isinstance(expression, int):
        return expression
    found: dict[Any, Any] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Var):
            found[node] = tvm.tirx.IntImm(node.dtype, int(values[node.name]))

    tvm.tirx.stmt_functor.post_order_visit(tvm.tirx.Evaluate(expression), visit)
    number = tvm.arith.Analyzer().simplify(
        tvm.tirx.stmt_functor.substitute(expression, found) if found else expression
    )
    return int(number)
