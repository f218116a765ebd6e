"""Counted bytes against the memory counters of Nsight Compute, kernel by kernel.

A child process runs under `ncu` and launches steps and a flush between profiler marks (see
dram_child.py). Reads are compared with DRAM's own counter: `ncu` empties the caches before each
kernel, so that every byte is fetched. What a kernel writes may still lie in the cache when it ends;
writes are therefore compared with the sectors that multiprocessors send to the cache, and DRAM's
own count is given beside it. (All writes of the cache would count twice what one half of it
forwards to the other.)
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from leapgen.bench import counts
from leapgen.diagnostics import LeapgenError, MissingTool
from leapgen.report.text import markdown_table
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
STORED = "lts__t_sectors_srcunit_tex_op_write.sum"
METRICS = (READ, WRITE, STORED)
SECTOR = 32
CLOSE = 0.05
"""Share by which counters may be off."""
TIMEOUT = 540
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1, "": 1}

Run = Callable[[list[str]], str]


@dataclass(frozen=True)
class Job:
    """What the child launches: a step with all rows at each cursor, then the flush of all rows.

    windowed   False: there are no cursors to set, and nothing to flush
    fused      the step reads the phase too; windows stay open all the same
    """

    spec: str
    arch: str
    format: str | None
    picks: dict[str, str]
    H: int
    HV: int
    rows: int
    cursors: tuple[int, ...]
    windowed: bool = True
    fused: bool = False

    @property
    def launches(self) -> list[tuple[str, int]]:
        """(kernel, cursor) in the order in which the child profiles them; a flush has no cursor of
        its own: windows are full."""
        steps = [("step", c) for c in self.cursors]
        return [*steps, ("flush", -1)] if self.windowed else steps


@dataclass(frozen=True)
class Comparison:
    """One kernel: bytes of the model and of the counters, in one direction.

    dram   DRAM's own count, where another counter is compared
    """

    spec: str
    kernel: str
    cursor: int
    way: str
    model: float
    measured: float
    dram: float

    @property
    def off(self) -> float:
        """How far the counter is above the model, as a share of the model."""
        return self.measured / self.model - 1

    @property
    def ok(self) -> bool:
        """Whether they agree."""
        return abs(self.off) <= CLOSE


def compare(plan: Plan, shape: Shape, job: Job, run: Run | None = None) -> list[Comparison]:
    """Runs a job under `ncu`.

    run   in place of a subprocess: command line -> what it prints
    Errors: MissingTool without ncu; LeapgenError if it fails or prints something else.
    """
    output = (run or _subprocess)(command(job))
    kernels = parse(output)
    if len(kernels) != len(job.launches):
        names = ", ".join(name for name, _ in kernels) or "none"
        raise LeapgenError(f"ncu: expected {len(job.launches)} kernels, found {names}")
    found = []
    for (kernel, cursor), (name, values) in zip(job.launches, kernels, strict=True):
        if kernel not in name:
            raise LeapgenError(f"ncu: expected a kernel named {kernel}, found {name}")
        place = shape.P if kernel == "flush" else cursor
        fused = job.fused and kernel == "step"
        model = counts.kernel(plan, shape, kernel, place, job.rows, phase=-shape.P, fused=fused)
        read, written = values[READ], values[WRITE]
        stored = values[STORED] * SECTOR
        found.append(Comparison(job.spec, kernel, place, "read", model.read, read, read))
        found.append(Comparison(job.spec, kernel, place, "write", model.write, stored, written))
    return found


def command(job: Job) -> list[str]:
    """The command line. Clocks are left as they are."""
    return [
        "ncu",
        "--clock-control=none",
        "--profile-from-start=off",
        "--print-units=base",
        "--csv",
        f"--metrics={','.join(METRICS)}",
        sys.executable,
        "-m",
        "leapgen.bench.dram_child",
        json.dumps(asdict(job)),
    ]


def _subprocess(words: list[str]) -> str:
    if shutil.which(words[0]) is None:
        raise MissingTool("`ncu` (Nsight Compute) is not on PATH")
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise LeapgenError(f"ncu: no result after {TIMEOUT} s") from None
    if done.returncode:
        raise LeapgenError(f"ncu failed:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout


def parse(output: str) -> list[tuple[str, Mapping[str, float]]]:
    """(kernel name, metric -> bytes or sectors) of each launch, in order, from `ncu --csv`: one
    line a metric, or (page raw) one a launch with units in the first.

    Errors: LeapgenError if there is no table in the output.
    """
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise LeapgenError(f"ncu printed no table:\n{output[-1500:]}")
    rows = list(csv.DictReader(lines[start:]))
    return _long(rows) if rows and "Metric Name" in rows[0] else _wide(rows)


def _long(rows: Iterable[Mapping[str, str]]) -> list[tuple[str, Mapping[str, float]]]:
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in rows:
        _, values = found.setdefault(row["ID"], (row["Kernel Name"], {}))
        values[row["Metric Name"]] = _number(row["Metric Value"], row["Metric Unit"])
    return list(found.values())


def _wide(rows: list[dict[str, str]]) -> list[tuple[str, Mapping[str, float]]]:
    units, *launches = rows
    return [
        (row["Kernel Name"], {m: _number(row[m], units[m]) for m in METRICS}) for row in launches
    ]


def _number(text: str, unit: str) -> float:
    if unit not in UNITS:
        raise LeapgenError(f"ncu: unknown unit {unit!r}; known: {', '.join(filter(None, UNITS))}")
    return float(text.replace(",", "")) * UNITS[unit]


def markdown(comparisons: Iterable[Comparison]) -> str:
    """A table in MB."""
    head = ("spec", "kernel", "cursor", "way", "model, MB", "counted, MB", "off", "DRAM, MB", "")
    rows = [
        (
            c.spec,
            c.kernel,
            str(c.cursor),
            c.way,
            f"{c.model / 1e6:.2f}",
            f"{c.measured / 1e6:.2f}",
            f"{100 * c.off:+.1f}%",
            f"{c.dram / 1e6:.2f}",
            "ok" if c.ok else "OFF",
        )
        for c in comparisons
    ]
    return markdown_table(head, rows)
