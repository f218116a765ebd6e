"""Errors that point at the place that caused them: collected, sorted, rendered as plain text."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what YAML calls a line break

_RED, _YELLOW, _BLUE, _BOLD, _RESET = "\x1b[1;31m", "\x1b[1;33m", "\x1b[1;34m", "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, order=True)
class Span:
    """A run of characters on one line, all 1-based; `end` is the column after the last one."""

    line: int
    column: int
    end: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True)
class Diagnostic:
    """One finding. Without a span it belongs to the file (or, without a path, to the call).

    code     stable kebab-case word, what tests and documentation refer to
    message  what is wrong, one sentence without a full stop
    label    stands behind the caret run: what the marked text is
    help     what to write instead, a line each
    notes    why it is so, a line each
    """

    code: str
    message: str
    path: str = ""
    span: Span | None = None
    label: str = ""
    help: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    severity: str = "error"

    @property
    def order(self) -> tuple[str, Span, str, str]:
        """Sort key: the file, then the place; findings without a place come first."""
        return self.path, self.span or Span(0, 0, 0), self.code, self.message

    def render(self, source: str = "", colour: bool = False) -> str:
        """The finding as text; `source` is the file's whole text (absent: no excerpt)."""
        return "\n".join(_Painter(colour).diagnostic(self, source))


class LeapgenError(Exception):
    """Something that a user can cause and correct; the message says what was found and expected."""


class MissingTool(LeapgenError):
    """A compiler, package or device that is needed is not here; the message says how to get it."""


class Diagnostics(LeapgenError):
    """One or more findings, raised together; `str()` of it is the plain rendering."""

    def __init__(
        self, items: Iterable[Diagnostic], sources: Mapping[str, str] | None = None
    ) -> None:
        self.items = tuple(sorted(dict.fromkeys(items), key=lambda d: d.order))
        self.sources = dict(sources or {})
        super().__init__(self.items)

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of every finding, in order."""
        return tuple(d.code for d in self.items)

    def render(self, colour: bool = False) -> str:
        """All findings, a blank line between them, and a count at the end."""
        parts = [d.render(self.sources.get(d.path, ""), colour) for d in self.items]
        return "\n\n".join([*parts, self.summary])

    @property
    def summary(self) -> str:
        """`2 errors, 1 warning`."""
        errors = sum(d.severity == "error" for d in self.items)
        warnings = len(self.items) - errors
        counts = [(errors, "error"), (warnings, "warning")]
        return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n)

    def __str__(self) -> str:
        return self.render()


@dataclass
class Report:
    """Collects findings about one file until somebody asks for them."""

    path: str = ""
    source: str = ""
    items: list[Diagnostic] = field(default_factory=list)

    def error(
        self,
        code: str,
        message: str,
        span: Span | None,
        label: str = "",
        help: Iterable[str] | str = (),
        notes: Iterable[str] | str = (),
    ) -> None:
        """Note an error at `span` of this file. Later errors at the same place still count."""
        lines = (help,) if isinstance(help, str) else tuple(help)
        remarks = (notes,) if isinstance(notes, str) else tuple(notes)
        lines, remarks = tuple(filter(None, lines)), tuple(filter(None, remarks))
        self.items.append(Diagnostic(code, message, self.path, span, label, lines, remarks))

    def raise_errors(self) -> None:
        """Raise all that was collected, or return when there is nothing.

        Raises:
            Diagnostics: everything collected so far.
        """
        if self.items:
            raise Diagnostics(self.items, {self.path: self.source})


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for the known word nearest to `word`, or an empty string."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or [n for n in names if n.lower() == word.lower()]
    return f"did you mean `{near[0]}`?" if near else ""


def listing(words: Iterable[str]) -> str:
    """`a, b and c`, each in backticks."""
    quoted = [f"`{w}`" for w in words]
    return " and ".join([*([", ".join(quoted[:-1])] if quoted[:-1] else []), *quoted[-1:]])


@dataclass(frozen=True)
class _Painter:
    """Lays a finding out as rustc does: header, place, excerpt with carets, help, notes."""

    colour: bool

    def paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.colour and text else text

    def diagnostic(self, d: Diagnostic, source: str) -> list[str]:
        tone = _RED if d.severity == "error" else _YELLOW
        head = self.paint(tone, f"{d.severity}[{d.code}]") + self.paint(_BOLD, f": {d.message}")
        width = len(str(d.span.line)) if d.span else 1
        gutter = " " * width
        lines = [head]
        if d.path:
            place = f"{d.path}:{d.span}" if d.span else d.path
            lines.append(f"{gutter}{self.paint(_BLUE, '-->')} {place}")
        if d.span and source:
            lines += self._excerpt(d, d.span, source, gutter, tone)
        marks = [("help", h) for h in d.help] + [("note", n) for n in d.notes]
        lines += [f"{gutter} {self.paint(_BLUE, '=')} {kind}: {text}" for kind, text in marks]
        return lines

    def _excerpt(self, d: Diagnostic, span: Span, source: str, gutter: str, tone: str) -> list[str]:
        rows = LINE_BREAK.split(source)
        text = rows[span.line - 1] if span.line <= len(rows) else ""
        before, marked = text[: span.column - 1], text[span.column - 1 : span.end - 1]
        carets = "^" * max(1, _width(marked))
        pointer = self.paint(tone, f"{carets} {d.label}".rstrip())
        bar = self.paint(_BLUE, "|")
        number = self.paint(_BLUE, str(span.line))
        return [
            f"{gutter} {bar}",
            f"{number} {bar} {_visible(text)}".rstrip(),
            f"{gutter} {bar} {' ' * _width(before)}{pointer}",
            f"{gutter} {bar}",
        ]


def _visible(text: str) -> str:
    """The text as a terminal may show it: tabs become spaces, control characters `?`."""
    spaced = text.replace("\t", "    ").lstrip("\ufeff")
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cf") else c for c in spaced)


def _width(text: str) -> int:
    """Terminal columns of a text: wide East Asian characters take two, combining marks none."""
    shown = _visible(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in shown)
    return len(shown) + wide - sum(unicodedata.combining(c) != 0 for c in shown)
