"""How a kernel receives its arguments, once they have been checked.

They are bound by the parameter names of the prim_func, in whatever order it declares them; a kernel
may leave out what it does not use:

* pool tensors by name, each a flat 1-D view that starts at the tensor's data pointer, with
  `<name>_slot` and, where the tile is not a scalar, `<name>_head`: int64, in units of 16 bytes
* `status`: int32[4] of the pool
* `slots` with `slots_row`; copy has `source`, `source_row`, `target`, `target_row` instead
* step: every input as a flat view `<name>_in` with `<name>_row`, `<name>_head`, `<name>_axis`,
  int64, in elements (`_row` only if not constant, `_axis` only if not a scalar); `out` likewise
* verify: as step, inputs and `out` with `<name>_token` behind `<name>_row`; `num_tokens` of a
  row; `lengths` and `lengths_row`, read if `has_lengths`; `pending`, a tensor of pools with drafts
* flush: in pools with drafts also `pending`, and what it does with them first, `accepting`: 1
  commits `accepted` of them (int32, with `accepted_row`), 0 forgets them, -1 neither
* materialize, load_state: `state` (fp32) with `state_row`, `state_head`, `state_key`,
  `state_value`; materialize also `state_whole`, int32: 1 if four neighbours along the contiguous
  axis are an aligned access; load_state `position` and `position_row` (0: one number for all)
* `num_rows`, `num_slots`, `first_slot`: int32

On `c`, where TileLang has no bf16, such tensors arrive as uint16 views. A tensor without elements
(no compensators) arrives as a spare one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .checks import check_tensor, check_writable, flat, integer, stride_argument
from .descriptors import DTYPES
from .errors import refuse
from .launch import Launches
from .pool import Pool


class Arguments(Launches):
    """Adds the checks of calls and the arguments that follow from them."""

    def _rows(
        self, pool: Any, slots: Any, first_slot: int, name: str = "slots"
    ) -> tuple[int, dict[str, Any]]:
        """Number of rows and arguments of a slot list, once it and the pool are seen to fit."""
        if not isinstance(pool, Pool):
            raise refuse("pool", "a Pool", type(pool).__name__)
        if pool.tag != (tag := self._tag(pool.shape)):
            raise refuse("pool", f"one made for {tag}", pool.tag)
        if not isinstance(slots, torch.Tensor) or slots.dim() != 1:
            found = list(slots.shape) if isinstance(slots, torch.Tensor) else type(slots).__name__
            raise refuse(name, "an int32 tensor [rows]", found)
        rows = slots.shape[0]
        check_tensor(name, slots, (rows,), torch.int32, pool.device)
        first = integer("first_slot", first_slot, 0)
        return rows, {**self._view(name, slots, ("row",)), "num_rows": rows, "first_slot": first}

    def _view(
        self, name: str, tensor: torch.Tensor, words: Sequence[str], end: str = ""
    ) -> dict[str, Any]:
        """A flat view and its strides in elements."""
        axes = zip(words, tensor.shape, tensor.stride(), strict=True)
        strides = {f"{name}_{w}": stride_argument(name, w, size, s) for w, size, s in axes}
        return {f"{name}{end}": flat(tensor, self.target == "c"), **strides}

    def _result(
        self,
        name: str,
        given: torch.Tensor | None,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        pool: Pool,
    ) -> torch.Tensor:
        if given is None:
            return torch.empty(sizes, dtype=dtype, device=pool.device)
        return check_writable(name, check_tensor(name, given, sizes, dtype, pool.device))

    def _inspect(
        self,
        pool: Pool,
        slots: torch.Tensor,
        first_slot: int,
        name: str = "slots",
        *,
        limit: int | None = None,
        unique: bool = True,
    ) -> None:
        """Names the first row whose slot is out of range or used twice, or whose cursors are not in
        0..limit or differ among value heads that share record keys. Synchronises."""
        seen: dict[int, int] = {}
        for row, slot in enumerate(slots.tolist()):
            if slot >= pool.slots:
                raise refuse(f"{name}[{row}]", f"a slot below {pool.slots}", slot)
            if unique and slot in seen:
                raise refuse(f"{name}[{row}]", "each slot once", f"{slot}, as in row {seen[slot]}")
            if slot >= first_slot:
                seen[slot] = row
        if limit is None or not seen or "cursor" not in pool:
            return
        cursors = pool["cursor"][torch.tensor([*seen], device=pool.device)].tolist()
        shared = any(b.role == "record" and b.heads == "H" for b in self.buffers)
        group = pool.shape.HV // pool.shape.H if shared else 1
        for (slot, row), heads in zip(seen.items(), cursors, strict=True):
            expected = "" if 0 <= min(heads) <= max(heads) <= limit else f"cursors in 0..{limit}"
            if heads != [c for c in heads[::group] for _ in range(group)]:
                expected = expected or f"one cursor for each {group} heads that share keys"
            if expected:
                raise refuse(f"{name}[{row}]", expected, f"{heads} in slot {slot}")

    def _operands(
        self,
        pool: Pool,
        rows: Mapping[str, int],
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor | None,
        values: dict[str, Any],
    ) -> torch.Tensor:
        """Checks inputs and output of a step or a verify and adds them to `values`; rows: names and
        sizes of the leading axes. Returns the output."""
        sizes, words = tuple(rows.values()), tuple(rows)
        if len(inputs) != len(self.inputs):
            names = ", ".join(i.name for i in self.inputs)
            raise refuse("inputs", f"{len(self.inputs)} ({names})", len(inputs))
        for spec, tensor in zip(self.inputs, inputs, strict=True):
            expected = spec.sizes(sizes, pool.shape)
            check_tensor(spec.name, tensor, expected, DTYPES[spec.dtype], pool.device)
            values |= self._view(spec.name, tensor, spec.strides(words), end="_in")
        expected = (*sizes, pool.shape.HV, pool.shape.V)
        out = self._result("out", out, expected, DTYPES[self.output], pool)
        values |= self._view("out", out, (*words, "head", "axis"))
        return out

    def _optional(
        self, name: str, given: torch.Tensor | None, slots: torch.Tensor, pool: Pool
    ) -> dict[str, Any]:
        """Arguments of a number a row; of the slots in its place where it is absent."""
        if given is not None:
            check_tensor(name, given, tuple(slots.shape), torch.int32, pool.device)
        return self._view(name, slots if given is None else given, ("row",))
