"""Orders of rows: hints by which a step that closes windows starts early with rows that are due.

A block that closes a window takes about three times as long as one that does not, and a launch
waits for those that start in its last part. So rows of that part (the back) that are due trade
places with rows before it (the front) that are not. The kernel finds the pairs itself, two launches
ahead. Results do not depend on them: whatever the slots hold, each row stands at one place.

What is kept for a number of rows, int32, all zero at first (every row at its own place):

    [rows * HV]   of each block, read and written by it alone: the row that it takes in place of its
                  own (their numbers' exclusive or), times four, and the turn, 0..2
    [3, 3, rows]  what was found in each turn: row -> k, if it is the k-th of the front that can
                  wait, -k, if it is the k-th of the back that is due, else 0; who waits; who is due
    [3]           how many are due (lower half) and can wait, turn by turn

Launch n reads what launch n - 1 has found, writes what launch n + 1 will read, and empties the
counts of launch n + 2: no block reads what another one of its launch writes, so what is read is
ordered by the ends of launches. Counts are added to atomically, once a row (relaxed: it matters
only that a number is given once), and chance there decides about places alone.

Two launches that overlap would take some rows twice and others never, if they had one order. So
each stream has its own, and each stream of each captured graph: launches of a stream follow each
other, and so do replays of a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from threading import RLock
from typing import Any

import torch

from .compilation import Launch
from .pool import Pool

FEWEST, MOST, TAIL = 1.6, 10.5, 2.0
"""In waves, as many blocks (a row and value head each) as the GPU holds at once: a launch has an
order from FEWEST to MOST of them, and TAIL are its back, about as long as closing a window takes.
Below, nearly all blocks start at once; above, the wait at the end, which does not grow, is shorter
than what reading an order takes, which does: `python -m leapgen.bench.row_orders` measures both."""
MOST_ROWS = 32767
"""Counts of rows have half a word each."""
EAGER, CAPTURED = 4, 20
"""Orders of a pool outside of graphs and, at least, in them; launches beyond have none."""


class Orders:
    """The orders of one pool. Their memory is allocated once and outside of graphs, as none that is
    empty at a replay can be had while a graph is captured.

    rows, HV  the most rows of a launch that has one, and value heads
    serial    launches follow each other, whatever their streams and graphs, and share their orders
    """

    def __init__(self, rows: int, HV: int, device: torch.device, serial: bool = False) -> None:
        self.rows, self.HV, self.device = rows, HV, device
        self._most, self._serial = order_words(rows, HV), serial
        self._room: torch.Tensor | None = None
        self._eager: dict[tuple[int, int], torch.Tensor] = {}
        self._captured: dict[tuple[int, int, int], torch.Tensor] = {}
        self._end = EAGER * self._most
        self._last: dict[int, int] = {}
        self._lock = RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies start empty: they are another pool's."""
        return Orders, (self.rows, self.HV, self.device, self._serial)

    def serial(self) -> Orders:
        """Others of the same size, still empty, for steps on one pool that stand for a layer."""
        return Orders(self.rows, self.HV, self.device, True)

    def allocate(self) -> torch.Tensor:
        """All memory; the first call waits until it is empty, whatever stream comes to use it."""
        with self._lock:
            if self._room is None:
                with torch.inference_mode(False):  # it may be emptied outside of it
                    words = (EAGER + CAPTURED) * self._most
                    room = torch.zeros(words, dtype=torch.int32, device=self.device)
                if room.is_cuda:
                    torch.cuda.current_stream(room.device).synchronize()
                self._room = room
            return self._room

    def find(self, rows: int) -> torch.Tensor | None:
        """The order of a launch on the device's current stream, or none."""
        place = (0, 0) if self._serial else stream_and_capture(self.device)
        if place is None or rows > self.rows:
            return None
        stream, capture = place
        with self._lock:
            if capture:
                return self._in_graph((capture, stream, rows))
            return self._outside((stream, rows))

    def _in_graph(self, key: tuple[int, int, int]) -> torch.Tensor | None:
        """Never used before: other graphs may replay at any time."""
        end = self._end + order_words(key[-1], self.HV)
        if key not in self._captured and self._room is not None and end <= len(self._room):
            self._captured[key] = self._room[self._end : end]
            self._end = end
        return self._captured.get(key)

    def _outside(self, key: tuple[int, int]) -> torch.Tensor | None:
        """From the second launch of so many rows in succession: where their number changes at each
        launch, none would ever find what an earlier one has left."""
        room, (stream, rows) = self.allocate(), key
        again, self._last[stream] = self._last.get(stream) == rows, rows
        if key not in self._eager and again:
            start = len(self._eager) * self._most
            if len(self._eager) == EAGER:
                # It is emptied behind all launches that have it: those of its own stream.
                old = next((known for known in self._eager if known[0] == stream), None)
                if old is None:
                    return None
                start = int(self._eager.pop(old).storage_offset())
            self._eager[key] = room[start : start + order_words(rows, self.HV)].zero_()
        return self._eager.get(key)


def order_words(rows: int, HV: int) -> int:
    """Length of an order."""
    return rows * (HV + 9) + 3


def front_rows(rows: int, HV: int, held: int) -> int:
    """How many rows of a launch are its front; 0: the order of all is natural. held: blocks that
    the GPU holds at once."""
    if rows > MOST_ROWS or not FEWEST * held <= rows * HV <= MOST * held:
        return 0
    return max(rows // 4, rows - int(TAIL * held) // HV)


def orders_for(slots: int, HV: int, blocks: int, device: torch.device) -> Orders | None:
    """Those of a new pool; none where it has too few slots. blocks: those of a multiprocessor."""
    held = blocks * multiprocessors(device)
    rows = min(slots, int(MOST * held) // HV, MOST_ROWS)
    return Orders(rows, HV, device) if front_rows(rows, HV, held) else None


def front_of(pool: Pool, rows: int, kernels: Sequence[Launch]) -> int:
    """`front_rows` of a step that launches these kernels; 0 too where no launch closes windows."""
    blocks = max((kernel.blocks for kernel in kernels if kernel.fused), default=0)
    if pool.orders is None or not blocks:
        return 0
    return front_rows(rows, pool.shape.HV, blocks * multiprocessors(pool.device))


def order_of(pool: Pool, rows: int, kernels: Sequence[Launch]) -> dict[str, Any]:
    """What the kernels of a step receive of the order of its rows, for the one launch to come."""
    front = front_of(pool, rows, kernels)
    order = pool.orders.find(rows) if front and pool.orders else None
    if order is None:
        order, front = pool.arguments["order"], 0
    return {"order": order, "front_rows": front}


@cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; none elsewhere."""
    cuda = device.type == "cuda"
    return torch.cuda.get_device_properties(device).multi_processor_count if cuda else 0


def stream_and_capture(device: torch.device) -> tuple[int, int] | None:
    """The current stream, and the number of the graph that is being captured there, unique in a
    process: 0 for none. None where the driver does not tell."""
    if device.type != "cuda":
        return 0, 0
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    status, number = ctypes.c_int(), ctypes.c_uint64()
    found = (ctypes.byref(status), ctypes.byref(number), None, None, None)
    if (ask := _capture_info()) is None or ask(ctypes.c_void_p(stream), *found):
        return None
    return stream, number.value if status.value else 0


@cache
def _capture_info() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None
