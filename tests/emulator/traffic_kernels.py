"""Small TileLang kernels for the traffic counter and the check of address arithmetic.

No postponed annotations here: TileLang would not find the local names in them.
"""

from typing import Any

import tilelang.language as T


def windowed(wide: bool = True) -> Any:
    """The shape of a decode kernel: slots, a cursor in a local variable, records up to it.

    wide: strides and slot arithmetic in 64 bits; otherwise in 32, which must be found.
    """
    stride = "int64" if wide else "int32"
    Stride = T.int64 if wide else T.int32

    @T.prim_func
    def main(
        records: T.Tensor((T.dynamic("n_records", "int64"),), "float16"),
        cursor: T.Tensor((T.dynamic("n_cursor", "int64"),), "int32"),
        slots: T.Tensor((T.dynamic("B"),), "int32"),
        o: T.Tensor((T.dynamic("n_o", "int64"),), "float32"),
        records_slot: Stride,
        cursor_slot: Stride,
        first: T.int32,
    ):
        with T.Kernel(slots.shape[0] * 2, threads=64) as bid:
            tx = T.get_thread_binding()
            acc = T.alloc_local((1,), "float32")
            count = T.alloc_var("int32")
            slot = T.alloc_var(stride)
            base = T.alloc_var(stride)
            place = T.alloc_var(stride)
            slot = T.Cast(stride, slots[bid // 2])
            count = -1
            if slot >= first:
                place = slot * cursor_slot
                base = slot * records_slot
                count = cursor[place + bid % 2]
                if count > 15:
                    count = -1
            acc[0] = 0.0
            if count >= 0:
                for j in T.serial(count):
                    acc[0] += T.Cast("float32", records[base + j * 64 + tx])
            T.sync_threads()  # all have read the cursor
            if count >= 0:
                if tx == 0:
                    cursor[place + bid % 2] = count + 1
            o[T.Cast("int64", bid) * 64 + tx] = acc[0]

    return main


def vectors() -> Any:
    """Wide loads, a while loop, a select around a load, and a loop that ends early."""

    @T.prim_func
    def main(x: T.Tensor((1024,), "int8"), n: T.Tensor((4,), "int32"),
             o: T.Tensor((64,), "float32")):  # fmt: skip
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            z = T.alloc_local((16,), "int8")
            acc = T.alloc_local((1,), "float32")
            i = T.alloc_var("int32")
            for b in T.vectorized(16):
                z[b] = x[tx * 16 + b]
            acc[0] = T.Cast("float32", z[0])
            i = 0
            while i < n[0]:
                acc[0] += T.if_then_else(tx < 8, T.Cast("float32", x[512 + i * 32 + tx]), 0.0)
                i = i + 2
            for j in T.serial(10):
                if j >= n[1]:
                    T.loop_break()
                acc[0] += T.Cast("float32", x[960 + j])
            o[tx] = acc[0]

    return main


def data_dependent() -> Any:
    """Stores only where a floating-point value is positive."""

    @T.prim_func
    def main(x: T.Tensor((64,), "float32"), o: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if x[tx] > 0.0:
                o[tx] = x[tx]

    return main


def foreign() -> Any:
    """Hands a global pointer to a function that the counter does not know."""

    @T.prim_func
    def main(x: T.Tensor((64,), "float32"), o: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.import_source("static __device__ float lg_first(const float* p){return *p;}\n")
            tx = T.get_thread_binding()
            o[tx] = T.call_extern("float32", "lg_first", T.address_of(x[tx]))

    return main


def broadcast_slot() -> Any:
    """One thread reads the slot, all take it from shared memory."""

    @T.prim_func
    def main(x: T.Tensor((T.dynamic("n", "int64"),), "float32"), slots: T.Tensor((8,), "int32"),
             o: T.Tensor((64,), "float32")):  # fmt: skip
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((1,), "int32", scope="shared")
            if tx == 0:
                s[0] = slots[3]
            T.sync_threads()
            o[tx] = x[T.Cast("int64", s[0]) * 64 + tx]

    return main


def adaptive() -> Any:
    """One round, or four if the first element is large."""

    @T.prim_func
    def main(x: T.Tensor((320,), "float32"), o: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            acc = T.alloc_local((1,), "float32")
            rounds = T.alloc_var("int32")
            acc[0] = x[tx]
            rounds = 1
            if acc[0] > 10.0:
                rounds = 4
            for i in T.serial(rounds):
                acc[0] += x[64 + i * 64 + tx]
            o[tx] = acc[0]

    return main
