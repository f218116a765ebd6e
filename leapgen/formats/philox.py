"""Uniform draws for stochastic rounding: a function of seed, head, store and element alone.

Philox 4x32 with 10 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011). The
key is (seed, head) and the counter (block of four elements, store): neither the row nor the slot's
number enters, so that a copied slot goes on as its source would, and the count of stores does, so
that no two stores of a slot draw the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

MULTIPLY = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HIGH = np.uint64(32)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[U64, ...]:
    """Four words of 32 bits (in uint64) for each counter and key; arguments are broadcast."""
    c = [np.asarray(x, np.uint64) for x in counter]
    k = [np.asarray(x, np.uint64) & LOW for x in key]
    for i in range(10):
        low, high = (m * x for m, x in zip(map(np.uint64, MULTIPLY), (c[0], c[2]), strict=True))
        weyl = [(key + np.uint64(i * w & 0xFFFFFFFF)) & LOW for key, w in zip(k, WEYL, strict=True)]
        c = [(high >> HIGH) ^ c[1] ^ weyl[0], high & LOW, (low >> HIGH) ^ c[3] ^ weyl[1], low & LOW]
    return tuple(c)


def uniforms(
    stores: npt.NDArray[Any], heads: npt.NDArray[Any], K: int, V: int, seed: int = 0
) -> F32:
    """Draws [..., K, V] in [0, 1), multiples of 2^-24.

    stores   [...] how often each head's state was stored before
    heads    [...] the number of each value head
    Element (k, v) takes word i % 4 of block i // 4 with i = v*K + k; K*V is a multiple of 4.
    """
    block = np.arange(K * V // 4, dtype=np.uint64)
    store, head = (np.asarray(x)[..., None].astype(np.uint64) for x in (stores, heads))
    zero = np.uint64(0)
    words = philox((block, store, zero, zero), (np.uint64(seed), head))
    order = np.stack(words, axis=-1).reshape(*store.shape[:-1], V, K)
    draws: F32 = (np.swapaxes(order, -1, -2) >> np.uint64(8)).astype(np.float32)
    return draws * np.float32(2.0**-24)
