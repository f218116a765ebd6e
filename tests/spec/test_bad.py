"""Every kind of mistake in a spec, with the full text that its author sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from leapgen.diagnostics import Diagnostics
from leapgen.spec.loader import load

ROOT = Path(__file__).resolve().parents[2]
BAD = sorted((ROOT / "tests/spec/bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_text(path: Path, golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(Diagnostics) as caught:
        load(path.relative_to(ROOT))
    golden(str(caught.value) + "\n", path.with_suffix(".txt"))


def test_there_are_many() -> None:
    assert len(BAD) >= 30


def test_no_golden_file_without_a_spec() -> None:
    texts = {p.stem for p in (ROOT / "tests/spec/bad").glob("*.txt")}
    assert texts == {p.stem for p in BAD}
