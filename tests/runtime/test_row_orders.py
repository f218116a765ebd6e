"""When a launch has an order of rows, and how long a pool keeps it."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leapgen.runtime.host import orders
from leapgen.runtime.ops import Family


@pytest.mark.parametrize(
    ("rows", "HV", "front"),
    [(1, 32, 0), (39, 32, 0), (40, 32, 10), (64, 32, 16), (128, 32, 80), (256, 32, 208),
     (257, 32, 0), (32, 64, 8), (20, 64, 5), (8192, 1, 6656), (2000, 1, 500)],
)  # fmt: skip
def test_front_of_a_launch(rows: int, HV: int, front: int) -> None:
    assert orders.front_rows(rows, HV) == front


def test_more_rows_than_a_count_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST", 1 << 20)
    assert orders.front_rows(orders.MOST_ROWS, 1)
    assert orders.front_rows(orders.MOST_ROWS + 1, 1) == 0


def a_pool(device: str) -> Any:
    return SimpleNamespace(shape=SimpleNamespace(HV=32), orders={}, device=torch.device(device))


def test_an_order_is_made_once() -> None:
    pool = a_pool("cpu")
    first, again = orders.order_of(pool, 64), orders.order_of(pool, 64)
    assert first["order"] is again["order"] is pool.orders[64]
    assert first["order"].shape == (64 * (32 + 9) + 3,)
    assert not first["order"].any()
    assert orders.order_of(pool, 8) == {}
    assert [*pool.orders] == [64]


def test_a_graph_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill it at each replay, and later launches would find it unfilled before that."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    pool = a_pool("cuda")
    assert orders.order_of(pool, 64) == {}
    assert not pool.orders
    pool.orders[64] = torch.zeros(1)
    assert orders.order_of(pool, 64)["order"] is pool.orders[64]


def test_operators_keep_orders_as_long_as_the_pool() -> None:
    """Longer than the bound steps, as graphs may hold them."""
    family = Family.__new__(Family)
    family._orders = {}
    tensor = torch.zeros(1)
    kept = family._orders_of(tensor)
    kept[64] = torch.zeros(1)
    assert family._orders_of(tensor) is kept
    del tensor
    gc.collect()
    assert not family._orders
