"""Bytes that the generated kernels touch, counted from their lowered TIR, against the plan's model.

Both sides are exact: no tolerance anywhere. What a block asks for is compared buffer by buffer;
what all value heads of a row ask for together is compared with what memory must move at least.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from generated_modules import (
    ARCHES,
    COLD,
    FRAGMENT,
    GENERATED,
    HV,
    PLAIN,
    SPECS,
    Bench,
    Counted,
    bench,
    file_of,
    in_words,
    plan_of,
)  # fmt: skip

from leapgen import paths
from leapgen.report.tir_machine import SECTOR
from leapgen.schedule import traffic

CURSORS = {"step": (0, 1, 7, 15), "flush": (16,), "materialize": (0, 1, 7, 16),
           "load_state": (0,), "copy": (0, 1, 7, 16), "reset": (0,)}  # fmt: skip
ONCE = ("payload", "record_key", "record_u")
"""Buffers of which a block reads no byte twice: the rest is small, and may be read again. A step
that closes a window reads its records again, from caches."""

DEFAULT = {("kda", FRAGMENT, "sm90"), ("gdn", PLAIN, "sm90")}
each_module = pytest.mark.parametrize(
    ("name", "dims", "arch"),
    [
        pytest.param(*which, marks=() if which in DEFAULT else pytest.mark.slow)
        for which in itertools.product(SPECS, (FRAGMENT, PLAIN), ARCHES)
    ],
    ids=in_words,
)


def differences(found: Counted, model: traffic.Traffic) -> list[str]:
    """Where a launch of one row touches other bytes than the model says."""
    lines = {(line.name, line.way): line.amount for line in model.lines}
    counted = {(name.removesuffix("_in"), way) for name, way in found.union}
    wrong = [f"{way} of {name}: in the model only" for name, way in lines.keys() - counted]
    wrong += [f"{way} of {name}: not in the model" for name, way in counted - lines.keys()]
    for (name, way), union in found.union.items():
        plain = name.removesuffix("_in")
        if (plain, way) not in lines:
            continue
        expected = lines[plain, way]
        blocks = [block[name, way] for block in found.blocks]
        if way == "read" and plain.startswith("record"):
            # What a row has appended itself is in the cache when its window closes.
            union = found.fetched[name]
        # Tiles are laid out at multiples of 16 bytes: a range of an odd multiple of 16 bytes, or
        # of less, lies in as few sectors as it can, wherever it starts. Longer ranges of these
        # geometries start at whole sectors. So sectors are exact as well.
        figures = (
            ("bytes of a block", sum(b.distinct for b in blocks), HV * expected.asked),
            ("sectors of a block", sum(b.sectors for b in blocks) * SECTOR, HV * expected.touched),
            ("bytes of a row", union.distinct, HV * expected.distinct),
        )
        wrong += [f"{way} of {name}: {what} {a:g}, model {b:g}" for what, a, b in figures if a != b]
        # Neighbouring heads may share a sector, where the model gives each its own.
        if not union.distinct <= union.sectors * SECTOR <= HV * expected.sectors:
            wrong.append(f"{way} of {name}: {union.sectors} sectors, model {HV * expected.sectors}")
        again = closes(model) and plain.startswith("record")
        if plain in ONCE and not again and any(b.bytes != b.distinct for b in blocks):
            wrong.append(f"{way} of {name}: {blocks[0].bytes} bytes of {blocks[0].distinct}")
    return sorted(wrong)


def closes(model: traffic.Traffic) -> bool:
    """Whether a launch is a step that closes windows: it writes the payload and appends records."""
    written = {line.name for line in model.lines if line.way == "write"}
    return {"payload", "record_u", "out"} <= written


def of_arch(name: str, arch: str, dims: tuple[int, int]) -> Bench:
    return bench(file_of(name, arch), dims)


def model(
    name: str, arch: str, at: Bench, kernel: str, cursor: int, phase: int = 0
) -> traffic.Traffic:
    fused = bool(at.config(kernel).get("fused"))
    plan = plan_of(name, arch)
    return traffic.launch(plan, at.shape, kernel, cursor, phase=phase, fused=fused)


@pytest.mark.parametrize("kernel", CURSORS)
@each_module
def test_traffic_of_a_launch(name: str, dims: tuple[int, int], arch: str, kernel: str) -> None:
    at = of_arch(name, arch, dims)
    for cursor in CURSORS[kernel]:
        found = at.launch(kernel, cursor)
        assert not differences(found, model(name, arch, at, kernel, cursor)), cursor


@each_module
def test_a_step_that_reads_tiles_where_they_lie(
    name: str, dims: tuple[int, int], arch: str
) -> None:
    """The default at these geometries is to copy them to shared memory first."""
    assert of_arch(name, arch, dims).config("step")["staged"]
    at = of_arch(name, arch, dims).configured("step", staged=False, **open_end(name, arch))
    for cursor in CURSORS["step"]:
        found = at.launch("step", cursor)
        assert not differences(found, model(name, arch, at, "step", cursor)), cursor


def open_end(name: str, arch: str) -> dict[str, int]:
    """The change of a step's config after which it leaves windows open, for the flush."""
    return {"fused": 0} if plan_of(name, arch).matrix else {}


