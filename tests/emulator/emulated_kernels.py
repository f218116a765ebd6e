"""Small TileLang kernels, one for each thing that the emulator has to get right."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

HELPERS = """
static __device__ __forceinline__ float lg_ex2(float x){float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;}
static __device__ __forceinline__ unsigned lg_largest(unsigned x){return __reduce_max_sync(0xffffffffu, x);}
static __device__ __forceinline__ float lg_upper(unsigned a){float y; asm("{.reg .b16 l,h; mov.b32 {l,h}, %1; cvt.f32.f16 %0, h;}" : "=f"(y) : "r"(a)); return y;}
"""  # noqa: E501


def shuffles() -> Any:
    @T.prim_func
    def main(x: T.Tensor((64,), "float32"), o: T.Tensor((7, 64), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            o[0, tx] = T.shfl_xor(x[tx], 5)
            o[1, tx] = T.shfl_down(x[tx], 3)
            o[2, tx] = T.shfl_up(x[tx], 2)
            o[3, tx] = T.shfl_sync(x[tx], 7)
            o[4, tx] = T.warp_reduce_sum(x[tx])
            o[5, tx] = T.warp_reduce_max(x[tx])
            o[6, tx] = T.warp_reduce_min(x[tx])

    return main


def reverse(threads: int = 128, rounds: int = 1) -> Any:
    """Each round reverses the vector through shared memory."""

    @T.prim_func
    def main(x: T.Tensor((threads,), "float32"), o: T.Tensor((threads,), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            s = T.alloc_shared((threads,), "float32", scope="shared")
            v = T.alloc_local((1,), "float32")
            v[0] = x[tx]
            for _ in T.serial(rounds):
                s[tx] = v[0]
                T.sync_threads()
                v[0] = s[threads - 1 - tx]
                T.sync_threads()
            o[tx] = v[0]

    return main


def matrix(kind: str) -> Any:
    """One m16n8 matrix product with operands in row-major (a) and column-major (b) order."""
    k = 32 if kind == "int8" else 16
    element = {"int8": "int8", "fp16": "float16", "bf16": "bfloat16"}[kind]
    out = "int32" if kind == "int8" else "float32"
    short = {"int8": "int32", "fp16": "fp32", "bf16": "fp32"}[kind]
    count = k // 8  # elements of a register, and of neighbours along k

    @T.prim_func
    def main(
        a: T.Tensor((16, k), element), b: T.Tensor((8, k), element), c: T.Tensor((16, 8), out)
    ):
        with T.Kernel(1, threads=32):
            lane = T.get_thread_binding()
            g = lane // 4
            t = lane % 4
            fa = T.alloc_local((4 * count,), element)
            fb = T.alloc_local((2 * count,), element)
            fc = T.alloc_local((4,), out)
            for half in T.unroll(2):
                for i in T.vectorized(count):
                    fa[2 * half * count + i] = a[g, half * 4 * count + t * count + i]
                for i in T.vectorized(count):
                    fa[(2 * half + 1) * count + i] = a[g + 8, half * 4 * count + t * count + i]
                for i in T.vectorized(count):
                    fb[half * count + i] = b[g, half * 4 * count + t * count + i]
            for i in T.unroll(4):
                fc[i] = c[g + i // 2 * 8, 2 * t + i % 2]
            T.ptx_mma(
                out, f"m16n8k{k}", "row", "col", kind, kind, short,
                fa.data, 0, fb.data, 0, fc.data, 0, T.bool(False),
            )  # fmt: skip
            for i in T.unroll(4):
                c[g + i // 2 * 8, 2 * t + i % 2] = fc[i]

    return main


def bulk(size: int = 2048) -> Any:
    """Doubles a tile that a bulk copy brings to shared memory."""

    @T.prim_func
    def main(x: T.Tensor((3, size), "float32"), o: T.Tensor((3, size), "float32")):
        with T.Kernel(3, threads=128) as bid:
            tx = T.get_thread_binding()
            s = T.alloc_shared((size,), "float32")
            mb = T.alloc_barrier(1)
            T.tma_copy(x[bid, :], s, barrier=mb)
            if tx == 0:
                T.barrier_arrive(mb)
            T.mbarrier_wait_parity(mb, 0)
            for i in T.unroll(size // 128):
                o[bid, i * 128 + tx] = s[i * 128 + tx] * 2.0

    return main


def staged() -> Any:
    """cp.async in two groups; the wait for the first leaves the second in flight."""

    @T.prim_func
    def main(x: T.Tensor((2, 512), "float32"), o: T.Tensor((2, 512), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((2, 512), "float32")
            for r in T.unroll(2):
                T.ptx_cp_async(
                    T.access_ptr(s[r, tx * 4], "w", 4), T.access_ptr(x[r, tx * 4], "r", 4), 4
                )
                T.ptx_commit_group()
            T.ptx_wait_group(1)
            for i in T.unroll(4):
                o[0, tx * 4 + i] = s[0, tx * 4 + i] + 1.0
            T.ptx_wait_group(0)
            T.sync_threads()
            for i in T.unroll(4):
                o[1, tx * 4 + i] = s[1, 511 - tx * 4 - i]

    return main


def rows() -> Any:
    """A row's sum up to a length in memory, through int64 strides; inactive rows give zero."""

    @T.prim_func
    def main(
        x: T.Tensor((T.dynamic("n_x", "int64"),), "bfloat16"),
        slots: T.Tensor((T.dynamic("B"),), "int32"),
        lengths: T.Tensor((T.dynamic("n_lengths", "int64"),), "int32"),
        o: T.Tensor((T.dynamic("n_o", "int64"),), "bfloat16"),
        x_row: T.int64,
        x_axis: T.int64,
        first: T.int32,
    ):
        with T.Kernel(slots.shape[0], threads=32) as bid:
            tx = T.get_thread_binding()
            acc = T.alloc_local((1,), "float32")
            slot = T.alloc_var("int64")
            slot = T.Cast("int64", slots[bid])
            acc[0] = 0.0
            if slot >= first:
                for i in T.serial(lengths[slot]):
                    index = T.Cast("int64", i)
                    lane = T.Cast("int64", tx)
                    acc[0] += T.Cast("float32", x[slot * x_row + (index * 32 + lane) * x_axis])
            o[bid * 32 + tx] = T.Cast("bfloat16", acc[0])

    return main


