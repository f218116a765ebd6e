"""YAML text to a tree, straight from PyYAML's events.

Anchors, aliases and tags have no use in a spec and are refused, and so are duplicate keys. A YAML
syntax error ends the run, since nothing after it could be trusted; everything else is collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import yaml

from leapgen.diagnostics import LINE_BREAK, Report, Span
from leapgen.spec.parser import Place
from leapgen.spec.tree import Broken, Entry, Items, Leaf, Table, Tree, scalar


def read(report: Report) -> Tree:
    """The tree of `report.source`.

    Raises:
        Diagnostics: at once on a YAML syntax error and for a file without content.
    """
    try:
        tree = _Reader(report).document()
    except yaml.MarkedYAMLError as error:
        _syntax_error(error, report)
    except yaml.reader.ReaderError as error:
        _unreadable(error, report)
    except RecursionError:
        report.error("yaml-syntax", "the file is nested too deeply", None, help="flatten it")
    else:
        if tree is not None:
            return tree
        help_text = "start from one of the specs that leapgen ships"
        report.error("empty-file", "the file holds no spec", None, help=help_text)
    report.raise_errors()
    raise AssertionError("a finding was reported above")


def _syntax_error(error: yaml.MarkedYAMLError, report: Report) -> None:
    mark, problem = error.problem_mark or error.context_mark, error.problem or "it cannot be read"
    span = Span(mark.line + 1, mark.column + 1, mark.column + 2) if mark else None
    hints = "quotes, brackets and indentation must close what they open"
    if "cannot start any token" in problem:
        hints = "quote a text that starts with this character"
    elif "mapping values are not allowed" in problem:
        hints = "quote a text that contains `: `"
    where = error.context_mark
    note = f"{error.context}, line {where.line + 1}" if error.context and where else ""
    report.error("yaml-syntax", f"this is not YAML: {problem}", span, help=hints, notes=note)


def _unreadable(error: yaml.reader.ReaderError, report: Report) -> None:
    rows = LINE_BREAK.split(report.source[: error.position])
    column = len(rows[-1]) + 1
    message = "this is not YAML: a character that may not stand in a text file"
    help_text = "remove it, or write it as an escape in double quotes"
    report.error("yaml-syntax", message, Span(len(rows), column, column + 1), help=help_text)


@dataclass(frozen=True)
class _Piece:
    """A scalar as the file has it: content, style, and the range of characters it takes."""

    text: str
    style: str | None
    span: Span
    start: int
    end: int
    one_line: bool

    @property
    def plain(self) -> bool:
        return not self.style


@dataclass
class _Reader:
    """Pulls events and makes trees of them, depth first."""

    report: Report
    source: str = field(init=False)
    events: Iterator[yaml.Event] = field(init=False)

    def __post_init__(self) -> None:
        self.source = self.report.source.removeprefix("\ufeff")  # marks count from behind it
        self.events = yaml.parse(self.source, Loader=yaml.SafeLoader)

    def document(self) -> Tree | None:
        """The only document of the file, None where there is none."""
        next(self.events)  # start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        tree = self._tree(next(self.events))
        next(self.events)  # end of the document
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            help_text = "put the second one into a file of its own"
            message = "a spec is one YAML document"
            self.report.error("yaml-syntax", message, _span(event), help=help_text)
        return tree

    def _tree(self, event: yaml.Event) -> Tree:
        refused = self._refused(event)
        match event:
            case yaml.MappingStartEvent():
                return self._table(event)
            case yaml.SequenceStartEvent():
                return self._items(event)
            case yaml.ScalarEvent() if not refused:
                return self._leaf(_piece(event))
        return Broken(_span(event))

    def _refused(self, event: yaml.Event) -> bool:
        """Report what specs do not use."""
        if isinstance(event, yaml.AliasEvent):
            code, what = "yaml-alias", "aliases"
        elif getattr(event, "anchor", None) is not None:
            code, what = "yaml-alias", "anchors"
        elif getattr(event, "tag", None) is not None:
            code, what = "yaml-tag", "tags"
        else:
            return False
        help_text = "a text that starts with `*`, `&` or `!` must be quoted"
        self.report.error(code, f"{what} are not used in specs", _span(event), help=help_text)
        return True

    def _items(self, start: yaml.Event) -> Items:
        values = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self._tree(event))
        return Items(tuple(values), _span(start, event))

    def _leaf(self, piece: _Piece) -> Leaf:
        value = scalar(piece.text) if piece.plain else piece.text
        place = None
        if piece.one_line and piece.style not in ("|", ">"):
            written = self.source[piece.start : piece.end]
            place = Place(piece.span.line, columns(written, piece.span.column))
        return Leaf(value, piece.text, piece.span, place)

    def _table(self, start: yaml.MappingStartEvent) -> Table:
        entries: dict[str, Entry] = {}
        event = next(self.events)
        while not isinstance(event, yaml.MappingEndEvent):
            key = event
            if not isinstance(key, yaml.ScalarEvent) or self._refused(key):
                self._skip_key(key)
                event = next(self.events)
                continue
            value, event = self._value(bool(start.flow_style))
            span = _span(key)
            if key.value in entries:
                note = f"first given in line {entries[key.value].key.line}"
                message = f"`{key.value}` is given twice"
                self.report.error("duplicate-key", message, span, "", "keep one of them", note)
            else:
                entries[key.value] = Entry(span, value)
        return Table(entries, _span(start, event))

    def _skip_key(self, key: yaml.Event) -> None:
        """Read past a key that is no word, and past its value."""
        if not isinstance(key, yaml.ScalarEvent):
            span = self._tree(key).span
            help_text = "put what contains `{` or `[` in quotes"
            self.report.error("wrong-type", "a key must be a plain word", span, help=help_text)
        self._tree(next(self.events))

    def _value(self, flow: bool) -> tuple[Tree, yaml.Event]:
        """A value and the event behind it; a text that YAML cut at a comma is put together."""
        event = next(self.events)
        if not flow or not isinstance(event, yaml.ScalarEvent):
            return self._tree(event), next(self.events)
        if self._refused(event):
            return Broken(_span(event)), next(self.events)
        piece, after, cut = _piece(event), next(self.events), None
        while _goes_on(piece) and isinstance(after, yaml.ScalarEvent):
            key, empty = _piece(after), next(self.events)
            if not _bare(key, empty):
                self._push(empty)
                break
            cut = cut or key
            text = self.source[piece.start : key.end]
            span = Span(piece.span.line, piece.span.column, key.span.end)
            piece = _Piece(text, None, span, piece.start, key.end, piece.one_line and key.one_line)
            after = next(self.events)
        if cut is not None:
            self._cut(cut, piece)
        return self._leaf(piece), after

    def _push(self, event: yaml.Event) -> None:
        """Put an event back in front of the rest."""
        self.events = chain((event,), self.events)

    def _cut(self, second: _Piece, whole: _Piece) -> None:
        comma = self.source.rfind(",", 0, second.start)
        column = max(second.span.column - (second.start - comma), 1)
        span = Span(second.span.line, column, column + 1)
        message = "inside `{}` a comma ends the value, so YAML cuts this text in two"
        help_text = f'quote it: "{whole.text}"'
        self.report.error("unquoted-comma", message, span, label="ends the value", help=help_text)


def _piece(event: yaml.ScalarEvent) -> _Piece:
    start, end = _marks(event, event)
    one_line = start.line == end.line
    return _Piece(event.value, event.style, _span(event), start.index, end.index, one_line)


def _goes_on(piece: _Piece) -> bool:
    """An unquoted text that may go on after a comma: an open parenthesis, or several words."""
    return piece.plain and (piece.text.count("(") > piece.text.count(")") or " " in piece.text)


def _bare(key: _Piece, value: yaml.Event) -> bool:
    """A key without a colon and a value, as `b)` in `{x: max(a, b)}`."""
    return (
        isinstance(value, yaml.ScalarEvent) and _piece(value).start == key.end == _piece(value).end
    )


def _marks(first: yaml.Event, last: yaml.Event) -> tuple[yaml.Mark, yaml.Mark]:
    """Start of one event and end of another; events of the pure-Python loader have both."""
    start, end = first.start_mark, last.end_mark
    assert isinstance(start, yaml.Mark)
    assert isinstance(end, yaml.Mark)
    return start, end


def _span(first: yaml.Event, last: yaml.Event | None = None) -> Span:
    """Span from one event to another on the same line; what is longer is marked at its start."""
    start, end = _marks(first, last or first)
    width = end.column - start.column if end.line == start.line else 1
    return Span(start.line + 1, start.column + 1, start.column + 1 + max(width, 1))


_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


def columns(written: str, column: int) -> tuple[int, ...]:
    """Columns of the characters of a one-line scalar's content, and of its end.

    `written` is the scalar as it stands in the file, quotes and escapes included; `column` is the
    1-based column of its first character.
    """
    quote = written[:1] if written[:1] in ("'", '"') else ""
    if not quote:
        return tuple(range(column, column + len(written) + 1))
    result, index, end = [], 1, len(written) - 1
    while index < end:
        result.append(column + index)
        escape = _ESCAPE.match(written, index) if quote == '"' else None
        doubled = quote == "'" and written.startswith("''", index)
        index = escape.end() if escape else index + (2 if doubled else 1)
    return (*result, column + end)
