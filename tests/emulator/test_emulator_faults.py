"""Broken kernels: each must be caught, by name and place."""

from __future__ import annotations

import emulated_kernels as kernels
import numpy as np
import pytest
import torch

from leapgen.oracle.emulator import EmulatedKernel, LaunchFailed, from_prim_func
from leapgen.oracle.emulator.guard import Block, Guard


def broken(func: object, old: str, new: str, *, checked: bool = False) -> EmulatedKernel:
    """The emitted source of a kernel with one text replaced, and a proof that it was there."""
    kernel = from_prim_func(func)
    assert old in kernel.source
    return EmulatedKernel(kernel.source.replace(old, new), kernel.block, checked=checked)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_a_missing_barrier_changes_the_result_in_a_random_order() -> None:
    kernel = broken(kernels.reverse(), "__syncthreads();", "")
    x = np.arange(128, dtype=np.float32)
    for seed in (1, 2, 3):
        o = ones(128)
        kernel.launch(1, {"x": x, "o": o}, seed=seed)
        assert not np.array_equal(o, x[::-1])


def test_a_missing_barrier_is_a_race_in_every_order() -> None:
    kernel = broken(kernels.reverse(), "__syncthreads();", "", checked=True)
    for seed in (0, 1, 2):
        with pytest.raises(LaunchFailed, match="shared memory"):
            kernel.launch(1, {"x": ones(128), "o": ones(128)}, seed=seed)


def test_a_race_names_both_lines() -> None:
    source = from_prim_func(kernels.reverse(rounds=2)).source
    first, second = source.rsplit("__syncthreads();", 1)
    kernel = EmulatedKernel(first + second, checked=True)  # the second round overtakes the first
    with pytest.raises(LaunchFailed, match=r"race on byte \d+ of .*line \d+: .*line \d+: "):
        kernel.launch(1, {"x": ones(128), "o": ones(128)}, seed=0)


def test_blocks_that_write_the_same_place_are_a_race_unless_allowed() -> None:
    kernel = from_prim_func(kernels.shifted(), checked=True)
    arguments = {"x": ones(64), "o": ones(64), "offset": 0}
    with pytest.raises(LaunchFailed, match=r"race on byte 0 of o: .*another block"):
        kernel.launch(2, arguments, seed=0)
    kernel.launch(2, arguments, races_allowed=["o"])


@pytest.mark.parametrize("checked", [False, True])
def test_a_missing_wait_shows_old_data(checked: bool) -> None:
    kernel = broken(kernels.staged(), "tl::cp_async_wait<1>();", "", checked=checked)
    o = np.zeros((2, 512), np.float32)
    if checked:
        with pytest.raises(LaunchFailed, match="asynchronous copy is under way"):
            kernel.launch(1, {"x": ones(2, 512), "o": o})
    else:
        kernel.launch(1, {"x": ones(2, 512), "o": o})
        assert np.isnan(o[0]).all()
        assert not np.isnan(o[1]).any()


def test_a_bulk_copy_that_nobody_waits_for() -> None:
    wait = next(
        line for line in from_prim_func(kernels.bulk()).source.splitlines() if ".wait(" in line
    )
    kernel = broken(kernels.bulk(), wait, "")
    with pytest.raises(LaunchFailed, match="never waited for"):
        kernel.launch(3, {"x": ones(3, 2048), "o": ones(3, 2048)})


def test_unwritten_shared_memory_is_nan() -> None:
    o = ones(64)
    from_prim_func(kernels.unset()).launch(1, {"o": o})
    assert np.isnan(o[1::2]).all()
    assert (o[::2] == 1).all()
    with pytest.raises(
        LaunchFailed, match=r"read of byte \d+ of static shared memory, which is not"
    ):
        from_prim_func(kernels.unset(), checked=True).launch(1, {"o": o})
    from_prim_func(kernels.unset(), checked=True).launch(1, {"o": o}, unwritten_allowed=True)


def test_access_outside_a_buffer() -> None:
    far = {"x": ones(100), "o": np.zeros(64, np.float32), "offset": 5000}
    with pytest.raises(LaunchFailed, match=r"access at byte .* of x, which has 400"):
        from_prim_func(kernels.shifted()).launch(1, far)
    assert not far["o"].any()  # as before the launch
    before = {**far, "offset": -5000}
    with pytest.raises(LaunchFailed, match="bytes before the start of x"):
        from_prim_func(kernels.shifted()).launch(1, before)


def test_the_checker_sees_the_first_byte_outside() -> None:
    kernel = from_prim_func(kernels.shifted(), checked=True)
    arguments = {"x": ones(100), "o": ones(64), "offset": 36}
    kernel.launch(1, arguments)
    with pytest.raises(LaunchFailed, match="access at byte 400 of x, which has 400"):
        kernel.launch(1, {**arguments, "offset": 37}, seed=0)
    with pytest.raises(LaunchFailed, match="access 4 bytes before the start of x"):
        kernel.launch(1, {**arguments, "offset": -1}, seed=0)


def test_a_misaligned_vector() -> None:
    kernel = broken(
        kernels.shifted(), "o[((int)threadIdx.x)] =",
        "*(float4*)(o + 1) = make_float4(1, 1, 1, 1); o[((int)threadIdx.x)] =", checked=True,
    )  # fmt: skip
    with pytest.raises(LaunchFailed, match=r"byte 4 of o is not aligned to 16 bytes .line \d+"):
        kernel.launch(1, {"x": ones(64), "o": ones(64), "offset": 0})