def reduction() -> Any:
    """Tile-level sums: inside a warp, and across four warps through shared memory."""

    @T.prim_func
    def main(x: T.Tensor((64, 64), "float32"), o: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((64, 64), "float32")
            row = T.alloc_fragment((64,), "float32")
            column = T.alloc_fragment((64,), "float32")
            T.copy(x, f)
            T.reduce_sum(f, row, dim=1)
            T.reduce_max(f, column, dim=0)
            T.copy(row, o[0, :])
            T.copy(column, o[1, :])

    return main


def helpers() -> Any:
    """Inline assembly and extern calls."""

    @T.prim_func
    def main(x: T.Tensor((32,), "float32"), h: T.Tensor((64,), "float16"),
             o: T.Tensor((3, 32), "float32")):  # fmt: skip
        with T.Kernel(1, threads=32):
            T.import_source(HELPERS)
            tx = T.get_thread_binding()
            pair = T.alloc_local((2,), "float16")
            word = T.view(pair, (1,), "uint32")
            for i in T.vectorized(2):
                pair[i] = h[2 * tx + i]
            o[0, tx] = T.call_extern("float32", "lg_ex2", x[tx])
            bits = T.call_extern("uint32", "lg_largest", T.reinterpret(T.abs(x[tx]), "uint32"))
            o[1, tx] = T.reinterpret(bits, "float32")
            o[2, tx] = T.call_extern("float32", "lg_upper", word[0])

    return main


def histogram() -> Any:
    @T.prim_func
    def main(x: T.Tensor((4, 64), "int32"), o: T.Tensor((8,), "int32")):
        with T.Kernel(4, threads=64) as bid:
            tx = T.get_thread_binding()
            T.atomic_add(o[x[bid, tx]], 1)

    return main


def unset() -> Any:
    """Reads a shared array of which only the even entries were written."""

    @T.prim_func
    def main(o: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "float32", scope="shared")
            if tx % 2 == 0:
                s[tx] = 1.0
            T.sync_threads()
            o[63 - tx] = s[63 - tx]

    return main


def shifted() -> Any:
    """Copies 64 elements from an offset, which the caller may choose too large."""

    @T.prim_func
    def main(x: T.Tensor((T.dynamic("n", "int64"),), "float32"), o: T.Tensor((64,), "float32"),
             offset: T.int64):  # fmt: skip
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            o[tx] = x[offset + tx]

    return main
