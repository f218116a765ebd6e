"""Packed planes: every code at every place, and the bytes themselves."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen.formats.packing import PACKED, pack, unpack, widths


@pytest.mark.parametrize("bits", PACKED)
@pytest.mark.parametrize("signed", [True, False])
def test_every_code_at_every_place_comes_back(bits: int, signed: bool) -> None:
    low = -(1 << (bits - 1)) if signed else 0
    every = np.arange(low, low + (1 << bits)).astype(np.int8 if signed else np.uint8)
    for place in range(8):
        codes = np.zeros((len(every), 16), every.dtype)
        codes[:, place] = every
        codes[:, 8 + place] = every[::-1]
        planes = pack(codes, bits)
        back = unpack(planes, bits, signed)
        assert back.dtype == every.dtype
        assert (back == codes).all()
        assert [p.shape[-1] for p in planes] == [16 * w // 8 for w in widths(bits)]


def test_the_code_of_lower_index_has_the_lower_bits() -> None:
    (plane,) = pack(np.array([1, 2, 0xF, 0, 0, 0, 0, 8], np.uint8), 4)
    assert plane.tolist() == [0x21, 0x0F, 0, 0x80]
    low, high = pack(np.array([0x21, 0x3F, 0x10, 0, 0, 0, 0, 0x30], np.uint8), 6)
    assert low.tolist() == [0xF1, 0, 0, 0]
    assert high.tolist() == [0b00_01_11_10, 0b11_00_00_00]
    low, high = pack(np.array([0x10, 0xF, 0x1F, 0, 0, 0, 0, 0x11], np.uint8), 5)
    assert low.tolist() == [0xF0, 0x0F, 0, 0x10]
    assert high.tolist() == [0b1000_0101]


@pytest.mark.parametrize("bits", PACKED)
def test_random_codes_of_many_tiles(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (3, 5, 128)).astype(np.int8)
    assert (unpack(pack(codes, bits), bits, True) == codes).all()
    size = sum(p.nbytes for p in pack(codes, bits))
    assert size == codes.size * bits // 8
