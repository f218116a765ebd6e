"""Code addresses in the messages of the checker, as lines of the CUDA source."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_PLACE = re.compile(r" ?(PLACE|LINE)<([0-9a-f]+)>")
_LINE = re.compile(r"kernel\.cu:(\d+)")
_SYMBOL = re.compile(r"^([0-9a-f]+) \w _ZN2lg19check_block_startedEv$", re.MULTILINE)


def resolve(message: str, library: Path, source: str) -> str:
    """The message with ``PLACE<offset>`` and ``LINE<number>`` replaced by the source line's text.

    Offsets are relative to ``lg::check_block_started``; without binutils they are dropped.
    """
    lines = source.splitlines()

    def place(match: re.Match[str]) -> str:
        if match.group(1) == "LINE":
            number: int | None = int(match.group(2), 16)
        else:
            number = _line(library, int(match.group(2), 16))
        if number is None or not 0 < number <= len(lines):
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


def _line(library: Path, offset: int) -> int | None:
    """The line of the kernel that a code address belongs to; inlined calls are followed."""
    tool, base = shutil.which("addr2line"), _symbol(library)
    if tool is None or base is None or offset == 0:
        return None
    address = (base + offset) % (1 << 32)  # offsets are kept in 32 bits; a call returns behind it
    command = [tool, "-e", str(library), "-i", hex(address - 1)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = _LINE.search(done.stdout)
    return int(found.group(1)) if found else None
