"""YAML text to a small tree that knows the place of every key and value.

PyYAML composes nodes; scalars follow the YAML 1.2 core schema (`1e-6` is a number, `no` and `12_0`
are strings, `010` is 10). Anchors, aliases and tags have no use in a spec and are refused, and so
are duplicate keys. A YAML syntax error ends the run; everything else is collected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from leapgen.diagnostics import Report, Span
from leapgen.spec.parser import Place

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Leaf:
    """A scalar. `text` is its content as written (quotes and escapes undone); `place` maps
    characters of the text to columns, None when the text spans several lines."""

    value: Scalar
    text: str
    span: Span
    place: Place | None = None


@dataclass(frozen=True)
class Items:
    """A sequence."""

    values: tuple[Tree, ...]
    span: Span

    def __iter__(self) -> Iterator[Tree]:
        return iter(self.values)


@dataclass(frozen=True)
class Entry:
    """One `key: value` of a mapping; `key` is the span of the key."""

    key: Span
    value: Tree


@dataclass(frozen=True)
class Table:
    """A mapping with its entries in file order. `span` marks its first line."""

    entries: Mapping[str, Entry]
    span: Span

    def get(self, name: str) -> Tree | None:
        entry = self.entries.get(name)
        return entry.value if entry else None

    def key(self, name: str) -> Span:
        """Span of a key, or of the table where the key is absent."""
        return self.entries[name].key if name in self.entries else self.span


@dataclass(frozen=True)
class Broken:
    """What stood here was reported; nothing more can be said about it."""

    span: Span


Tree = Leaf | Items | Table | Broken

_INTEGER = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def scalar(text: str) -> Scalar:
    """The value of an unquoted scalar by the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 1000:  # int() refuses beyond 4300 digits
        return int(text)
    if _PREFIXED.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return -math.inf if text[0] == "-" else math.inf
    return math.nan if text in (".nan", ".NaN", ".NAN") else text


class _Loader(yaml.SafeLoader):
    """Composes only; notes what specs do not use. Scalars are resolved by `scalar`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.refused: list[tuple[str, str, yaml.Mark, yaml.Mark]] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self.get_event()
            self._refuse("yaml-alias", "aliases are not used in specs", event)
            return yaml.ScalarNode("refused", "", event.start_mark, event.end_mark)
        if getattr(event, "tag", None) is not None:
            self._refuse("yaml-tag", "tags are not used in specs", event)
        if getattr(event, "anchor", None) is not None:
            self._refuse("yaml-alias", "anchors are not used in specs", event)
        return super().compose_node(parent, index)

    def _refuse(self, code: str, message: str, event: yaml.Event) -> None:
        self.refused.append((code, message, event.start_mark, event.end_mark))


def read(report: Report) -> Tree | None:
    """Compose `report.source`. None when the text is empty, after noting that.

    Raises:
        Diagnostics: at once on a YAML syntax error; nothing after it could be trusted.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(report.source)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        _syntax_error(error, report)
        return None
    except yaml.reader.ReaderError as error:
        _unreadable(error, report)
        return None
    except RecursionError:
        report.error("yaml-syntax", "the file is nested too deeply", None)
        report.raise_errors()
        return None
    finally:
        if loader is not None:
            loader.dispose()
    for code, message, start, end in loader.refused:
        quoting = "a text that starts with `*`, `&` or `!` must be quoted"
        report.error(code, message, exact(start, end), help=quoting)
    if root is None:
        report.error("empty-file", "the file holds no spec", None)
        return None
    return _Builder(report).tree(root)


def _syntax_error(error: yaml.MarkedYAMLError, report: Report) -> None:
    mark = error.problem_mark or error.context_mark
    span = Span(mark.line + 1, mark.column + 1, mark.column + 2) if mark else None
    problem = error.problem or "it cannot be read"
    hints = ""
    if "cannot start any token" in problem:
        hints = "quote a formula that starts with this character"
    elif "mapping values are not allowed" in problem:
        hints = "quote a text that contains `: `"
    where = error.context_mark
    note = f"{error.context}, line {where.line + 1}" if error.context and where else ""
    report.error("yaml-syntax", f"this is not YAML: {problem}", span, help=hints, notes=note)
    report.raise_errors()


