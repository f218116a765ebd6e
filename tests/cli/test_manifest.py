"""MANIFEST.json: what stands in it once, what a record says itself, what counts as known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from leapgen.report import manifest, usage
from leapgen.report.usage import Usage

STEP = Usage("sm90/x.py", "step", "sm_90a", 8, 8, 1, 1, (), 64, 40, digest="d", nvcc="13.0.88")
FLUSH = replace(STEP, kernel="flush", registers=90)
COPY = replace(STEP, kernel="copy", nvcc="12.9.86")
RESET = replace(STEP, kernel="reset", nvcc="")
ON_CPU = Usage("cpu/x.py", "step", "c", 8, 8, 1, 1, ())


def stored(folder: Path, *rows: Usage) -> manifest.Manifest:
    book = manifest.read(folder)
    book.measured(rows)
    (folder / manifest.NAME).write_text(book.text())
    return manifest.read(folder)


def test_what_most_records_were_measured_with_stands_once(tmp_path: Path) -> None:
    book = stored(tmp_path, STEP, FLUSH, COPY, RESET, ON_CPU)
    assert book.known() == {u.key: u for u in (STEP, FLUSH, COPY, RESET, ON_CPU)}
    data = json.loads((tmp_path / manifest.NAME).read_text())
    assert data["nvcc"] == "13.0.88"
    (on_cpu,) = data["resources"]["cpu/x.py"]
    assert len(on_cpu) == len(data["columns"]) == len(manifest.COLUMNS)
    assert "nvcc" not in data["columns"]
    kernel = data["columns"].index("kernel")
    own = {r[kernel]: r[len(data["columns"]) :] for r in data["resources"]["sm90/x.py"]}
    assert own == {"step": [], "flush": [], "copy": ["12.9.86"], "reset": [""]}
    assert manifest.read(tmp_path).text() == (tmp_path / manifest.NAME).read_text()


def test_records_of_another_nvcc_stand_until_they_are_measured_again(tmp_path: Path) -> None:
    book = stored(tmp_path, STEP, COPY, RESET, ON_CPU)
    assert book.known("13.0.88") == {u.key: u for u in (STEP, ON_CPU)}
    said = usage.text([STEP, COPY, RESET, ON_CPU], "13.0.88")
    assert "1 kernels were measured with nvcc 12.9.86, here is 13.0.88" in said
    assert "1 kernels were measured with nvcc (not known)" in said
    assert "measured with" not in usage.text([STEP, ON_CPU], "13.0.88")


def test_records_without_a_version_are_of_none_that_is_known(tmp_path: Path) -> None:
    stored(tmp_path, STEP)
    data = json.loads((tmp_path / manifest.NAME).read_text())
    del data["nvcc"]
    (tmp_path / manifest.NAME).write_text(json.dumps(data))
    assert [u.nvcc for u in manifest.read(tmp_path).known().values()] == [""]


def test_records_of_kernels_that_are_gone_go(tmp_path: Path) -> None:
    book = stored(tmp_path, STEP, FLUSH, ON_CPU)
    book.renew("sm90/x.py", "def build_flush(K):\n    return step\n")
    assert set(book.known()) == {FLUSH.key, ON_CPU.key}


def test_a_step_counts_as_compiled_while_it_and_its_config_are_the_same(tmp_path: Path) -> None:
    text = "def config_step(K):\n    return {}\n\n\ndef build_step(K):\n    return K\n"
    book = stored(tmp_path, STEP, FLUSH)
    book.renew(STEP.path, text)
    assert STEP.path not in book.steps
    book.renew(STEP.path, text, compiled=True)
    (tmp_path / manifest.NAME).write_text(book.text())
    for old in ("return K", "return {}"):
        book = manifest.read(tmp_path)
        book.renew(STEP.path, f"# a comment\n{text}")
        assert STEP.path in book.steps
        book.renew(STEP.path, text.replace(old, "return 2"))
        assert STEP.path not in book.steps


def test_some_kernels_measured_again_leave_the_others(tmp_path: Path) -> None:
    wide = replace(STEP, K=16)
    stored(tmp_path, STEP, wide, FLUSH)
    book = stored(tmp_path, replace(STEP, registers=50))
    assert book.known() == {u.key: u for u in (replace(STEP, registers=50), FLUSH)}
