"""Draft tokens: verified in one pass, kept or dropped later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .arguments import Arguments
from .checks import check_range, check_tensor
from .errors import refuse
from .pool import Pool

# What a flush does first with the drafts that are pending.
COMMIT, FORGET, LEAVE = 1, 0, -1


class Drafts(Arguments):
    """Adds verify and commit, and what drops drafts that other calls leave behind."""

    def verify(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *inputs: torch.Tensor,
        lengths: torch.Tensor | None = None,
        accepted: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """Draft tokens of every row, all in one pass over its slot; none is committed. They wait in
        the slot for `commit`, or for the next verify with `accepted`; any other token drops them.

        slots     as in `step`, but each at most once
        inputs    in the module's order, [rows, tokens, heads, axis]; constants as in `step`. At
                  most as many tokens as the pool has drafts
        lengths   int32 [rows]: how many of the tokens a row has, 0..tokens (absent: all). A plain
                  row among speculative ones has one, which the next call accepts
        accepted  int32 [rows]: first commit so many of the drafts before (absent: none of them)
        check     synchronise, and name the row of a bad slot, cursor or length
        Returns `out`, [rows, tokens, HV, V]; zeros in inactive rows and beyond a row's length.
        """
        rows, values = self._draft_rows(pool, slots, first_slot)
        tokens = self._tokens(pool, rows, inputs)
        out = self._operands(pool, {"row": rows, "token": tokens}, inputs, out, values)
        values |= {"num_tokens": tokens, "has_lengths": int(lengths is not None)}
        values |= self._optional("lengths", lengths, slots, pool)
        values |= self._optional("accepted", accepted, slots, pool)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
            check_range("lengths", lengths, slots, first_slot, tokens)
            check_range("accepted", accepted, slots, first_slot, None)
        if rows:
            names = ("flush", "verify") if accepted is not None else ("verify",)
            kernels = [self.kernel(name, pool, rows) for name in names]
            self._run(kernels, pool, {**values, "accepting": COMMIT}, check)
        return out

    def commit(
        self,
        pool: Pool,
        slots: torch.Tensor,
        accepted: torch.Tensor,
        *,
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Keep the first `accepted` drafts of every row (int32 [rows]; at most those that are
        pending, at least none) and forget the others; then flush the slots whose window is full. A
        flush folds all that is committed, beyond the window's end too."""
        rows, values = self._draft_rows(pool, slots, first_slot)
        check_tensor("accepted", accepted, (rows,), torch.int32, pool.device)
        values |= self._optional("accepted", accepted, slots, pool)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
            check_range("accepted", accepted, slots, first_slot, None)
        self._launch("flush", pool, rows, {**values, "accepting": COMMIT}, check)

    def _drop(self, pool: Pool, rows: int, values: Mapping[str, Any], check: bool = False) -> None:
        """Forgets the drafts of the rows' slots; only pools that can have some take the launch."""
        if pool.shape.D:
            self._launch("flush", pool, rows, {**values, **no_drafts(pool)}, check)

    def _begin(
        self, name: str, pool: Pool, rows: int, values: Mapping[str, Any], check: bool
    ) -> None:
        """Launches what gives slots another content, and drops the drafts of the one before."""
        names = (name, "flush") if pool.shape.D else (name,)
        kernels = [self.kernel(name, pool, rows) for name in names] if rows else []
        self._run(kernels, pool, {**values, **no_drafts(pool)}, check)

    def _draft_rows(
        self, pool: Pool, slots: torch.Tensor, first_slot: int
    ) -> tuple[int, dict[str, Any]]:
        rows, values = self._rows(pool, slots, first_slot)
        if not self.windowed:
            raise refuse("format", "one with a window, as drafts are records", self.format)
        if not pool.shape.D:
            raise refuse("pool", "one allocated with drafts", "drafts=0")
        return rows, values

    def _tokens(self, pool: Pool, rows: int, inputs: Sequence[torch.Tensor]) -> int:
        """Tokens a row, from the first input that has them."""
        for spec, tensor in zip(self.inputs, inputs, strict=False):
            if not spec.constant:
                dims = list(tensor.shape) if isinstance(tensor, torch.Tensor) else []
                if len(dims) != 3 + bool(spec.axis):
                    sizes = spec.sizes((rows,), pool.shape)
                    expected = f"shape [{sizes[0]}, tokens, {str(list(sizes[1:]))[1:]}"
                    raise refuse(spec.name, expected, dims or type(tensor).__name__)
                if dims[1] > pool.shape.D:
                    expected = f"at most {pool.shape.D} tokens a row, the pool's drafts"
                    raise refuse(spec.name, expected, dims[1])
                return dims[1]
        return 0


def no_drafts(pool: Pool, accepting: int = FORGET) -> dict[str, Any]:
    """What a flush receives that commits no drafts; it then looks at no `accepted`."""
    return {"accepted": pool.arguments["status"], "accepted_row": 0, "accepting": accepting}
