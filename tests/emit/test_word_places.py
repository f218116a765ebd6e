"""Where kernels that hold the state in words keep rows: one place a channel, all in bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from leapgen import pipeline

KEYS = (32, 64, 96, 128)  # of shapes that are held in words
Place = Callable[[int, int], int]


@functools.cache
def functions() -> Mapping[str, Any]:
    """The generated module's helpers; none of them is TileLang's."""
    text = pipeline.compile("gdn", "sm90").source.text
    names = ("key_column", "key_place", "sum_place", "part_place")
    pieces = [piece for piece in text.split("\n\n\n") if piece.startswith("def ")]
    chosen = [p for p in pieces if p.removeprefix("def ").split("(")[0] in names]
    assert len(chosen) == len(names)
    scope: dict[str, Any] = {}
    exec("\n\n\n".join(chosen), scope)
    return scope


def room(name: str, K: int) -> int:
    """Elements of a row, as the kernels allocate it."""
    row = K + (8 if K // 8 % 8 == 4 else 4)
    return {"key_column": row, "key_place": K + 32, "sum_place": K + 16, "part_place": K + 8}[name]


@pytest.mark.parametrize("K", KEYS)
@pytest.mark.parametrize("name", ["key_column", "key_place", "sum_place", "part_place"])
def test_one_place_a_key_channel(name: str, K: int) -> None:
    place: Place = functions()[name]
    found = [place(k, K) for k in range(K)]
    assert len(set(found)) == K
    assert min(found) >= 0
    assert max(found) < room(name, K)


@pytest.mark.parametrize("K", KEYS)
def test_a_column_of_an_operand_is_one_run(K: int) -> None:
    """Lane 4 g + t of a product has column g of every block of eight keys: K / 8 words in a run."""
    place: Place = functions()["key_column"]
    for g in range(8):
        keys = [K // 4 * (g // 2) + 2 * block + g % 2 for block in range(K // 8)]
        run = [place(k, K) for k in keys]
        assert run == list(range(g * (K // 8), (g + 1) * (K // 8)))


@pytest.mark.parametrize("K", KEYS)
@pytest.mark.parametrize("name", ["key_place", "sum_place"])
def test_a_lanes_quarter_is_one_run(name: str, K: int) -> None:
    """Aligned for loads of eight values, and where four lanes read at once, in other banks."""
    place: Place = functions()[name]
    starts = [place(K // 4 * t, K) for t in range(4)]
    for t, start in enumerate(starts):
        run = [place(K // 4 * t + i, K) for i in range(K // 4)]
        assert run == list(range(start, start + K // 4))
    size = 2 if name == "key_place" else 4
    assert all(start * size % 16 == 0 for start in starts)


@pytest.mark.parametrize("K", [32, 96, 128])
def test_rows_of_operands_lie_in_other_banks(K: int) -> None:
    """Lanes read four words each of rows t and columns g: each eight lanes cover all banks."""
    row = room("key_column", K)
    for quarter in range(4):
        lanes = range(8 * quarter, 8 * quarter + 8)
        words = {
            (lane % 4 * row + lane // 4 * (K // 8) + i) % 32 for lane in lanes for i in range(4)
        }
        assert len(words) == 32, quarter