@each_module
def test_a_step_that_closes_windows(name: str, dims: tuple[int, int], arch: str) -> None:
    """By cursor and phase; in that launch alone it moves what a flush would but for the reads. The
    second mode holds another part of the state in registers, and moves the same."""
    at = of_arch(name, arch, dims)
    if not plan_of(name, arch).by_words(at.shape):
        assert not at.config("step").get("fused")
        return
    assert at.config("step")["fused"]
    for cursor, phase in ((3, 11), (3, 12), (0, 15), (7, 8), (7, -16)):
        found = at.launch("step", cursor, phase)
        assert not differences(found, model(name, arch, at, "step", cursor, phase)), cursor
        assert (("payload", "write") in found.union) == (cursor + phase >= 15)


@each_module
def test_a_step_that_leaves_windows_open(name: str, dims: tuple[int, int], arch: str) -> None:
    """A separate flush follows: no phase is read."""
    at = of_arch(name, arch, dims)
    if not plan_of(name, arch).by_words(at.shape):
        return  # as by default: see the first test
    at = at.configured("step", fused=0)
    for cursor in CURSORS["step"]:
        found = at.launch("step", cursor)
        assert not differences(found, model(name, arch, at, "step", cursor)), cursor


@pytest.mark.slow
@each_module
@pytest.mark.parametrize("kernel", ["step", "flush"])
def test_more_of_the_state_in_registers(
    name: str, dims: tuple[int, int], arch: str, kernel: str
) -> None:
    at = of_arch(name, arch, dims)
    if plan_of(name, arch).by_words(at.shape):
        at = at.configured(kernel, **{"fused" if kernel == "step" else "tiles": 2})
        for cursor in (7, 15) if kernel == "step" else (16,):
            found = at.launch(kernel, cursor)
            assert not differences(found, model(name, arch, at, kernel, cursor)), cursor


@each_module
def test_flush_by_phase(name: str, dims: tuple[int, int], arch: str) -> None:
    """A window that started late is due earlier, and only its own records are read."""
    at = of_arch(name, arch, dims)
    idle = traffic.idle_flush(plan_of(name, arch), at.shape)
    for cursor, phase in ((0, 0), (7, 0), (15, 0), (7, 8)):
        assert not differences(at.launch("flush", cursor, phase), idle), (cursor, phase)
    for cursor, phase in ((1, 15), (7, 9), (8, 9)):
        due = model(name, arch, at, "flush", cursor)
        assert not differences(at.launch("flush", cursor, phase), due), (cursor, phase)


@pytest.mark.slow
@each_module
def test_few_blocks_flush_many_heads(name: str, dims: tuple[int, int], arch: str) -> None:
    at = of_arch(name, arch, dims)
    every = at.launch("flush", 16)
    few = at.configured("flush", blocks=3).launch("flush", 16)
    assert (len(every.blocks), len(few.blocks)) == (HV, 3)
    assert few.union == every.union


@each_module
def test_cold_fits_touch_the_same(name: str, dims: tuple[int, int], arch: str) -> None:
    """Rounds of the fit happen on chip."""
    at = of_arch(name, arch, dims)
    config = at.config("flush")
    assert config.get("tiles") or config["slices"] == 1
    warm = dict(at.launch("flush", 16).union)
    assert dict(at.launch("flush", 16, rounds=COLD).union) == warm


@each_module
def test_inactive_rows(name: str, dims: tuple[int, int], arch: str) -> None:
    """Only the slot's number is read; a step and materialize write their zeros."""
    at = of_arch(name, arch, dims)
    written = {"step": {("out", "write")}, "materialize": {("state", "write")}}
    for kernel in CURSORS:
        first = "source" if kernel == "copy" else "slots"
        touched = set(at.launch(kernel, 3, slot=-2).union) - {("target", "read")}
        assert touched == {(first, "read"), *written.get(kernel, ())}, kernel


KEYS = """T.access_ptr(record_key[record_key_at], "r", N * K),
                                s_ready[1],
                                count"""
ROWS = """for ii in T.unroll({times}(V + CHUNK_ROWS - 1) // CHUNK_ROWS{end}):
                            vv = {index} * CHUNK_ROWS"""
MUTATIONS = {
    "a correction too many": (
        False,
        "for jj in T.unroll(count, unroll_factor=4):",
        "for jj in T.unroll(count + 1, unroll_factor=4):",
        "read of record_u: bytes of a block 1536, model 1344",
    ),
    "a key too many, in bulk": (
        True,
        KEYS,
        KEYS.replace("count", "(count + 1)"),
        "read of record_key: bytes of a block 1024, model 896",
    ),
    "the payload twice": (
        False,
        ROWS.format(times="", end="", index="ii"),
        ROWS.format(times="2 * (", end=")", index="ii // 2"),
        "read of payload: 768 bytes of 384",
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_kernel_that_reads_more_is_noticed(what: str, tmp_path: Path) -> None:
    staged, old, new, said = MUTATIONS[what]
    text = (GENERATED / "sm90" / "gdn.py").read_text()
    assert old in text
    (tmp_path / "gdn.py").write_text(text.replace(old, new))
    shutil.copytree(GENERATED / "sm90" / paths.HOST, tmp_path / paths.HOST)
    at = bench(tmp_path / "gdn.py", PLAIN).configured("step", staged=staged)
    found = differences(at.launch("step", 7), model("gdn", "sm90", at, "step", 7))
    assert any(said in line for line in found), found
