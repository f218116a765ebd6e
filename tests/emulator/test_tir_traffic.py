"""The traffic counter, against numbers worked out by hand and against what the emulator counts."""

from __future__ import annotations

from typing import Any

import emulated_kernels as kernels
import numpy as np
import pytest
import traffic_kernels

from leapgen.oracle.emulator import EmulatedKernel, LaunchFailed, from_prim_func
from leapgen.report.tir_machine import TirError
from leapgen.report.tir_narrow import narrow_products
from leapgen.report.tir_traffic import Amount, Traffic, count

ARCH = "sm_90a"
SLOTS = np.array([2, 0, 1], np.int32)
CURSOR = np.array([9, 9, 4, 7, 5, 99], np.int32)  # of slots 0, 1, 2 and two heads
STRIDES = {"records_slot": 1024, "cursor_slot": 2, "first": 1, "B": 3}


def windowed(block: int, **changes: Any) -> Traffic:
    arguments: dict[str, Any] = {
        "scalars": STRIDES, "ints": {"slots": SLOTS, "cursor": CURSOR}, "block": {"x": block},
    }  # fmt: skip
    return count(traffic_kernels.windowed(), ARCH, **(arguments | changes))


def windowed_arguments() -> dict[str, Any]:
    return {
        **STRIDES, "slots": SLOTS, "cursor": CURSOR.copy(),
        "records": np.ones(3 * 1024, np.float16), "o": np.zeros(6 * 64, np.float32),
    }  # fmt: skip


def test_records_are_counted_up_to_the_cursor() -> None:
    traffic = windowed(0)  # slot 2, head 0: cursor 5
    assert traffic["records", "read"] == Amount(bytes=5 * 128, distinct=5 * 128, sectors=5 * 4)
    assert traffic["cursor", "read"] == Amount(bytes=4 * 64, distinct=4, sectors=1)
    assert traffic["cursor", "write"] == Amount(bytes=4, distinct=4, sectors=1)
    assert traffic["o", "write"] == Amount(bytes=256, distinct=256, sectors=8)
    assert traffic["records", "write"] == Amount()
    assert traffic.total("write") == Amount(bytes=260, distinct=260, sectors=9)


def test_inactive_rows_touch_only_slots_cursor_and_output() -> None:
    overflow = windowed(1)  # slot 2, head 1: the cursor is out of range
    assert ("records", "read") not in overflow.entries
    assert ("cursor", "write") not in overflow.entries
    skipped = windowed(2)  # slot 0 is below `first`
    assert sorted(skipped.entries) == [("o", "write"), ("slots", "read")]


def test_given_contents_are_not_changed() -> None:
    before = CURSOR.copy()
    windowed(0)
    np.testing.assert_array_equal(CURSOR, before)


def test_vectors_loops_and_conditions() -> None:
    traffic = count(
        traffic_kernels.vectors(), ARCH, scalars={},
        ints={"n": np.array([5, 3, 0, 0], np.int32)}, block={}, threads=32,
    )  # fmt: skip
    # 512 wide, three rounds of eight bytes in one sector each, three bytes for all 32 threads
    assert traffic["x", "read"] == Amount(
        bytes=512 + 3 * 8 + 3 * 32, distinct=512 + 3 * 8 + 3, sectors=16 + 3 + 1
    )


def test_slot_through_shared_memory() -> None:
    ints = {"slots": np.arange(8, dtype=np.int32)}
    traffic = count(traffic_kernels.broadcast_slot(), ARCH, scalars={}, ints=ints, block={})
    assert traffic["slots", "read"] == Amount(bytes=4, distinct=4, sectors=1)
    assert traffic["x", "read"] == Amount(bytes=256, distinct=256, sectors=8)


@pytest.mark.parametrize(
    ("name", "x", "o"),
    [("bulk", ("read", 8192, 256), ("write", 8192, 256)),
     ("staged", ("read", 4096, 128), ("write", 4096, 128))],
)  # fmt: skip
def test_asynchronous_copies(name: str, x: tuple[str, int, int], o: tuple[str, int, int]) -> None:
    traffic = count(getattr(kernels, name)(), ARCH, scalars={}, ints={}, block={})
    assert traffic["x", x[0]] == Amount(x[1], x[1], x[2])
    assert traffic["o", o[0]] == Amount(o[1], o[1], o[2])


