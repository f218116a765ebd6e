"""Kernels whose needs are known: one modest, one that must spill."""

from __future__ import annotations

from typing import Any

import tilelang.language as T


def doubled() -> Any:
    """96 threads, one float a thread in dynamic shared memory."""

    @T.prim_func
    def main(x: T.Tensor((960,), "float32"), o: T.Tensor((960,), "float32")):
        with T.Kernel(10, threads=96) as bid:
            tx = T.get_thread_binding()
            s = T.alloc_shared((96,), "float32")
            s[95 - tx] = x[bid * 96 + tx]
            T.sync_threads()
            o[bid * 96 + tx] = s[tx] * 2.0

    return main


def crowded() -> Any:
    """A hundred values a thread that are reversed in place, with room for eight blocks of 256."""

    @T.prim_func
    def main(x: T.Tensor((25600,), "float32")):
        with T.Kernel(1, threads=256):
            T.annotate_min_blocks_per_sm(8)
            tx = T.get_thread_binding()
            s = T.alloc_shared((256,), "float32", scope="shared")
            v = T.alloc_local((100,), "float32")
            for i in T.unroll(100):
                v[i] = x[i * 256 + tx]
            s[tx] = v[0]
            T.sync_threads()
            for i in T.unroll(100):
                x[i * 256 + tx] = v[i] * s[255 - tx] + v[99 - i]

    return main
