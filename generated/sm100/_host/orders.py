"""Orders of rows: hints by which a step that closes windows starts with rows that are due.

A block that closes a window takes about three times as long as one that does not; what starts in
the last part of a launch is waited for. So rows of that part that are due trade places with rows
before it that are not. The kernel finds the pairs itself, two launches ahead, and results do not
depend on them: whatever the slots hold, each row is at one place.

What a pool keeps for a number of rows, int32, all zero at first (every row at its own place):

    [rows * HV]        of each block: whose place its row takes (numbers of rows, exclusive or) times
                       four, and the turn, 0..2; read and written by that block alone
    [3, 3, rows]       what each turn has found: row -> k, if it is the k-th of the front that can
                       wait, -k, if it is the k-th of the rest that is due, or else 0; the rows of
                       the front that can wait; the others that are due
    [3]                how many of the latter (lower half) and of the former, turn by turn

Launch n reads what launch n - 1 has found, adds to what launch n + 1 will read, and empties the
counts of the launch after it: no block reads what another one of its launch writes. Counts are
added to atomically, each row once, and the order of that decides about nothing but places. So
steps of one pool and number of rows have to follow each other, in a stream or a graph.
"""

from __future__ import annotations

from typing import Any

import torch

from .pool import Pool

RESIDENT = 1024
"""Blocks of which a device holds all or nearly all at once: their order is of no use."""
TAIL = 1536
"""Blocks at the end of a launch that are too late for closing a window."""
MOST_ROWS = 32767
"""Counts of rows have half a word each."""


def front_rows(rows: int, HV: int) -> int:
    """How many of a launch's rows start early enough to close windows; 0: all, or it does not
    matter."""
    if not RESIDENT < rows * HV or rows > MOST_ROWS:
        return 0
    return max(rows // 4, rows - TAIL // HV)


def order_of(pool: Pool, rows: int) -> dict[str, Any]:
    """What a step that closes windows receives of the order of its rows."""
    HV = pool.shape.HV
    front = front_rows(rows, HV)
    if front and rows not in pool.orders:
        if pool.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            front = 0  # a graph would start each time with filling it
        else:
            size = rows * (HV + 9) + 3
            pool.orders[rows] = torch.zeros(size, dtype=torch.int32, device=pool.device)
    return {"order": pool.orders[rows], "front_rows": front} if front else {}
