"""Where kernels that hold the state in words keep rows: one place a channel, all in bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from leapgen import pipeline

KEYS = (32, 64, 96, 128)  # of shapes that are held in words
Place = Callable[[int, int], int]


FORMATS = ("leapquant-int8", "leap8", "leap4-levels")  # one order of the keys each


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
        "part_turns",
        "part_wide",
        "paired_column",
        "paired_row",
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("R", [1, 4, 5, 8])
@pytest.mark.parametrize("K", KEYS)
def test_products_of_a_turn_have_places_of_their_own(K: int, R: int, format: str) -> None:
    places = functions(format)
    wide, runs = places["part_wide"](R), K // 32 // places["part_turns"](K, R)
    for turn in range(K // 32 // runs):
        keys = [k for k in range(K) if k % (K // 4) // 8 // runs == turn]
        found = {places["part_place"](k, j, K, R, runs) for k in keys for j in range(wide)}
        assert found == set(range(32 * runs * wide))


@pytest.mark.parametrize("R", [4, 8])
def test_products_are_stored_and_summed_without_bank_conflicts(R: int) -> None:
    """Lane 4 g + t stores compensators 2 t and 2 t + 1 of row g, 16 lanes at once; keys in turn are
    read four compensators at a time, 8 lanes at once."""
    places, K = functions(), 128
    wide, runs = places["part_wide"](R), K // 32 // places["part_turns"](K, R)
    for row in range(4):
        keys = {g: g // 2 * (K // 4) + 2 * row + g % 2 for g in range(8)}
        for half in range(2 if wide == 8 else 1):
            rows = range(4 * half, 4 * half + 4) if wide == 8 else range(8)
            starts = [
                places["part_place"](keys[g], 2 * t, K, R, runs)
                for g in rows
                for t in range(wide // 2)
            ]
            assert len({(at + e) % 32 for at in starts for e in range(2)}) == 32
    for first in range(0, K // 4, 8):
        for j in range(0, wide, 4):
            starts = [places["part_place"](first + i, j, K, R, runs) for i in range(8)]
            assert len({(at + e) % 32 for at in starts for e in range(4)}) == 32


@pytest.mark.parametrize("K", KEYS)
def test_rows_of_one_product_lie_side_by_side(K: int) -> None:
    """Lane 4 g + t reads pairs of words of row t and column g: a run of K / 8, aligned for loads of
    four words, which eight lanes at once find in banks of their own."""
    places = functions()
    row, found = places["paired_row"](K), {}
    for g in range(8):
        keys = [K // 4 * (g // 2) + 2 * block + g % 2 for block in range(K // 8)]
        run = [places["paired_column"](k, K) for k in keys]
        assert run == list(range(run[0], run[0] + K // 8))
        assert run[0] % 2 == 0
        assert run[-1] < row
        found[g] = run[0]
    assert row % 2 == 0
    for quarter in range(4):
        lanes = [(g, t) for g in (2 * quarter, 2 * quarter + 1) for t in range(4)]
        starts = [2 * (t * row + found[g]) for g, t in lanes]
        assert len({(at + e) % 32 for at in starts for e in range(4)}) == 32
