"""Orders of rows: hints by which a step that closes windows starts early with rows that are due.

A block that closes a window takes about three times as long as one that does not, and a launch
waits for those that start in its last part. So rows of that part (the back) that are due trade
places with rows before it (the front) that are not. The kernel finds the pairs itself, two launches
ahead. Results do not depend on them: whatever the slots hold, each row stands at one place.

What a pool keeps for a number of rows, int32, all zero at first (every row at its own place):

    [rows * HV]   of each block, read and written by it alone: the row that it takes in place of its
                  own (their numbers' exclusive or), times four, and the turn, 0..2
    [3, 3, rows]  what was found in each turn: row -> k, if it is the k-th of the front that can
                  wait, -k, if it is the k-th of the back that is due, else 0; who waits; who is due
    [3]           how many are due (lower half) and can wait, turn by turn

Launch n reads what launch n - 1 has found, writes what launch n + 1 will read, and empties the
counts of launch n + 2: no block reads what another one of its launch writes, so what is read is
ordered by the ends of launches. Counts are added to atomically, once a row (relaxed: it matters
only that a number is given once), and chance there decides about places alone. Steps of one pool
and number of rows therefore have to follow each other: in a stream, in a graph or by events.
"""

from __future__ import annotations

from typing import Any

import torch

from .pool import Pool

FEWEST, MOST = 1280, 8192
"""Blocks of a launch from which, and up to which, it has an order; MOST = 0: none ever has. Fewer
run nearly all at once; for more, the wait at the end is shorter than what reading an order takes
(H200, 32 heads: 512 rows are 3 us faster in their natural order, 256 are 2 us slower)."""
TAIL = 1536
"""Blocks of the back: about two waves, as long as closing a window takes."""
MOST_ROWS = 32767
"""Counts of rows have half a word each."""


def front_rows(rows: int, HV: int) -> int:
    """How many rows of a launch are its front; 0: the order of all is natural."""
    if rows > MOST_ROWS or not FEWEST <= rows * HV <= MOST:
        return 0
    return max(rows // 4, rows - TAIL // HV)


def order_of(pool: Pool, rows: int) -> dict[str, Any]:
    """What a step that closes windows receives of the order of its rows."""
    HV = pool.shape.HV
    front = front_rows(rows, HV)
    if front and rows not in pool.orders:
        if pool.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            front = 0  # a graph would fill it anew each time
        else:
            size = rows * (HV + 9) + 3
            pool.orders[rows] = torch.zeros(size, dtype=torch.int32, device=pool.device)
    return {"order": pool.orders[rows], "front_rows": front} if front else {}
