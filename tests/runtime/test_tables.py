"""Tables of tuned configs: keys, files, two writers at once, what loading picks from them."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_pools import SIZES, Spy, inputs, ints

from leapgen.files import append_line, locked
from leapgen.runtime import host, tables
from leapgen.runtime.host import Shape, Tuned, key_of
from leapgen.runtime.tables import Record, StaleTable

CONFIG = {"step": {"threads": 128, "staged": True}}
RECORD = Record(
    128, 128, 32, 32, 16, 4, 512, CONFIG, 100.0, 120.0, digest="d", device="GPU", date="2026-12-01"
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
parts = st.dictionaries(st.sampled_from(["kernel", "shape", "config", "rows", "device"]), plain)


def exact(value: Any) -> Any:
    """Equality that tells True from 1 and 1 from 1.0."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    return [exact(v) for v in value] if isinstance(value, list) else (type(value), repr(value))


@given(parts, parts)
@settings(max_examples=300, deadline=None)
def test_keys_are_equal_iff_their_parts_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (key_of(**a) == key_of(**b)) is (exact(a) == exact(b))
    turned = dict(reversed(a.items()))
    assert key_of(**turned) == key_of(**a)
    # The same key from memory and from disk.
    assert key_of(**json.loads(json.dumps(a))) == key_of(**a)
    assert key_of(**json.loads(key_of(**a))) == key_of(**a)


def test_keys_of_what_json_cannot_tell_apart() -> None:
    assert len({key_of(x=v) for v in (True, 1, 1.0, "1", None, [1], {"1": 1})}) == 7
    with pytest.raises(TypeError, match="names must be text"):
        key_of(x={1: 2})
    with pytest.raises(ValueError, match="not JSON compliant"):
        key_of(x=float("nan"))


def test_a_table_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tables.path_of(tmp_path, "gpu", "spec")
    records = [replace(RECORD, rows=rows, H=H) for rows in (512, 8, 64) for H in (32, 16)]
    tables.merge(path, records)
    assert set(map(repr, tables.read(path))) == set(map(repr, records))
    lines = [line for line in path.read_text().splitlines() if '"rows"' in line]
    assert len(lines) == 6
    assert [json.loads(line.strip(" ,"))["rows"] for line in lines] == [8, 64, 512] * 2
    before = path.read_text()
    tables.merge(path, records[::-1])
    assert path.read_text() == before
    tables.merge(path, [replace(RECORD, us=90.0)])
    assert len(tables.read(path)) == 6
    assert min(r.us for r in tables.read(path)) == 90.0


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert tables.read(path) == ()
    for text in ("{", "[]", '{"schema": 99, "records": []}', '{"schema": 1, "records": [{}]}'):
        path.write_text(text)
        with pytest.raises(tables.BadTable, match=r"x\.json"):
            tables.read(path)


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {here!r})
from test_tables import RECORD
from leapgen.runtime import tables
for rows in range(int(sys.argv[1]), 60, 2):
    tables.merge(Path({path!r}), [replace(RECORD, rows=rows + 1)])
