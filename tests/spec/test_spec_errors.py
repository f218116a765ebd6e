"""Every kind of mistake in a spec, with the full text that its author sees."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from leapgen.diagnostics import Diagnostic, Diagnostics, Report, Span, listing, suggest
from leapgen.spec.loader import load, loads

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/spec/bad"
BAD = sorted(FOLDER.glob("*.yaml"))
GOOD = (ROOT / "specs/gdn.yaml").read_text()


def errors(path: Path) -> Diagnostics:
    with pytest.raises(Diagnostics) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_text(
    path: Path, golden: Callable[[str, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = errors(path.relative_to(ROOT))
    assert all(d.help for d in found.items), "every error says what to write instead"
    golden(f"{found}\n", path.with_suffix(".txt"))


def test_goldens_and_specs_match() -> None:
    assert len(BAD) >= 30
    assert {p.stem for p in FOLDER.glob("*.txt")} == {p.stem for p in BAD}


def test_all_errors_at_once_and_in_order() -> None:
    found = errors(FOLDER / "many.yaml")
    assert len(found.items) == 7
    places = [d.span for d in found.items]
    assert None not in places
    assert places == sorted(p for p in places if p)


def test_a_syntax_error_comes_alone() -> None:
    with pytest.raises(Diagnostics) as caught:
        loads("name: Bad Name\nstate: {window: 100\n", "x.yaml")
    assert caught.value.codes == ("yaml-syntax",)


def test_wrong_picks_and_options_are_reported_together() -> None:
    with pytest.raises(Diagnostics) as caught:
        loads(GOOD, "gdn.yaml", {"gaet": "x", "beta": "row"}, {"window": 0, "fromat": "int8"})
    text = str(caught.value)
    assert sorted(caught.value.codes) == [
        "out-of-range",
        "unknown-choice",
        "unknown-key",
        "unknown-pick",
    ]
    for line in (
        "there is no choice `gaet`\n --> gdn.yaml\n  = help: did you mean `gate`?",
        "`beta` has no alternative `row`\n --> gdn.yaml\n  = help: did you mean `raw`?",
        "option `state.window` must be 1 to 64, not 0\n  = help: the nearest is 1",
        "error[unknown-key]: unknown key `fromat` in the state\n  = help: did you mean `format`?",
    ):
        assert line in text


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"name: \xff\n")
    assert errors(path).codes == ("yaml-syntax",)


def test_a_byte_order_mark_and_windows_lines_change_nothing() -> None:
    spec = loads("\ufeff" + GOOD.replace("\n", "\r\n"))
    assert spec.native.span == loads(GOOD).native.span
    with pytest.raises(Diagnostics) as caught:
        loads("\ufeff" + GOOD.replace("gain: beta", "gain: betta").replace("\n", "\r\n"), "x")
    rows = str(caught.value).splitlines()
    assert rows[3].index("betta") == rows[4].index("^^^^^")


class TestRendering:
    """The text itself, apart from specs."""

    def test_colour_only_if_asked(self) -> None:
        found = Diagnostics([Diagnostic("a-code", "wrong", "f", Span(1, 1, 3))], {"f": "ab"})
        assert "\x1b" not in str(found)
        assert "\x1b[1;31merror[a-code]" in found.render(colour=True)

    def test_wide_combining_and_tab_characters(self) -> None:
        source = "\t状a\u0301 xx"
        text = Diagnostic("c", "m", "f", Span(1, 6, 8)).render(source)
        assert text.splitlines()[4] == "  | " + " " * 8 + "^^"

    def test_terminal_escapes_are_disarmed(self) -> None:
        text = Diagnostic("c", "m", "f", Span(1, 1, 2)).render("a\x1b[31mb")
        assert "\x1b" not in text

    def test_counts_and_duplicates(self) -> None:
        one = Diagnostic("c", "m", "f", Span(2, 1, 2))
        other = Diagnostic("c", "m", "f", Span(1, 1, 2), severity="warning")
        found = Diagnostics([one, other, one])
        assert found.items == (other, one)
        assert str(found).endswith("1 error, 1 warning")

    def test_nothing_collected_raises_nothing(self) -> None:
        Report("f", "").raise_errors()

    def test_words(self) -> None:
        assert suggest("gian", ("gain", "value")) == "did you mean `gain`?"
        assert suggest("zzz", ("gain",)) == ""
        assert listing(("a",)) == "`a`"
        assert listing(("a", "b", "c")) == "`a`, `b` and `c`"


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000])
def test_deep_nesting_is_an_error_like_others(text: str) -> None:
    with pytest.raises(Diagnostics, match="yaml-syntax"):
        loads(text, "x.yaml")


PIECES = [*"{}[]:,'\"\n#&*!|>-?%@\tSIkv(+é\\0\x85\x00", ".T", "null"]


def _damaged(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(text))
        pieces = chance.choices(PIECES, k=chance.randint(0, 2))
        text = text[:start] + "".join(pieces) + text[start + chance.choice([0, 1, 5, 30]) :]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_give_findings_and_nothing_else(seed: int) -> None:
    chance, found = random.Random(seed), []
    for _ in range(15):
        found += _findings(_damaged(GOOD, chance))
    assert all(d.help and d.render(GOOD) for d in found)


def _findings(text: str) -> tuple[Diagnostic, ...]:
    try:
        loads(text, "x.yaml")
    except Diagnostics as error:
        return error.items
    return ()
