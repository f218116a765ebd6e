"""Tidying of rendered text: blank lines, and lines that formulas made too long."""

from __future__ import annotations

from collections.abc import Iterator

WIDTH = 100
_CLOSES = {"(": ")", "[": "]", "{": "}"}


def tidy(text: str) -> str:
    """No trailing blanks, at most two blank lines in a row, long calls on several lines."""
    lines: list[str] = []
    for line in (part for whole in text.splitlines() for part in _wrap(whole.rstrip())):
        if line or lines[-2:] != ["", ""]:
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def _wrap(line: str) -> Iterator[str]:
    """Breaks a long line at the round bracket that closes at its end, as a formatter would."""
    opened = _last_group(line)
    if len(line) <= WIDTH or opened is None:
        yield line
        return
    margin = line[: len(line) - len(line.lstrip())]
    yield line[: opened + 1]
    yield from _wrap(f"{margin}    {line[opened + 1 : -1]}")
    yield margin + line[-1]


def _last_group(line: str) -> int | None:
    """Index of the bracket that the line's last character closes; None if there is no such."""
    stack: list[int] = []
    quote = ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            return None
        elif character in _CLOSES:
            stack.append(index)
        elif character in _CLOSES.values():
            if not stack or _CLOSES[line[stack[-1]]] != character:
                return None
            opened = stack.pop()
            if index == len(line) - 1 and not stack and character == ")" and opened + 1 < index:
                return opened
    return None
