"""Arguments of a launch in memory of their own, with unreadable pages on both sides."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

MARGIN = 16 << 20  # reserved address space beside each region, in bytes; costs no memory
_PAGE = mmap.PAGESIZE
_NONE = 0  # PROT_NONE
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NORESERVE = 0x4000  # MAP_NORESERVE of Linux


@dataclass(frozen=True)
class Block:
    """A range of the caller's memory: ``size`` bytes at ``address``."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Region:
    """A guarded copy of one range, ``begin`` to ``end``, inside the reserved ``outer`` range."""

    names: tuple[str, ...]
    source: int
    begin: int
    end: int
    outer: tuple[int, int]


class Guard:
    """A context in which the given ranges have copies that end at an unreadable page.

    Ranges that overlap share a copy, so aliasing stays as it is. The distance of a copy's start
    from a 64-byte boundary is that of the original. ``keep`` writes the copies back.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._groups = _overlapping([block for block in blocks if block.size])
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                    ctypes.c_long]  # fmt: skip
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.regions: list[Region] = []

    def __enter__(self) -> Guard:
        self.regions = [self._copy(group) for group in self._groups]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for region in self.regions:
            self._libc.munmap(region.outer[0], region.outer[1] - region.outer[0])
        self.regions = []

    def address(self, block: Block) -> int:
        """Where the copy of a range begins."""
        for region in self.regions:
            if block.size and region.source <= block.address < region.source + _size(region):
                return region.begin + block.address - region.source
        return block.address

    def keep(self) -> None:
        """Write every copy back to the caller's memory."""
        for region in self.regions:
            ctypes.memmove(region.source, region.begin, _size(region))

    def _copy(self, group: list[Block]) -> Region:
        start = group[0].address
        size = max(block.address + block.size for block in group) - start
        pages = (size + 64 + _PAGE - 1) // _PAGE * _PAGE
        total = pages + 2 * MARGIN
        outer = self._libc.mmap(None, total, _NONE, _ANONYMOUS | _NORESERVE, -1, 0)
        if outer in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{total} bytes of address space for {group[0].name}")
        inner = outer + MARGIN
        self._libc.mprotect(inner, pages, _READ_WRITE)
        ctypes.memset(inner, 0xFF, pages)
        begin = inner + pages - size
        begin -= (begin - start) % 64
        ctypes.memmove(begin, start, size)
        names = tuple(block.name for block in group)
        return Region(names, start, begin, begin + size, (outer, outer + total))


def _size(region: Region) -> int:
    return region.end - region.begin


def _overlapping(blocks: list[Block]) -> list[list[Block]]:
    """Groups of ranges that share bytes, each sorted by address."""
    groups: list[list[Block]] = []
    end = 0
    for block in sorted(blocks, key=lambda b: b.address):
        if block.address >= end:
            groups.append([])
        groups[-1].append(block)
        end = max(end, block.address + block.size)
    return groups
