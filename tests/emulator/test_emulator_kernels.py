"""What TileLang emits, run on the CPU and compared with NumPy."""

from __future__ import annotations

import time

import emulated_kernels as kernels
import numpy as np
import pytest
import torch

from leapgen.oracle.emulator import from_prim_func

CHECKED = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
SEEDS = (0, 1, 2)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@CHECKED
def test_shuffles(checked: bool) -> None:
    kernel = from_prim_func(kernels.shuffles(), checked=checked)
    x = random(64)
    warps = x.reshape(2, 32)
    lane = np.arange(32)
    expected = [
        warps[:, lane ^ 5],
        warps[:, np.where(lane + 3 < 32, lane + 3, lane)],
        warps[:, np.where(lane >= 2, lane - 2, lane)],
        np.repeat(warps[:, 7:8], 32, axis=1),
        np.repeat(warps.sum(1, keepdims=True), 32, axis=1),
        np.repeat(warps.max(1, keepdims=True), 32, axis=1),
        np.repeat(warps.min(1, keepdims=True), 32, axis=1),
    ]
    for seed in SEEDS:
        o = np.zeros((7, 64), np.float32)
        kernel.launch(1, {"x": x, "o": o}, seed=seed)
        np.testing.assert_allclose(o, np.stack(expected).reshape(7, 64), rtol=1e-5, atol=1e-6)


@CHECKED
def test_shared_memory_and_barriers(checked: bool) -> None:
    kernel = from_prim_func(kernels.reverse(rounds=3), checked=checked)
    x = random(128)
    for seed in SEEDS:
        o = np.zeros(128, np.float32)
        kernel.launch(1, [o, x] if kernel.names[0] == "o" else [x, o], seed=seed)
        np.testing.assert_array_equal(o, x[::-1])


@CHECKED
@pytest.mark.parametrize("kind", ["int8", "fp16", "bf16"])
def test_matrix_instructions(kind: str, checked: bool) -> None:
    kernel = from_prim_func(kernels.matrix(kind), checked=checked)
    generator = torch.Generator().manual_seed(3)
    if kind == "int8":
        a, b = (
            torch.randint(-128, 128, (n, 32), generator=generator).to(torch.int8) for n in (16, 8)
        )
        c = torch.randint(-1000, 1000, (16, 8), generator=generator).int()
    else:
        dtype = torch.float16 if kind == "fp16" else torch.bfloat16
        a, b = (torch.randn((n, 16), generator=generator).to(dtype) for n in (16, 8))
        c = torch.randn((16, 8), generator=generator)
    expected = c.double() + a.double() @ b.double().T
    kernel.launch(1, {"a": a, "b": b, "c": c})
    torch.testing.assert_close(c.double(), expected, rtol=1e-6, atol=1e-5)


@CHECKED
def test_bulk_copy(checked: bool) -> None:
    kernel = from_prim_func(kernels.bulk(), checked=checked)
    x, o = random(3, 2048), np.zeros((3, 2048), np.float32)
    kernel.launch(3, {"x": x, "o": o})
    np.testing.assert_array_equal(o, 2 * x)


@CHECKED
def test_asynchronous_copies_in_groups(checked: bool) -> None:
    kernel = from_prim_func(kernels.staged(), checked=checked)
    x, o = random(2, 512), np.zeros((2, 512), np.float32)
    kernel.launch(1, {"x": x, "o": o})
    np.testing.assert_array_equal(o, np.stack([x[0] + 1, x[1, ::-1]]))


@CHECKED
def test_strides_lengths_and_inactive_rows(checked: bool) -> None:
    kernel = from_prim_func(kernels.rows(), checked=checked)
    assert kernel.names == ("lengths", "o", "slots", "x", "B", "first", "x_axis", "x_row")
    x = torch.randn(5, 4, 32, 3).bfloat16()  # every third element of a row is used
    lengths = torch.tensor([4, 0, 2, 3, 1], dtype=torch.int32)
    slots = torch.tensor([3, 0, 1, 4], dtype=torch.int32)
    o = torch.full((4 * 32,), 9.0).bfloat16()
    kernel.launch(
        4,
        {"x": x.flatten(), "lengths": lengths, "slots": slots, "o": o, "B": 4, "first": 1,
         "x_row": 4 * 32 * 3, "x_axis": 3, "unused": None},
    )  # fmt: skip
    expected = torch.zeros(4, 32)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 1:
            expected[row] = x[slot, : int(lengths[slot]), :, 0].float().sum(0)
    torch.testing.assert_close(o.view(4, 32), expected.bfloat16(), rtol=0.01, atol=0.01)
    assert o.view(4, 32)[1].abs().max() == 0


@CHECKED
def test_reductions_across_warps(checked: bool) -> None:
    kernel = from_prim_func(kernels.reduction(), checked=checked)
    x, o = random(64, 64), np.zeros((2, 64), np.float32)
    for seed in SEEDS:
        kernel.launch(1, {"x": x, "o": o}, seed=seed)
        np.testing.assert_allclose(o, np.stack([x.sum(1), x.max(0)]), rtol=1e-5, atol=1e-5)


@CHECKED
def test_inline_assembly(checked: bool) -> None:
    kernel = from_prim_func(kernels.helpers(), checked=checked)
    x, h, o = random(32), random(64).astype(np.float16), np.zeros((3, 32), np.float32)
    kernel.launch(1, {"x": x, "h": h, "o": o})
    expected = [np.exp2(x), np.full(32, np.abs(x).max()), h[1::2].astype(np.float32)]
    np.testing.assert_allclose(o, np.stack(expected), rtol=1e-6)


@CHECKED
def test_atomics_of_several_blocks(checked: bool) -> None:
    kernel = from_prim_func(kernels.histogram(), checked=checked)
    x = np.random.default_rng(0).integers(0, 8, (4, 64)).astype(np.int32)
    o = np.zeros(8, np.int32)
    kernel.launch(4, {"x": x, "o": o})
    np.testing.assert_array_equal(o, np.bincount(x.ravel(), minlength=8))


def test_no_block_runs_for_an_empty_grid() -> None:
    kernel = from_prim_func(kernels.reverse())
    o = np.zeros(128, np.float32)
    kernel.launch(0, {"x": random(128), "o": o})
    assert not o.any()


def test_a_block_with_many_barriers_is_fast() -> None:
    kernel = from_prim_func(kernels.reverse(threads=256, rounds=150))
    arguments = {"x": random(256), "o": np.zeros(256, np.float32)}
    times = []
    for _ in range(5):
        start = time.perf_counter()
        kernel.launch(1, arguments)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1, f"300 barriers of 256 threads take {min(times):.3f} s"


def test_counts_of_a_checked_launch() -> None:
    kernel = from_prim_func(kernels.bulk(), checked=True)
    counts = kernel.launch(3, {"x": random(3, 2048), "o": np.zeros((3, 2048), np.float32)})
    assert counts["x"].read_bytes == counts["o"].written_bytes == 3 * 2048 * 4
    assert counts["x"].read_sectors >= 3 * 2048 * 4 // 32
    assert counts["x"].written_bytes == counts["o"].read_bytes == 0
