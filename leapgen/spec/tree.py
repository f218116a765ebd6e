"""The tree of a YAML file: mappings, sequences and scalars that know their place.

Scalars follow the YAML 1.2 core schema: `1e-6` is a number, `no` and `12_0` are strings, `010` is
10. `reader` makes the tree, `check` holds it against the grammar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leapgen.diagnostics import Span
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
        """The value of a key, None where it is absent."""
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
