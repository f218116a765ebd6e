"""Code addresses in the messages of the checker, as lines of the CUDA source."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_PLACE = re.compile(r" ?PLACE<([0-9a-f]+)>")
_LINE = re.compile(r"kernel\.cu:(\d+)")
_SYMBOL = re.compile(
    r"([0-9a-f]+) \w (lg::check_block_started\(\)|_ZN2lg19check_block_startedEv)$", re.MULTILINE
)


def resolve(message: str, library: Path, source: str) -> str:
    """The message with ``PLACE<offset>`` replaced by the number and text of the source line.

    Offsets are relative to ``lg::check_block_started``; without binutils they are dropped.
    """
    offsets = _PLACE.findall(message)
    if not offsets:
        return message
    lines = source.splitlines()
    base = _symbol(library)

    def place(match: re.Match[str]) -> str:
        offset = int(match.group(1), 16)
        number = None if base is None or offset == 0 else _line(library, base + offset)
        if number is None or number > len(lines):
            return ""
        return f" (line {number}: {lines[number - 1].strip()[:160]})"

    return _PLACE.sub(place, message)


def _symbol(library: Path) -> int | None:
    nm = shutil.which("nm")
    if nm is None:
        return None
    done = subprocess.run([nm, str(library)], capture_output=True, text=True)
    found = _SYMBOL.search(done.stdout)
    return int(found.group(1), 16) if found else None


def _line(library: Path, address: int) -> int | None:
    """The line of the kernel that an address belongs to; calls that were inlined are followed."""
    tool = shutil.which("addr2line")
    if tool is None:
        return None
    wrapped = address % (1 << 32)  # offsets are kept in 32 bits
    command = [tool, "-e", str(library), "-i", hex(wrapped - 1)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = _LINE.search(done.stdout)
    return int(found.group(1)) if found else None
