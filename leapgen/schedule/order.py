"""What the order of rows costs: bytes that a step which closes windows moves for it.

Beside what `schedule.traffic` counts, and only where the host hands an order to the step (see
`leapgen.runtime.host.orders`, which says what it holds).
"""

from __future__ import annotations

from leapgen.schedule.buffers import Shape
from leapgen.schedule.traffic import SECTOR, Amount, Line, Traffic
from leapgen.tensors import DTYPES

WORD = DTYPES["int32"].bytes


def order_traffic(shape: Shape, rows: int, found: int, trading: int) -> Traffic:
    """The mean over all blocks of a launch, a block a row and value head.

    found     rows of the front that can wait, and others that are due, at the launch after the next
    trading   rows that trade places in the next launch
    """
    blocks = rows * shape.HV
    counted = min(found, 1)
    read = _amount(blocks, rows + 1 + trading + counted, 2 * blocks + trading * shape.HV + found)
    write = _amount(blocks, rows + found + counted + 1, rows + 2 * found + 1)
    lines = (Line("order", "control", way, a) for way, a in (("read", read), ("write", write)))
    return Traffic("step, order", tuple(lines))


def _amount(blocks: int, shared: int, asked: int) -> Amount:
    """A word of each block's own, `shared` others in all, for which blocks ask `asked` times."""
    whole = -(-blocks * WORD // SECTOR) + shared
    return Amount(
        distinct=WORD * (blocks + shared) / blocks,
        sectors=SECTOR * whole / blocks,
        touched=SECTOR * (blocks + asked) / blocks,
        asked=WORD * (blocks + asked) / blocks,
    )
