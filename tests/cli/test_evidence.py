"""`verify --record`, what `list --formats` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leapgen import pipeline
from leapgen.cli import app
from leapgen.report import format_bytes, verified, verify
from leapgen.report.ledger import Ledger
from leapgen.report.sections import Section

DAY = "2026-11-30"


def result(ok: bool) -> verify.Result:
    """Of one check of leap4's module for kda."""
    chain = pipeline.compile("kda", "cpu", format="leap4")
    digest = verified.digest(chain.source.text)
    path, ledger = chain.source.path, Ledger()
    ledger.equal("anything", not ok)
    kinds = ("kda", "cpu", "compiled", "leap4", 16, {}, "")
    return verify.Result(*kinds, path, digest, [Section("one", ledger)])


def test_evidence_stands_while_the_kernels_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "VERIFIED.json"
    verify.record(book, [result(True)])
    (found,) = verified.standing(book)
    assert (found.spec, found.format, found.arch, found.how) == ("kda", "leap4", "cpu", "compiled")
    assert verified.read(book) == (found,)
    render = pipeline.render

    def edit(old: str, new: str) -> None:
        def edited(*given: Any) -> Any:
            source = render(*given)
            assert old in source.text
            return replace(source, text=source.text.replace(old, new))

        monkeypatch.setattr(verified.pipeline, "render", edited)

    edit("MODULE = ", "MODULE = (0,) and ")
    assert verified.standing(book) == (found,), "no kernel needs that"
    for kind in ("build", "config"):
        edit(f"def {kind}_copy(", f"def {kind}_copy(  ")
        assert verified.standing(book) == ()
    monkeypatch.setattr(verified, "standing", lambda: (found,))
    line = next(x for x in format_bytes.text().splitlines() if x.startswith("leap4 "))
    assert f"cpu kda {found.date}" in line
    assert [r.name for r in format_bytes.rows() if r.verified] == ["leap4"]


def test_a_failure_takes_evidence_away(tmp_path: Path) -> None:
    book = tmp_path / "VERIFIED.json"
    other = verified.Evidence("gdn", "leap4", "cpu", "compiled", "0" * 16, DAY, 40)
    verified.note(book, [other], [])
    verify.record(book, [result(True)])
    assert [r.spec for r in verified.read(book)] == ["gdn", "kda"]
    verify.record(book, [result(False)])
    assert verified.read(book) == (other,)


def test_less_than_everything_is_no_evidence(tmp_path: Path) -> None:
    """It is refused before anything runs."""
    book = tmp_path / "VERIFIED.json"
    for less in (["--rounds", "5"], ["--tokens", "512"], ["--pick", "gate=lower_bound"]):
        found = CliRunner().invoke(app, ["verify", "kda", *less, "--record", str(book)])
        assert found.exit_code == 1
        assert "default picks and of all checks" in found.output
    assert not list(tmp_path.iterdir())


def test_where_it_ran_is_said_for_each_spec() -> None:
    a = verified.Evidence("gdn", "leap4", "sm90", "NVIDIA H200", "0" * 16, DAY, 40)
    both = [a, replace(a, spec="kda", how="emulated")]
    assert verified.words({"sm90": both}) == (
        f"sm90 (NVIDIA H200) gdn {DAY}; sm90 (emulated) kda {DAY}"
    )
