"""Bytes of the order of rows, counted from the lowered step, against the model."""

from __future__ import annotations

import pytest
import torch
from generated_modules import FRAGMENT, GENERATED, HV, bench

from leapgen.runtime.host import DTYPES, orders
from leapgen.schedule.order import order_traffic

ROWS, FRONT, WINDOW = 6, 2, 16
TURN = 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_traffic_of_an_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 0 and 4 trade places in the next launch; at the one after it row 5 is due."""
    at = bench(GENERATED / "sm90" / f"{name}.py", FRAGMENT)
    pool = at.module.allocate(ROWS, H=HV // 2, HV=HV, K=at.K, V=at.V)
    pool.cursor[5] = WINDOW - 3
    pool.orders = orders.Orders(ROWS, HV, pool.device, True)
    for _ in range(2):
        words = pool.orders.find(ROWS)
    assert words is not None
    words[: ROWS * HV] = TURN
    found = words[ROWS * HV : -3].view(3, 3, ROWS)[TURN]
    found[0, 0], found[0, 4] = 1, -1
    found[1, 0], found[2, 0] = 0, 4
    words[-3 + TURN] = (1 << 16) + 1
    monkeypatch.setattr(orders, "front_rows", lambda rows, HV, held: FRONT)
    step = at.module.kernel("step", pool).call
    step.on, step.most = True, ROWS * HV
    inputs = [
        torch.zeros(x.sizes(ROWS, pool.shape), dtype=DTYPES[x.dtype]) for x in at.module.inputs
    ]
    at.module.step(pool, torch.arange(ROWS, dtype=torch.int32), *inputs)
    step.on = False
    model = order_traffic(at.shape, ROWS, found=FRONT + 1, trading=2)
    for line in model.lines:
        key, blocks = ("order", line.way), ROWS * HV
        assert sum(b[key].distinct for b in step.blocks) == round(blocks * line.amount.asked)
        # All rows of a kind are taken for the first that is found, and written to one place.
        same = 4 * (FRONT - 1) if line.way == "write" else 0
        assert step.union[key].distinct + same == round(blocks * line.amount.distinct)
