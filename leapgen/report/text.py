"""Plain tables and numbers, the same on a terminal, in a pipe and in a Markdown file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns separated by two blanks; numbers stand to the right. No trailing newline."""
    body = [[str(cell) for cell in row] for row in rows]
    lines = [list(header), *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    right = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(header))]
    return "\n".join(_line(line, widths, right) for line in lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, padded so that it also reads well as text."""
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [list(header), *body]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    right = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(header))]
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    padded = [
        [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        for line in (lines[0], rule, *lines[1:])
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def scientific(value: float) -> str:
    """An error or a bound with three digits: `1.65e-03`, `0`."""
    return "0" if value == 0 else f"{value:.2e}"


def configs_text(configs: Mapping[str, Mapping[str, object]]) -> str:
    """Configs by kernel in words: `step: threads 128, staged; flush: no knobs`."""
    parts = []
    for kernel, config in configs.items():
        words = [
            k if v is True else f"no {k}" if v is False else f"{k} {v}" for k, v in config.items()
        ]
        parts.append(f"{kernel}: {', '.join(words) or 'no knobs'}")
    return "; ".join(parts)


def integer(value: int) -> str:
    """Thousands separated by commas."""
    return f"{value:,}"


def _is_number(cell: str) -> bool:
    return cell.strip("-").replace(",", "").replace(".", "").replace("e", "").replace(
        "-", ""
    ).replace("+", "").isdigit() or cell in ("", "-")


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()
