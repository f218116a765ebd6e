"""Payload orders: bijections, and the fragment order of the matrix instruction."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen.formats.table import FORMATS, NAMED
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.layout import (
    BLOCKS,
    FRAGMENT,
    LEVELS,
    PLAIN,
    WORDS,
    Layout,
    layout_source,
    payload_order,
)

SIZES = range(8, 257, 8)


def is_bijection(layout: Layout, K: int, V: int) -> bool:
    i = np.arange(K * V)
    maps = layout.functions
    k, v = maps["key"](i, K, V), maps["value"](i, K, V)
    inside = (k >= 0).all() and (k < K).all() and (v >= 0).all() and (v < V).all()
    return bool(inside and (maps["offset"](k, v, K, V) == i).all())


@pytest.mark.parametrize("K", SIZES)
def test_plain_is_a_bijection(K: int) -> None:
    assert all(is_bijection(PLAIN, K, V) for V in SIZES)


@pytest.mark.parametrize("layout", [FRAGMENT, BLOCKS], ids=["columns", "blocks"])
@pytest.mark.parametrize("K", [K for K in SIZES if K % 32 == 0])
def test_fragment_is_a_bijection(K: int, layout: Layout) -> None:
    assert all(is_bijection(layout, K, V) for V in SIZES if V % 16 == 0)


@pytest.mark.parametrize("layout", [FRAGMENT, BLOCKS], ids=["columns", "blocks"])
@pytest.mark.parametrize(("K", "V"), [(64, 48), (128, 128), (32, 16), (256, 80)])
def test_sixteen_bytes_of_a_lane_are_one_fragment(K: int, V: int, layout: Layout) -> None:
    """Rows of A are values, columns keys: PTX's m16n8k32 places element (row, column) of lane
    4g + t at row g + 8*(register % 2), column 4t + 16*(register // 2) + byte. Which value is row g
    and which key is column 4t is free; that rows share values and columns share keys is not."""
    i = np.arange(K * V).reshape(-1, 8, 4, 4, 4)  # fragment, g, t, register, byte
    k, v = layout.functions["key"](i, K, V), layout.functions["value"](i, K, V)
    row = v[:, :, :, :, :]
    assert (row == row[:, :, :1, :, :1]).all()  # a value depends on g and register only
    assert (row[..., 0, 0] == row[..., 2, 0]).all()
    assert (row[..., 1, 0] == row[..., 3, 0]).all()
    column = k
    assert (column == column[:, :1]).all()  # a key depends on t, register // 2 and byte only
    assert (column[..., 0, :] == column[..., 1, :]).all()
    assert (column[..., 2, :] == column[..., 3, :]).all()


@pytest.mark.parametrize(("K", "V"), [(64, 48), (128, 128), (32, 16), (256, 80)])
def test_a_fragment_of_blocks_has_the_keys_of_one(K: int, V: int) -> None:
    k = BLOCKS.functions["key"](np.arange(K * V).reshape(-1, 512), K, V) // 32
    assert (k == k[:, :1]).all()


def registers(bits: int, layout: Layout, K: int, V: int) -> np.ndarray:
    """[lane, fragment of a block, register, byte]: the tile's offset of each code, as a kernel that
    has a lane's words takes them apart."""
    scope: dict[str, object] = {}
    format = {5: "leap5", 6: "leap6", 4: "leap4-levels" if layout is LEVELS else "leapquant-int4"}[
        bits
    ]
    exec(layout_source(ARCHES["sm90"], NAMED[format]), scope)
    place = np.arange(K * V)
    found = []
    for width in {4: (4,), 5: (4, 1), 6: (4, 2)}[bits]:
        each = 8 // width
        codes = np.empty(K * V, int)
        codes[scope["plane_index"](place, each, K, V)] = place  # type: ignore[operator]
        assert (codes == scope["plane_code"](place, each, K, V)).all()  # type: ignore[operator]
        words = codes.reshape(-1, 4, each)  # word, byte, place in the byte
        found.append(words.transpose(0, 2, 1).reshape(-1, 8, 4))  # lane, shift of a word, byte
    assert all((other == found[0]).all() for other in found)
    lanes = found[0]
    if layout is LEVELS:  # four neighbouring nibbles choose the bytes of a register
        lanes = lanes.reshape(-1, 4, 2, 4).transpose(0, 1, 3, 2).reshape(-1, 8, 4)
    return lanes.reshape(-1, 2, 4, 4)


@pytest.mark.parametrize(("bits", "layout"), [(4, WORDS), (5, WORDS), (6, WORDS), (4, LEVELS)])
@pytest.mark.parametrize(("K", "V"), [(128, 128), (32, 32), (96, 192), (256, 96)])
def test_words_of_planes_are_fragments(bits: int, layout: Layout, K: int, V: int) -> None:
    assert is_bijection(layout, K, V)
    i = registers(bits, layout, K, V)
    k, v = layout.functions["key"](i, K, V), layout.functions["value"](i, K, V)
    lane = np.arange(len(i))
    t, g, block, warp = lane % 4, lane // 4 % 8, lane // 32 % (K // 32), lane // K
    for register in range(4):
        lo, hi = register % 2, register // 2
        for mt in range(2):
            value = 32 * warp + 4 * g + 2 * mt + lo
            assert (v[:, mt, register] == value[:, None]).all()
            key = (32 * block + 8 * t + 4 * hi)[:, None] + np.arange(4)
            assert (k[:, mt, register] == key).all()


@pytest.mark.parametrize(("K", "V"), [(64, 32), (128, 128), (96, 192)])
def test_a_lanes_keys_are_contiguous(K: int, V: int) -> None:
    i = np.arange(K * V).reshape(-1, 8, 4, 16)
    k = FRAGMENT.functions["key"](i, K, V)
    for t in range(4):
        assert set(np.unique(k[:, :, t])) == set(range(t * K // 4, (t + 1) * K // 4))


def test_the_order_follows_arch_format_and_dimensions() -> None:
    int8, bf16 = FORMATS["leapquant-int8"], FORMATS["bf16-window"]
    for name, arch in ARCHES.items():
        expected = PLAIN if name == "cpu" else FRAGMENT
        assert payload_order(arch, int8, 128, 128) is expected
        assert payload_order(arch, int8, 64, 32) is expected
        assert payload_order(arch, int8, 128, 80) is expected
        assert payload_order(arch, int8, 16, 24) is PLAIN
        assert payload_order(arch, int8, 32, 24) is PLAIN
        assert payload_order(arch, int8, 48, 32) is PLAIN
        assert payload_order(arch, bf16, 128, 128) is PLAIN
        assert payload_order(arch, FORMATS["int8-step"], 128, 128) is PLAIN


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_pasted_text_is_the_same_order(arch: str, name: str) -> None:
    scope: dict[str, object] = {}
    exec(layout_source(ARCHES[arch], FORMATS[name]), scope)
    for K, V in ((16, 24), (64, 32), (128, 48), (96, 192)):
        layout = payload_order(ARCHES[arch], FORMATS[name], K, V)
        i = np.arange(K * V)
        k, v = scope["payload_key"](i, K, V), scope["payload_value"](i, K, V)  # type: ignore[operator]
        assert scope["payload_order"](K, V) == layout.name  # type: ignore[operator]
        assert (k == layout.functions["key"](i, K, V)).all()
        assert (v == layout.functions["value"](i, K, V)).all()
        assert (scope["payload_offset"](k, v, K, V) == i).all()  # type: ignore[operator]


def test_integers_stay_integers() -> None:
    assert FRAGMENT.functions["offset"](37, 21, 64, 32) == int(
        FRAGMENT.functions["offset"](np.array([37]), np.array([21]), 64, 32)[0]
    )