def test_atomics_read_and_write() -> None:
    ints = {"x": np.full(256, 3, np.int32)}
    traffic = count(kernels.histogram(), ARCH, scalars={}, ints=ints, block={"x": 2})
    assert traffic["o", "read"] == traffic["o", "write"] == Amount(256, 4, 1)


def test_the_emulator_counts_the_same() -> None:
    kernel = from_prim_func(traffic_kernels.windowed(), checked=True)
    arguments = windowed_arguments()
    counts = kernel.launch(6, arguments)
    for name, found in counts.items():
        blocks = [windowed(block) for block in range(6)]
        read = sum((t[name, "read"] for t in blocks), Amount())
        written = sum((t[name, "write"] for t in blocks), Amount())
        assert (found.read_bytes, found.written_bytes) == (read.bytes, written.bytes), name
        if name != "o":  # its start is not known to be aligned to a sector
            assert found.read_sectors >= read.sectors


def test_what_is_not_known_is_an_error() -> None:
    with pytest.raises(TirError, match="depends on the parameter 'first', which is not given"):
        windowed(0, scalars={"records_slot": 1024, "cursor_slot": 2, "B": 3})
    with pytest.raises(
        TirError, match="'slot', which holds contents of 'slots', which are not given"
    ):
        windowed(0, ints={"cursor": CURSOR})
    with pytest.raises(
        TirError, match=r"'count', which holds .*contents of 'cursor', which are not"
    ):
        windowed(0, ints={"slots": SLOTS})
    with pytest.raises(TirError, match="index 5 is outside 'cursor', which has 5"):
        windowed(1, ints={"slots": SLOTS, "cursor": CURSOR[:5]})
    with pytest.raises(TirError, match="a read of 'records' at byte -"):
        windowed(0, scalars={**STRIDES, "records_slot": -1024})
    with pytest.raises(TirError, match="branch around an access depends on a floating-point value"):
        count(traffic_kernels.data_dependent(), ARCH, scalars={}, ints={}, block={})
    with pytest.raises(TirError, match=r"the call .*extern reaches global memory"):
        count(traffic_kernels.foreign(), ARCH, scalars={}, ints={}, block={})
    with pytest.raises(ValueError, match="the kernel has 64 threads a block, not 128"):
        windowed(0, threads=128)


def test_the_checker_finds_the_cursor_race() -> None:
    """Without the barrier a late warp reads the cursor that thread 0 has advanced already."""
    source = from_prim_func(traffic_kernels.windowed()).source
    kernel = EmulatedKernel(source.replace("__syncthreads();", ""), checked=True)
    arguments = windowed_arguments()
    with pytest.raises(LaunchFailed, match=r"race on byte \d+ of cursor"):
        kernel.launch(6, arguments)


def test_both_sides_on_request() -> None:
    traffic = count(
        traffic_kernels.data_dependent(), ARCH, scalars={}, ints={}, block={}, both=True
    )
    assert traffic["o", "write"] == Amount(256, 256, 8)


def test_assumed_variables() -> None:
    """A loop whose length follows from data: refused, or counted at a given length."""
    func = traffic_kernels.adaptive()
    with pytest.raises(TirError, match="range of loop 'i' depends on 'rounds', which holds"):
        count(func, ARCH, scalars={}, ints={}, block={})
    traffic = count(func, ARCH, scalars={}, ints={}, block={}, assumed={"rounds": 3})
    assert traffic["x", "read"] == Amount(bytes=256 + 3 * 256, distinct=4 * 256, sectors=4 * 8)


def test_wide_slot_arithmetic_passes() -> None:
    assert narrow_products(traffic_kernels.windowed(), ARCH, bounded={"cursor": 15}) == ()
    assert narrow_products(kernels.rows(), ARCH) == ()
    assert narrow_products(kernels.bulk(), ARCH) == ()  # a fixed grid of three blocks


def test_narrow_slot_arithmetic_is_found() -> None:
    found = narrow_products(traffic_kernels.windowed(wide=False), ARCH)
    assert {item.buffer for item in found} == {"cursor", "records"}
    assert any("records_slot" in item.expression for item in found)
    assert any("cursor_slot" in item.expression for item in found)
    assert "records: " in str(next(item for item in found if item.buffer == "records"))
