"""Where kernels that hold the state in words keep rows: one place a channel, all in bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from leapgen import pipeline

KEYS = (32, 64, 96, 128)  # of shapes that are held in words
Place = Callable[[int, int], int]


FORMATS = ("leapquant-int8", "leap8", "leap4")  # one order of the keys each


@functools.cache
def functions(format: str = FORMATS[0]) -> Mapping[str, Any]:
    """The generated module's helpers; none of them is TileLang's."""
    text = pipeline.compile("gdn", "sm90", None, format).source.text
    names = (
        "key_column",
        "key_place",
        "sum_place",
        "part_place",
        "part_row",
        "word_key",
        "word_run",
    )
    pieces = [piece for piece in text.split("\n\n\n") if piece.startswith("def ")]
    chosen = [p for p in pieces if p.removeprefix("def ").split("(")[0] in names]
    assert len(chosen) == len(names)
    scope: dict[str, Any] = {}
    exec("\n\n\n".join(chosen), scope)
    return scope


def room(name: str, K: int) -> int:
    """Elements of a row, as the kernels allocate it."""
    row = K + (8 if K // 8 % 8 == 4 else 4)
    return {"key_column": row, "key_place": K + 32, "sum_place": K + 16}[name]


@pytest.mark.parametrize("K", KEYS)
@pytest.mark.parametrize("name", ["key_column", "key_place", "sum_place"])
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("K", KEYS)
def test_a_lane_has_runs_of_eight_neighbouring_keys(K: int, format: str) -> None:
    """Words are numbered lane by lane of four and run by run; each key channel has one number."""
    places = functions(format)
    found = [places["word_key"](k, K) for k in range(K)]
    assert sorted(found) == list(range(K))
    for t in range(4):
        for x in range(K // 32):
            first = places["word_run"](t, x, K)
            numbers = [places["word_key"](first + i, K) for i in range(8)]
            assert numbers == [K // 4 * t + 8 * x + i for i in range(8)]


@pytest.mark.parametrize(("K", "turns"), [(K, t) for K in KEYS for t in (1, 2) if K // 32 % t == 0])
def test_products_of_a_turn_have_places_of_their_own(K: int, turns: int) -> None:
    places, runs = functions(), K // 32 // turns
    for turn in range(turns):
        keys = [k for k in range(K) if k % (K // 4) // (8 * runs) == turn]
        found = [places["part_place"](k, K, runs) for k in keys]
        assert len(keys) == 32 * runs == len(set(found))
        assert max(found) < places["part_row"](runs)


@pytest.mark.parametrize("runs", [2, 4])
def test_columns_of_an_accumulator_lie_in_other_banks(runs: int) -> None:
    """Lane 4 g + t stores rows of compensator 2 t and of keys g % 2 of lane g // 2."""
    places, K = functions(), 128
    row = places["part_row"](runs)
    banks = {
        (2 * (lane % 4) * row + places["part_place"](lane // 8 * (K // 4) + lane // 4 % 2, K, runs))
        % 32
        for lane in range(32)
    }
    assert len(banks) == 32
