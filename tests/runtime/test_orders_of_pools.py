"""When a launch has an order of rows, and that no two launches that may overlap share one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leapgen.runtime.host import Launch, orders
from leapgen.runtime.host.orders import CAPTURED, EAGER, Orders
from leapgen.runtime.ops import Family

CPU = torch.device("cpu")
HELD = 792  # blocks of GDN's step that an H200 holds
ROWS, HV = 48, 32

Place = Callable[..., None]


@pytest.mark.parametrize(
    ("rows", "HV", "front"),
    [(1, 32, 0), (39, 32, 0), (40, 32, 10), (64, 32, 16), (128, 32, 79), (256, 32, 207),
     (260, 32, 0), (32, 64, 8), (19, 64, 0), (20, 64, 5), (8192, 1, 6608), (2000, 1, 500)],
)  # fmt: skip
def test_front_of_a_launch(rows: int, HV: int, front: int) -> None:
    assert orders.front_rows(rows, HV, HELD) == front


@pytest.mark.parametrize("held", [100, 740, 2000])
def test_the_rule_is_of_waves(held: int) -> None:
    """Half the heads and twice the rows are the same launch, and a GPU twice as large holds twice
    as many of its blocks."""
    for rows in (16, 64, 256, 1024):
        front = orders.front_rows(rows, 32, held)
        assert abs(orders.front_rows(2 * rows, 16, held) - 2 * front) <= 1
        assert abs(orders.front_rows(2 * rows, 32, 2 * held) - 2 * front) <= 1


def test_more_rows_than_a_count_holds() -> None:
    assert orders.front_rows(orders.MOST_ROWS, 1, orders.MOST_ROWS // 4)
    assert orders.front_rows(orders.MOST_ROWS + 1, 1, orders.MOST_ROWS // 4) == 0


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Sets the current stream, and the graph that is being captured."""

    def put(stream: int, graph: int = 0) -> None:
        monkeypatch.setattr(orders, "stream_and_capture", lambda device: (stream, graph))

    return put


def second(have: Orders, rows: int = ROWS) -> torch.Tensor | None:
    """That of the second launch of so many rows in succession."""
    have.find(rows)
    return have.find(rows)


def span(order: torch.Tensor | None) -> range:
    """Its words within the memory of all."""
    assert order is not None
    return range(order.storage_offset(), order.storage_offset() + len(order))


def test_an_order_is_made_once() -> None:
    have = Orders(64, HV, CPU)
    assert have.find(ROWS) is None
    order = have.find(ROWS)
    assert order is not None
    assert order is have.find(ROWS)
    assert order.shape == (ROWS * (HV + 9) + 3,)
    assert not order.any()
    assert second(have, 65) is None


def test_changing_numbers_of_rows_have_none() -> None:
    have = Orders(64, HV, CPU)
    assert not any(have.find(rows) is not None for rows in range(40, 64))


def test_launches_that_may_overlap_share_no_order(at: Place) -> None:
    """Some rows would be taken twice and others never: the blocks of one launch would find what the
    other one has written meanwhile."""
    have, spans = Orders(64, HV, CPU), []
    for stream, graph in ((7, 0), (8, 0), (7, 1), (7, 2), (8, 2)):
        for rows in (40, ROWS):
            at(stream, graph)
            spans.append(span(second(have, rows)))
            assert span(have.find(rows)) == spans[-1]
    words = [word for one in spans for word in one]
    assert len(set(words)) == len(words)


def test_a_full_memory(at: Place) -> None:
    """Outside of graphs, the oldest of the same stream goes; a graph keeps its own for ever."""
    have = Orders(64, HV, CPU)
    for rows in range(60, 60 + EAGER):
        order = second(have, rows)
        assert order is not None
        order.fill_(9)
    at(8)
    assert second(have) is None
    at(0)
    order = second(have)
    assert order is not None
    assert not order.any()
    assert second(have, 60) is not None
    assert len(have._eager) == EAGER
    for graph in range(1, CAPTURED + 1):
        at(0, graph)
        assert have.find(64) is not None
    at(0, CAPTURED + 1)
    assert have.find(64) is None
    at(0, 1)
    assert have.find(64) is not None


def test_a_capture_allocates_nothing(at: Place) -> None:
    """Memory of a graph is emptied at each replay, or used for something else between them."""
    have = Orders(64, HV, CPU)
    at(7, 1)
    assert have.find(ROWS) is None
    assert have._room is None
    have.allocate()
    assert have.find(ROWS) is not None


def test_a_driver_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(orders, "_capture_info", lambda: None)
    assert second(Orders(64, HV, torch.device("cuda", 0))) is None
    monkeypatch.setattr(orders, "_capture_info", lambda: lambda *_: 906)
    assert second(Orders(64, HV, torch.device("cuda", 0))) is None


def test_a_copy_is_another_pools() -> None:
    have = Orders(64, HV, CPU)
    other = copy.deepcopy(have)
    assert (other.rows, other.HV, other.device) == (64, HV, CPU)
    order, copied = second(have), second(other)
    assert order is not None
    assert copied is not None
    assert order.data_ptr() != copied.data_ptr()


def test_only_launches_that_close_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of them, those that the rule is for; others find the pool's status, and a front of 0."""
    monkeypatch.setattr(orders, "multiprocessors", lambda device: 132)
    shape, status = SimpleNamespace(HV=HV), torch.zeros(4)
    pool: Any = SimpleNamespace(shape=shape, device=CPU, arguments={"order": status})
    pool.orders = orders.orders_for(512, HV, 6, CPU)
    fused, plain = (Launch((), print, fused, blocks=6) for fused in (True, False))
    natural = {"order": status, "front_rows": 0}
    for rows, kernels in ((8, [fused]), (512, [fused]), (64, [plain]), (64, [fused])):
        assert orders.order_of(pool, rows, kernels) == natural
    found = orders.order_of(pool, 64, [fused])
    assert found["front_rows"] == 16
    assert found["order"] is pool.orders.find(64)
    pool.orders = orders.orders_for(39, HV, 6, CPU)
    assert pool.orders is None
    assert orders.order_of(pool, 64, [fused]) == natural


def test_operators_keep_orders_as_long_as_the_pool() -> None:
    """Longer than the bound steps, as graphs may hold them; allocated before any step."""
    family = Family.__new__(Family)
    family._orders = {}
    tensor, have = torch.zeros(1), Orders(64, HV, CPU)
    pool: Any = SimpleNamespace(orders=have, values=[tensor].__iter__)
    family.keep_orders(pool)
    assert family._orders[id(tensor)] is have
    assert have._room is not None
    family.keep_orders(pool)
    del tensor, pool
    gc.collect()
    assert not family._orders
