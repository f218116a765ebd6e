"""A step that is checked once: the host's work of a call, cut to what changes between tokens.

`Module.step` validates every tensor and builds every kernel argument anew. An engine calls it with
the same pool, the same number of rows and, mostly, the same buffers for as long as it runs, so
`BoundStep` does that work once and afterwards looks only at tensors that are not those of the last
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.runtime.host.checks import check_tensor, check_writable
from leapgen.runtime.host.drafts import no_drafts
from leapgen.runtime.host.errors import refuse
from leapgen.runtime.host.orders import front_of, order_of


class _Port:
    """One tensor argument and the places of kernels' argument lists that follow from it."""

    def __init__(self, name: str, words: Sequence[str], end: str, check: Check) -> None:
        self.name, self.words, self.end, self.check = name, words, end, check
        self.tensor: torch.Tensor | None = None
        self.pointer = 0
        self.layout: tuple[Any, ...] = ()
        self.extent = 0
        self.places: list[tuple[list[Any], int]] = []
        self.strides: list[tuple[list[Any], int, str]] = []

    def find(self, names: Sequence[str], arguments: list[Any]) -> None:
        """Remember where the view and the strides stand in one kernel's arguments."""
        for index, name in enumerate(names):
            if name == f"{self.name}{self.end}":
                self.places.append((arguments, index))
            elif name in {f"{self.name}_{word}" for word in self.words}:
                self.strides.append((arguments, index, name))

    def view(self, module: Module, tensor: torch.Tensor) -> Values:
        """Arguments for another tensor than in the last call: only a new layout is checked and
        described. Nothing changes here, so that a call is refused as a whole."""
        if not isinstance(tensor, torch.Tensor) or _layout(tensor) != self.layout:
            return module._view(self.name, self.check(tensor), self.words, self.end)
        plain = tensor.detach() if tensor.requires_grad else tensor
        view = plain.as_strided((self.extent,), (1,))
        if module.target == "c" and view.dtype == torch.bfloat16:
            view = view.view(torch.uint16)
        return {f"{self.name}{self.end}": view}

    def take(self, tensor: torch.Tensor, values: Values) -> None:
        """Put a tensor's arguments where kernels get theirs from."""
        view = values[f"{self.name}{self.end}"]
        if len(values) > 1:
            for arguments, index, name in self.strides:
                arguments[index] = values[name]
            self.layout, self.extent = _layout(tensor), view.shape[0]
        for arguments, index in self.places:
            arguments[index] = view
        self.tensor, self.pointer = tensor, tensor.data_ptr()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What is checked of a tensor, and described to kernels."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


Check = Callable[[torch.Tensor], torch.Tensor]
Values = dict[str, Any]


def _direct(call: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function behind TileLang's tvm_ffi adapter, which otherwise walks over all
    parameters in Python at every call; anything else as it is."""
    adapter = getattr(call, "adapter", None)
    executable = getattr(adapter, "get_exportable_executable", None)
    if executable is None or getattr(adapter, "result_idx", True):
        return call
    found = executable()
    # Compiled now, it is linked by `jit`; from TileLang's cache it is a library already.
    function: Callable[..., Any] = (found.jit() if hasattr(found, "jit") else found).main
    return function


class BoundStep:
    """`Module.step` on one pool, with a fixed number of rows.

    Not for several threads at once. It keeps the tensors of the last call alive.

    module, pool  as in `Module.step`, and so are the errors: ArgumentError for a pool of another
                  module, CompileError
    slots, inputs, out  the first call's tensors, checked as `Module.step` checks them
    first_slot    rows whose slot is lower are inactive
    """

    def __init__(
        self,
        module: Module,
        pool: Pool,
        slots: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor,
        first_slot: int = 0,
    ) -> None:
        self.module, self.pool = module, pool
        self.rows, fixed = module._rows(pool, slots, first_slot)
        if len(inputs) != len(module.inputs):
            names = ", ".join(i.name for i in module.inputs)
            raise refuse("inputs", f"{len(module.inputs)} ({names})", len(inputs))
        self._ports = self._make_ports()
        self._launches: list[tuple[Callable[..., Any], list[Any]]] = []
        given = (slots, *inputs, out)
        views = [p.view(module, tensor) for p, tensor in zip(self._ports, given, strict=True)]
        kernels = module.step_kernels(pool, self.rows)
        values = {**pool.arguments, **fixed, **no_drafts(pool)}
        for view in views:
            values |= view
        self._kernels, self._ordered = kernels, bool(front_of(pool, self.rows, kernels))
        for launch in kernels:
            arguments = [values[name] for name in launch.names]
            for port in self._ports:
                port.find(launch.names, arguments)
            self._launches.append((_direct(launch.call), arguments))
        for port, tensor, view in zip(self._ports, given, views, strict=True):
            port.take(tensor, view)
        device = pool.device
        self._index = device.index if device.type == "cuda" else None

    def _make_ports(self) -> list[_Port]:
        """slots, the inputs in order, out."""
        pool, rows = self.pool, self.rows

        def checked(name: str, sizes: tuple[int, ...], dtype: torch.dtype) -> Check:
            return lambda tensor: check_tensor(name, tensor, sizes, dtype, pool.device)

        ports = [_Port("slots", ("row",), "", checked("slots", (rows,), torch.int32))]
        for spec in self.module.inputs:
            check = checked(spec.name, spec.sizes((rows,), pool.shape), DTYPES[spec.dtype])
            ports.append(_Port(spec.name, spec.strides(("row",)), "_in", check))
        out = checked("out", (rows, pool.shape.HV, pool.shape.V), DTYPES[self.module.output])
        words = ("row", "head", "axis")
        ports.append(_Port("out", words, "", lambda t: check_writable("out", out(t))))
        return ports

    def step(self, *tensors: torch.Tensor) -> None:
        """One committed token a row: slots, the inputs in the module's order, out. A tensor that
        is the last call's, or has its layout, is taken as it is; another layout is checked first.

        Errors: ArgumentError; ValueError for another number of tensors.
        """
        module, given = self.module, zip(self._ports, tensors, strict=True)
        if not self.rows:  # there is no memory that could be viewed
            for port, tensor in given:
                port.check(tensor)
            return
        others = [
            (port, tensor, port.view(module, tensor))
            for port, tensor in given
            # The pointer too: a parameter's data may have been exchanged under the same object.
            if tensor is not port.tensor or tensor.data_ptr() != port.pointer
        ]
        for port, tensor, values in others:
            port.take(tensor, values)
        self.run()

    def run(self) -> None:
        """Once more with the last call's tensors, whatever they hold now."""
        if self._ordered:
            self._order()
        index = self._index
        if index is None or torch.cuda.current_device() == index:
            for call, arguments in self._launches:
                call(*arguments)
            return
        with torch.cuda.device(index):
            for call, arguments in self._launches:
                call(*arguments)

    def _order(self) -> None:
        """Put the order of rows that the current stream has where kernels get it from."""
        found = order_of(self.pool, self.rows, self._kernels)
        for launch, (_, arguments) in zip(self._kernels, self._launches, strict=True):
            for index, name in enumerate(launch.names):
                if name in found:
                    arguments[index] = found[name]
