"""What compiled kernels need of a device, as rows of a table and of the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leapgen.report.text import table

Key = tuple[str, str, str, int, int, int, int]


@dataclass(frozen=True)
class Usage:
    """What one kernel needs at one shape. Sizes in bytes; spills and stack are a thread's.

    models   whose shape it is; empty: a single head of the spec's own dimensions
    digest   of the part of the module's text that the kernel comes from
    config   tuning arguments that it was compiled with
    nvcc     version that assigned the registers; empty: not known
    CPU kernels have no such figures: 0 everywhere, and no nvcc.
    """

    path: str
    kernel: str
    target: str
    K: int
    V: int
    H: int
    HV: int
    models: tuple[str, ...]
    threads: int = 0
    registers: int = 0
    spills: int = 0
    stack: int = 0
    shared: int = 0
    digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    nvcc: str = ""

    @property
    def key(self) -> Key:
        """What a later record replaces. The nvcc is no part of it: figures of another one are
        shown as such, and stand until they are measured again."""
        return (self.path, self.kernel, self.target, self.K, self.V, self.H, self.HV)

    @property
    def arch(self) -> str:
        """The arch's name, which is the module's folder."""
        return self.path.split("/")[0]

    @property
    def ok(self) -> bool:
        """A step must all but live in registers: what closes a window in the same launch may have a
        small frame. Other kernels run once a window or once a request."""
        return self.kernel != "step" or self.stack <= LARGEST_FRAME


LARGEST_FRAME = 64
"""Bytes of a stack frame that a kernel which closes windows may have."""

HEADER = (
    "module",
    "shape",
    "kernel",
    "target",
    "threads",
    "registers",
    "spills",
    "stack",
    "shared",
)


def text(rows: list[Usage], nvcc: str) -> str:
    """A line a kernel and shape, the steps that do not fit into registers, and the kernels that
    another nvcc than the present one has measured."""
    body = [
        (
            u.path,
            f"{u.K}x{u.V}, {u.H}/{u.HV} heads",
            u.kernel,
            u.target,
            *(f"{n:,}" for n in (u.threads, u.registers, u.spills, u.stack, u.shared)),
        )
        for u in rows
    ]
    wrong = [u for u in rows if not u.ok]
    lines = [table(HEADER, body)]
    lines += [
        f"FAILED {u.path} {u.K}x{u.V}: a step with a stack frame of more than 64 bytes"
        for u in wrong
    ]
    others = Counter(u.nvcc for u in rows if u.registers and u.nvcc != nvcc)
    lines += [
        f"{count} kernels were measured with nvcc {other or '(not known)'}, here is {nvcc}; "
        "--remeasure measures them again"
        for other, count in sorted(others.items())
    ]
    return "\n".join(lines)
