"""Codes of 4, 5, 6 and 8 bits in byte planes: a plane of nibbles, and one of what is above them.

Planes rather than 3 bytes for 4 codes of 6 bits, so that every load stays aligned: a value channel
of 128 keys is 64 bytes of nibbles, and 32 (6 bits) or 16 (5 bits) bytes of high parts. In each
plane the code of lower index has the lower bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

PACKED = (4, 5, 6)
"""Widths that are packed; other codes are stored as they are."""


def widths(bits: int) -> tuple[int, ...]:
    """Bits of a code in each plane."""
    return (4,) if bits == 4 else (4, bits - 4)


def pack(codes: npt.NDArray[Any], bits: int) -> tuple[U8, ...]:
    """Planes [..., n * width // 8] of codes [..., n]; n is a multiple of 8.

    Only the low `bits` bits of a code count, so that signed codes are stored in two's complement.
    """
    raw = codes.astype(np.uint8)
    planes, shift = [], 0
    for width in widths(bits):
        part = raw >> np.uint8(shift) & np.uint8((1 << width) - 1)
        each = 8 // width
        lanes = part.reshape(*part.shape[:-1], -1, each)
        place = (np.arange(each) * width).astype(np.uint8)
        planes.append(np.bitwise_or.reduce(lanes << place, axis=-1).astype(np.uint8))
        shift += width
    return tuple(planes)


def unpack(planes: tuple[U8, ...], bits: int, signed: bool) -> npt.NDArray[Any]:
    """Codes [..., n] of planes: int8 in two's complement where signed, else uint8."""
    out, shift = None, 0
    for plane, width in zip(planes, widths(bits), strict=True):
        each = 8 // width
        place = (np.arange(each) * width).astype(np.uint8)
        lanes = plane[..., None] >> place & np.uint8((1 << width) - 1)
        part = lanes.reshape(*plane.shape[:-1], -1) << np.uint8(shift)
        out = part if out is None else out | part
        shift += width
    assert out is not None
    if not signed:
        return out.astype(np.uint8)
    sign = np.uint8(1 << (bits - 1))
    return ((out ^ sign).astype(np.int16) - np.int16(sign)).astype(np.int8)
