"""What the host raises."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument was refused before any launch; says which, what was expected and found."""


class CompileError(RuntimeError):
    """TileLang failed to build or compile a kernel of a generated module."""


def refuse(name: str, expected: object, found: object) -> ArgumentError:
    """The error for an argument that is not what is expected."""
    return ArgumentError(f"{name}: expected {expected}, found {found}")
