"""Reports: ratios, text, JSON there and back, and results that have gone stale."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import made_up

from leapgen import pipeline
from leapgen.bench import plots, stale, text
from leapgen.bench.results import Module, read

ROOT = Path(__file__).resolve().parents[2]


def test_json_there_and_back(tmp_path: Path) -> None:
    report, path = made_up("gdn", "kda"), tmp_path / "a" / "b.json"
    report.save(path)
    again = read(path)
    assert again.environment == report.environment
    assert again.operations == report.operations
    assert [r.key for r in again.records] == [r.key for r in report.records]
    assert again.records[0].token.median == pytest.approx(report.records[0].token.median, rel=1e-4)
    # One record a line, so that a change of one is a readable diff.
    assert sum("contender" in line for line in path.read_text().splitlines()) == 15


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema"):
        read(path)
    path.write_text('{"schema": 1}')
    with pytest.raises(ValueError, match="environment"):
        read(path)


def test_rates_and_ceilings() -> None:
    report = made_up("gdn")
    subject, peer = report.records[1], report.records[-1]
    assert subject.rate == pytest.approx(26200 * 512 * 32 / 107e-6)
    assert subject.exposed == pytest.approx(0.06)
    assert subject.ceiling(report.ceilings) == report.ceilings.read
    assert peer.ceiling(report.ceilings) == report.ceilings.in_place
    assert report.subject(peer) is subject


def test_text_names_everything() -> None:
    report = made_up("gdn", "kda")
    page = text.markdown(report)
    for word in ("NVIDIA H200", "580.1", "4.40 TB/s", "6.79x", "6.0%", "### kda", "copy"):
        assert word in page
    assert "Not measured: absent-peer on gdn, cannot be imported" in page
    assert "cut short" not in page
    report.complete = False
    report.records[0] = replace(report.records[0], error=float("inf"))
    assert not report.ok
    page = text.markdown(report)
    assert "cut short" in page
    assert "WRONG" in page


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = made_up("gdn", "kda")
    report.records += [replace(r, H=16) for r in report.records]
    written = plots.draw(report, tmp_path / "new" / "p.png")
    assert [p.name for p in written] == ["p.png", "p-h16-32.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)


def test_stale_results_are_listed(tmp_path: Path) -> None:
    report = made_up("gdn")
    source = pipeline.compile("gdn", "sm90").source
    module = Module(source.path, source.digest, "plan", {})
    report.records = [replace(r, module=module) for r in report.records[:2]]
    report.save(tmp_path / "h200" / "bench" / "gdn.json")
    assert stale.stale(tmp_path) == []
    old = replace(module, digest="0" * 16)
    report.records = [replace(r, module=old) for r in report.records]
    report.save(tmp_path / "h200" / "bench" / "gdn.json")
    (line,) = stale.stale(tmp_path)
    assert line == f"h200/bench/gdn.json: {source.path} was {'0' * 16}, is {source.digest}"


def test_committed_results() -> None:
    """Every committed result can be read; those of modules that have changed are listed."""
    for path, report in stale.reports(ROOT / "tuning"):
        assert report.complete, path
        assert report.ok, path
        for name in ("device", "driver", "versions", "date", "command"):
            assert report.environment[name], f"{path}: no {name}"
    for line in stale.stale(ROOT / "tuning"):
        warnings.warn(f"measured before a change: {line}", stacklevel=1)
