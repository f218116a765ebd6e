"""The tensors of a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .checks import flat
from .descriptors import Shape

if TYPE_CHECKING:
    from .orders import Orders


class Pool(Mapping[str, torch.Tensor]):
    """The tensors that hold all slots of one layer; attributes and items by buffer name. In a slot,
    value heads that share record keys (those of one key head) stand at one cursor.

    slots      how many
    status     int32[4], sticky: [0] a slot id, [1] a cursor, [2] a length was out of range
    shape      shape-time numbers
    tag        the plan, payload order and shape it was made for
    forced     slots that checkpoints have flushed before their window was full
    orders     of the rows of steps, or none: see orders.py
    arguments  what kernels receive of it
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        status: torch.Tensor,
        shape: Shape,
        tag: str,
        arguments: Mapping[str, Any],
        orders: Orders | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self.slots = next(iter(self._tensors.values())).shape[0]
        self.status = status
        self.shape = shape
        self.tag = tag
        self.forced = 0
        self.orders = orders
        given = {"status": flat(status), "num_slots": self.slots}
        self.arguments = {**arguments, **given, "order": given["status"], "front_rows": 0}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getattr__(self, name: str) -> torch.Tensor:
        tensors: dict[str, torch.Tensor] = self.__dict__.get("_tensors", {})
        if name not in tensors:
            raise AttributeError(f"the pool has no {name!r}; its tensors: {', '.join(tensors)}")
        return tensors[name]

    def __repr__(self) -> str:
        forced = f", forced={self.forced}" if self.forced else ""
        return f"Pool({self.tag}, slots={self.slots}, device={self.device}{forced})"

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.status.device