def _unreadable(error: yaml.reader.ReaderError, report: Report) -> None:
    before = report.source[: error.position]
    line, column = before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1
    message = "this is not YAML: a character that may not stand in a text file"
    report.error("yaml-syntax", message, Span(line, column, column + 1))
    report.raise_errors()


@dataclass(frozen=True)
class _Builder:
    """Nodes to trees; reports duplicate keys and formulas that a comma cuts in two."""

    report: Report
    source: str = field(init=False)

    def __post_init__(self) -> None:
        # Marks count from the text after a byte order mark.
        object.__setattr__(self, "source", self.report.source.removeprefix("\ufeff"))

    def tree(self, node: yaml.Node) -> Tree:
        if isinstance(node, yaml.MappingNode):
            return self._table(node)
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.tree(n) for n in node.value), self._span(node))
        return self._leaf(node)

    def _span(self, node: yaml.Node) -> Span:
        return exact(node.start_mark, node.end_mark)

    def _leaf(self, node: yaml.Node) -> Leaf:
        span, text = self._span(node), str(node.value)
        style = getattr(node, "style", None)
        value = text if style else scalar(text)
        place = None
        if node.start_mark.line == node.end_mark.line and style not in ("|", ">"):
            written = self.source[node.start_mark.index : node.end_mark.index]
            place = Place(span.line, columns(written, span.column))
        return Leaf(value, text, span, place)

    def _table(self, node: yaml.MappingNode) -> Table:
        entries: dict[str, Entry] = {}
        for key, value in self._pairs(node):
            span = self._span(key)
            if not isinstance(key, yaml.ScalarNode):
                self.report.error("wrong-type", "a key must be a plain word", span)
            elif key.value in entries:
                first = entries[key.value].key
                note = f"first given in line {first.line}"
                self.report.error(
                    "duplicate-key", f"`{key.value}` is given twice", span, notes=note
                )
            else:
                entries[key.value] = Entry(span, self.tree(value))
        return Table(entries, self._span(node))

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes; a formula that YAML cut at a comma is reported and put together."""
        pairs = list(node.value)
        while pairs:
            key, value = pairs.pop(0)
            rest: list[yaml.Node] = []
            while node.flow_style and pairs and _open(value) and _bare(*pairs[0]):
                rest.append(pairs.pop(0)[0])
                value = self._joined(value, rest[-1])
            if rest:
                self._cut(rest[0], value)
            yield key, value

    def _joined(self, first: yaml.Node, last: yaml.Node) -> yaml.ScalarNode:
        text = self.source[first.start_mark.index : last.end_mark.index]
        return yaml.ScalarNode("joined", text, first.start_mark, last.end_mark)

    def _cut(self, second: yaml.Node, whole: yaml.Node) -> None:
        mark = second.start_mark
        comma = self.source.rfind(",", 0, mark.index)
        column = mark.column + 1 - (mark.index - comma)
        span = Span(mark.line + 1, max(column, 1), max(column, 1) + 1)
        message = "inside `{}` a comma ends the value, so YAML cuts this text in two"
        fixed = f'quote it: "{whole.value}"'
        self.report.error("unquoted-comma", message, span, label="ends the value", help=fixed)


def exact(start: yaml.Mark, end: yaml.Mark) -> Span:
    """Span between two marks of one line; a text of several lines is marked by its start."""
    same = end.line == start.line and end.column > start.column
    return Span(start.line + 1, start.column + 1, (end if same else start).column + 1 + (not same))


def _open(value: yaml.Node) -> bool:
    """An unquoted scalar that may go on after a comma: an open parenthesis, or several words."""
    if not isinstance(value, yaml.ScalarNode) or value.style:
        return False
    return value.value.count("(") > value.value.count(")") or " " in value.value


def _bare(key: yaml.Node, value: yaml.Node) -> bool:
    """A key without a colon and a value, as `b)` in `{x: max(a, b)}`."""
    scalars = isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)
    return scalars and value.value == "" and value.start_mark.index == key.end_mark.index


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
