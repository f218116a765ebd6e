"""A digest of the frozen values of this package: equal meaning, equal digest, on every run."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import sympy

from leapgen.diagnostics import Span

RARE = "rare"
"""Key of a field's metadata: see _counts."""
_PLACES = {"span", "path", "source", "doc", "proofs"}  # where something stands, and prose


def digest(value: object) -> str:
    """16 hexadecimal digits of SHA-256 over the canonical spelling."""
    return hashlib.sha256(spelling(value).encode()).hexdigest()[:16]


def spelling(value: object) -> str:
    """The canonical text: names of dataclasses and fields, expressions in SymPy's spelling."""
    if isinstance(value, sympy.Basic):
        return str(sympy.srepr(value))
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {spelling(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(spelling(item) for item in value) + ")"
    if value is None or isinstance(value, str | int | bool):
        return repr(value)
    if isinstance(value, Span) or not dataclasses.is_dataclass(value):
        raise TypeError(f"no canonical spelling of {type(value).__name__}")
    fields = [f.name for f in dataclasses.fields(value) if _counts(f, getattr(value, f.name))]
    inner = ", ".join(f"{name}={spelling(getattr(value, name))}" for name in fields)
    return f"{type(value).__name__}({inner})"


def _counts(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether a field is spelled. One that is marked `rare` is not while it has its default, so
    that a value which does without it keeps its digest when the field is new."""
    if field.name in _PLACES:
        return False
    return not (RARE in field.metadata and value == field.default)