"""


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "spec.json"
    script = WRITER.format(here=str(Path(__file__).parent), path=str(path))
    running = [subprocess.Popen([sys.executable, "-c", script, str(n)]) for n in range(2)]
    assert [p.wait(timeout=120) for p in running] == [0, 0]
    assert sorted(r.rows for r in tables.read(path)) == list(range(1, 61))
    assert [p.name for p in path.parent.iterdir()] == ["spec.json"]


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    script = (
        "import fcntl, os, sys\n"
        f"fd = os.open({str(tmp_path)!r}, os.O_RDONLY)\n"
        "try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(7)\n"
    )
    with locked(tmp_path):
        assert subprocess.run([sys.executable, "-c", script]).returncode == 7
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_torn_line_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    append_line(path, "one")
    with path.open("a") as file:
        file.write("tor")
    append_line(path, "two")
    assert path.read_text() == "one\ntor\ntwo\n"


# ---- what loading uses


def test_stale_records_are_named_once_and_ignored(tmp_path: Path) -> None:
    path = tables.path_of(tmp_path, "gpu", "spec")
    tables.merge(path, [RECORD, replace(RECORD, digest="old", rows=8)])
    with pytest.warns(StaleTable, match=r"spec\.json: 1 of 2 records are stale"):
        assert [r.rows for r in tables.usable([path], lambda _: "d", "GPU")] == [512]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [r.rows for r in tables.usable([path], lambda _: "d", "GPU")] == [512]
    with pytest.warns(StaleTable, match="2 of 2"):
        assert tables.usable([path], lambda _: "new", "GPU") == ()


def test_a_record_of_fused_steps_is_of_the_step_alone(tmp_path: Path) -> None:
    """A flush that is not launched may change; the place has one record of a text."""
    path = tables.path_of(tmp_path, "gpu", "spec")

    def digests(kernels: tuple[str, ...]) -> str:
        return "+".join(kernels)

    def record(*kernels: str) -> tables.Record:
        configs: dict[str, dict[str, int]] = {kernel: {} for kernel in kernels}
        return tables.Record(16, 8, 2, 4, 4, 0, 8, configs, 1.0, 1.0, digest=digests(kernels))

    for kernels in (("step",), ("step", "flush")):
        tables.merge(path, [record(*kernels)], digests)
        (found,) = tables.usable([path], digests, "")
        assert found.kernels == kernels
    changed = {("step",): "step"}
    tables.merge(path, [record("step")])
    with pytest.warns(StaleTable, match="1 of 2"):
        (found,) = tables.usable([path], lambda kernels: changed.get(kernels, "other"), "")
    assert found.kernels == ("step",)


def test_the_closest_table_counts(tmp_path: Path) -> None:
    product, arch = (tables.path_of(tmp_path, name, "spec") for name in ("gpu", "arch"))
    tables.merge(arch, [replace(RECORD, predicted=True, device="other")])
    assert tables.usable([product, arch], lambda _: "d", "GPU")[0].predicted
    tables.merge(product, [replace(RECORD, device="GPU NVL", us=1.0)])
    assert tables.usable([product, arch], lambda _: "d", "GPU")[0].us == 1.0
    tables.merge(product, [RECORD])
    assert [r.us for r in tables.usable([product, arch], lambda _: "d", "GPU")] == [100.0]


SHAPE = Shape(16, 8, 2, 4, 4, 0)


def tuned(rows: int, n: int, shape: Shape = SHAPE) -> Tuned:
    return Tuned(shape, rows, {"step": {"unroll": n}})


def test_exact_nearest_default(tiny: host.Module) -> None:
    other = replace(SHAPE, H=8, HV=16)
    module = tiny.with_table([tuned(1, 2), tuned(8, 3), tuned(64, 4), tuned(32, 9, other)])

    def picked(shape: Shape, rows: int | None) -> int:
        found: int = module.config("step", shape, rows).get("unroll", 0)
        return found

    assert [picked(SHAPE, n) for n in (1, 2, 3, 8, 22, 23, 64, 999)] == [2, 2, 3, 3, 3, 4, 4, 4]
    assert picked(SHAPE, None) == 4
    assert picked(other, 1) == 9
    # Not tuned heads: the same ratio of heads, then the nearest number of blocks.
    assert picked(replace(SHAPE, H=4, HV=8), 4) == 3
    assert picked(replace(SHAPE, H=4, HV=8), 64) == 9
    # Another K, V, P, R: what was tuned may not even run.
    assert picked(replace(SHAPE, K=32), 8) == tiny.config("step", SHAPE).get("unroll", 0)
    assert module.config("flush", SHAPE, 8) == tiny.config("flush", SHAPE)
    explicit = module.with_configs(step={"unroll": 7})
    assert explicit.config("step", SHAPE, 8) == {"unroll": 7}


def test_pinned_is_one_config_for_all_batches(tiny: host.Module) -> None:
    table = [tuned(1, 2), tuned(64, 4)]
    module = tiny.with_table(table, pin=True)
    assert {module.config("step", SHAPE, n)["unroll"] for n in (1, 8, 64, 999)} == {4}
    assert tiny.with_table([], pin=True).config("step", SHAPE, 3) == tiny.config("step", SHAPE, 3)


def test_launches_follow_the_rows_and_share_what_is_compiled(tiny: host.Module) -> None:
    spy = Spy()
    module = tiny.with_backend(spy)
    pool = module.allocate(5, **SIZES)
    shape = pool.shape
    module = module.with_table([tuned(1, 1, shape), tuned(4, 2, shape)])
    one, two, four = (module.kernel("step", pool, rows) for rows in (1, 2, 4))
    assert four is two  # in the middle, the larger one
    assert one is not four
    assert module.kernel("step", pool, 5) is four
    assert module.with_table([tuned(4, 2, shape)]).kernel("step", pool, 1) is four
    assert spy.compiled == ["step", "step"]
    module.prepare(pool)
    compiled = len(spy.compiled)
    for rows in (1, 2, 5):
        module.step(pool, ints(*range(rows)), *inputs(rows))
    assert len(spy.compiled) == compiled


def test_a_step_that_closes_windows_launches_no_flush(tiny: host.Module, tmp_path: Path) -> None:
    """By the record of the rows at hand, as it is read from a file."""
    spy = Spy()
    module = tiny.with_backend(spy)
    pool = module.allocate(5, **SIZES)
    place = dict(vars(pool.shape))
    place.pop("D")
    one = replace(RECORD, **place, rows=1, configs={"step": {"fused": 2}})
    four = replace(one, rows=4, configs={"step": {"fused": 0, "unroll": 2}})
    tables.merge(tmp_path / "tiny.json", [one, four])
    module = module.with_table([r.tuned for r in tables.read(tmp_path / "tiny.json")])
    for rows, launched in ((1, ["step"]), (4, ["step", "flush"]), (1, ["step"])):
        spy.launched.clear()
        module.step(pool, ints(*range(rows)), *inputs(rows))
        assert spy.launched == launched
    module.flush(pool, ints(0))
    assert spy.launched == ["step", "flush"]
