"""Tuned configs, and the keys of compiled and measured kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .descriptors import Shape


@dataclass(frozen=True)
class Tuned:
    """Configs found best for one shape and number of rows, by kernel. A kernel that has none keeps
    its default rule's."""

    shape: Shape
    rows: int
    configs: Mapping[str, Mapping[str, Any]]


def key_of(**parts: Any) -> str:
    """The one key of compiled kernels, in memory, and of measured ones, on disk.

    Texts are equal iff all parts are: the order of mappings does not count, types do (True is not
    1, 1 is not 1.0). Parts are JSON values. Errors: TypeError, ValueError for anything else.
    """
    for part in parts.values():
        _check_plain(part)
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_plain(value: Any) -> None:
    """JSON alone would turn the key 1 of a mapping into "1"."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"names must be text: {list(value)}")
        value = value.values()
    if not isinstance(value, str | int | float | None):
        for part in value:
            _check_plain(part)
