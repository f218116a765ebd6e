"""`verify --record`, what `list --formats` makes of it, and formats that diverge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.emit.parts import kernel_digest
from leapgen.report import drift_sections, format_bytes, verified, verify
from leapgen.report.ledger import Ledger
from leapgen.report.sections import Section
from leapgen.report.subjects import Subject
from leapgen.schedule.arch import ARCHES

DAY = "2026-11-30"


def result(ok: bool, **more: Any) -> verify.Result:
    """Of one check of leap4's module for kda."""
    chain = pipeline.compile("kda", "cpu", format="leap4")
    digest = kernel_digest(chain.source.text, verified.CHECKED)
    path, ledger = chain.source.path, Ledger()
    ledger.equal("anything", not ok)
    kinds = ("kda", "cpu", "compiled", "leap4", 16, {}, "")
    return verify.Result(*kinds, path, digest, [Section("one", ledger)], **more)


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
    edit("def build_copy(", "def build_copy(  ")
    assert verified.standing(book) == ()
    monkeypatch.setattr(verified, "standing", lambda: (found,))
    line = next(x for x in format_bytes.text().splitlines() if x.startswith("leap4 "))
    assert f"cpu kda {found.date}" in line
    assert [r.name for r in format_bytes.rows() if r.verified] == ["leap4"]


def test_a_failure_takes_evidence_away(tmp_path: Path) -> None:
    book = tmp_path / "VERIFIED.json"
    other = verified.Evidence("gdn", "leap4", "cpu", "compiled", "0" * 16, DAY, 40)
    verified.note(book, [other], [])
    verify.record(book, [result(True, diverges=12345.0)])
    assert [r.diverges for r in verified.read(book)] == [0.0, 1.2e4]
    verify.record(book, [result(False)])
    assert verified.read(book) == (other,)


def test_less_than_everything_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(LeapgenError, match="default picks and of all checks"):
        verify.record(tmp_path / "VERIFIED.json", [result(True, whole=False)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "most", "diverges", "ok"),
    [
        (0.5, 9.0, False, True),  # coarse, but it keeps the state
        (1e4, 0.4, False, False),  # a fault: its noise does not explain it
        (1e4, 9.0, True, True),
        (float("nan"), 9.0, False, False),
    ],
)
def test_a_format_diverges_by_its_own_noise_or_it_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, error: float, most: float, diverges: bool, ok: bool
) -> None:
    class Found:
        lines = (type("Line", (), {"state": (1.0,)}),)
        state_mean = error**2

        def line(self, name: str) -> Found:
            return self

    ran = []
    monkeypatch.setattr(drift_sections, "drift", lambda *a, **k: Found())
    monkeypatch.setattr(drift_sections, "growth", lambda *a, **k: (most / 9, most))
    monkeypatch.setattr(drift_sections, "Trial", lambda *a: a)
    monkeypatch.setattr(
        drift_sections, "tokens", lambda t, count: (ran.append(count), t[4].equal("beside", 0))
    )
    chain = pipeline.compile("kda", "cpu", format="quarot-4")
    subject: Any = Subject(None, ARCHES["cpu"], "compiled", "cpu")  # type: ignore[arg-type]
    lost, sections = drift_sections.drift_sections(chain, subject, 4096, 0)
    assert all(s.ledger.ok for s in sections) == ok
    assert (lost > 0) == diverges == ("the format itself diverges" in sections[0].title)
    assert ran == [drift_sections.LOCKSTEP_TOKENS] * diverges