def test_an_index_outside_a_local_array() -> None:
    store = "s[((int)threadIdx.x)] = v["
    kernel = broken(kernels.reverse(), store, store + "threadIdx.x + ", checked=True)
    with pytest.raises(LaunchFailed, match=r"index \d+ is outside a local array .line \d+"):
        kernel.launch(1, {"x": ones(128), "o": ones(128)})


def test_a_barrier_that_some_threads_never_reach() -> None:
    kernel = broken(
        kernels.reverse(), "__syncthreads();",
        "if (threadIdx.x < 64) __sync_thread_partial(1, 128);",
    )  # fmt: skip
    with pytest.raises(LaunchFailed, match=r"deadlock, 64 of 128 threads wait.*barrier"):
        kernel.launch(1, {"x": ones(128), "o": ones(128)})


def test_threads_that_return_early_do_not_hold_up_a_barrier() -> None:
    start = "  v[0] = x["
    kernel = broken(kernels.reverse(), start, "  if (threadIdx.x >= 96) return;\n" + start)
    x, o = np.arange(128, dtype=np.float32), ones(128)
    kernel.launch(1, {"x": x, "o": o})
    np.testing.assert_array_equal(o[32:96], x[::-1][32:96])
    assert np.isnan(o[:32]).all()  # their partners never wrote


def test_lanes_that_meet_in_different_collectives() -> None:
    kernel = broken(
        kernels.shuffles(), "tl::warp_reduce_sum(x",
        "(threadIdx.x % 2 ? __shfl_sync(~0u, 1.f, 0) : __shfl_xor_sync(~0u, 1.f, 1)) + (x",
    )  # fmt: skip
    with pytest.raises(LaunchFailed, match="lanes of one warp meet in"):
        kernel.launch(1, {"x": ones(64), "o": ones(7, 64)})


def test_a_mask_without_its_caller() -> None:
    kernel = broken(kernels.shuffles(), "tl::warp_reduce_sum(x", "__shfl_sync(0xffu, 1.f, 0) + (x")
    with pytest.raises(LaunchFailed, match="leaves out its caller"):
        kernel.launch(1, {"x": ones(64), "o": ones(7, 64)})


def test_an_mbarrier_without_initialisation() -> None:
    source = from_prim_func(kernels.bulk()).source
    init = next(line for line in source.splitlines() if ".init(" in line)
    with pytest.raises(LaunchFailed, match="before its initialisation"):
        broken(kernels.bulk(), init, "").launch(3, {"x": ones(3, 2048), "o": ones(3, 2048)})


def test_an_mbarrier_that_is_initialised_too_late_for_others() -> None:
    source = from_prim_func(kernels.bulk()).source
    fence = "tl::fence_barrier_init();"
    head, tail = source.split(fence)
    kernel = EmulatedKernel(head + fence + tail.replace("__syncthreads();", "", 1), checked=True)
    with pytest.raises(LaunchFailed, match="race on byte 0 of static shared memory: read"):
        kernel.launch(3, {"x": ones(3, 2048), "o": ones(3, 2048)}, seed=0)


def test_division_by_zero_ends_the_launch_and_not_the_process() -> None:
    kernel = broken(kernels.shifted(), "o[((int)threadIdx.x)] =", "o[64 / offset] =")
    with pytest.raises(LaunchFailed, match="division by zero"):
        kernel.launch(1, {"x": ones(64), "o": ones(64), "offset": 0})


def test_arguments_that_do_not_fit() -> None:
    kernel = from_prim_func(kernels.shifted())
    fine = {"x": ones(64), "o": ones(64), "offset": 0}
    with pytest.raises(ValueError, match="missing: offset"):
        kernel.launch(1, {"x": ones(64), "o": ones(64)})
    with pytest.raises(ValueError, match=r"o: elements of 4 bytes .float. expected, found 2"):
        kernel.launch(1, {**fine, "o": torch.zeros(64, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match="x: the array is not contiguous"):
        kernel.launch(1, {**fine, "x": torch.ones(128)[::2]})
    with pytest.raises(ValueError, match="x: an array expected, found float"):
        kernel.launch(1, {**fine, "x": 1.0})
    with pytest.raises(ValueError, match="3 arguments expected, found 1"):
        kernel.launch(1, [ones(64)])


def test_views_of_one_buffer_stay_aliased() -> None:
    memory = np.arange(256, dtype=np.float32)
    parts = [memory[:100], memory[50:200], memory[220:]]
    blocks = [Block(str(i), p.ctypes.data, p.nbytes) for i, p in enumerate(parts)]
    with Guard(blocks) as guard:
        assert [region.names for region in guard.regions] == [("0", "1"), ("2",)]
        assert guard.address(blocks[1]) - guard.address(blocks[0]) == 200
        for block in blocks:
            assert guard.address(block) % 64 == block.address % 64
    kernel = from_prim_func(kernels.shifted())
    kernel.launch(1, {"x": memory[:100], "o": memory[36:100], "offset": 36})
    np.testing.assert_array_equal(memory, np.arange(256, dtype=np.float32))
