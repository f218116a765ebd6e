"""Clocks that do not measure, reports that nobody measured, and a small case on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from leapgen.bench import cases
from leapgen.bench.contender import Contender, contender
from leapgen.bench.results import Absent, Operation, Position, Record, Report
from leapgen.bench.timing import Ceilings, Timing
from leapgen.integrations.peers import Case

H, HV, ROWS = 1, 2, 3
CPU = torch.device("cpu")


@dataclass
class CountingTimer:
    """Runs everything as often as a clock would; every sample takes as many microseconds as the
    body made launches, by a counter that the test supplies."""

    launches: Callable[[], int] = lambda: 1
    samples: list[int] = field(default_factory=list)

    def sample(self, prepare: Any, body: Any, repeats: int) -> list[float]:
        prepare()
        before = self.launches()
        body()
        self.samples.append(self.launches() - before)
        return [float(max(1, self.samples[-1]))] * repeats


@cache
def subject() -> Contender:
    return contender("gdn", "cpu")


def small_case(sets: int = 2) -> Case:
    who = subject()
    shape = who.module.shape(**who.sizes(H, HV))
    return cases.Draws(who.spec, CPU).case(shape, ROWS, sets)


TIMES = {
    "leapquant-int8": ("subject", (17.3, 107.0), (25400, 800)),
    "fp32-window": ("format", (60.0, 400.0), (66500, 4000)),
    "other": ("peer", (95.6, 727.0), (66500, 66000)),
}


def made_up(*specs: str) -> Report:
    """A finished report with two batches for each spec."""
    environment = {
        "device": "NVIDIA H200",
        "arch": "sm90",
        "driver": "580.1",
        "cuda": "13.0",
        "python": "3.12",
        "versions": {"leapgen": "0.1.0", "torch": "2.11.0"},
        "date": "2026-11-30 03:00 UTC",
        "command": "leapgen bench",
        "picks": {},
    }
    report = Report(environment, Ceilings(4.4e12, 4.2e12, 4 << 30), complete=True)
    for spec in specs:
        for name, (role, times, size) in TIMES.items():
            for rows, time in zip((64, 512), times, strict=True):
                report.records.append(_record(spec, name, role, rows, time, size))
        timing = Timing(200.0, 190.0, 210.0)
        report.operations.append(
            Operation(spec, "leapquant-int8", "copy", 512, 32, 32, timing, 8e8)
        )
    report.absent.append(Absent(specs[0], "absent-peer", "cannot be imported: no such module"))
    return report


def _record(
    spec: str, name: str, role: str, rows: int, time: float, size: tuple[int, int]
) -> Record:
    mine = role == "subject"
    return Record(
        spec=spec,
        contender=name,
        title=name,
        role=role,
        rows=rows,
        H=32,
        HV=32,
        K=128,
        V=128,
        window=16 if role != "peer" else 1,
        compensators=4,
        sets=1,
        tokens=16,
        token=Timing(time, time * 0.98, time * 1.1),
        read=float(size[0] * rows * 32),
        write=float(size[1] * rows * 32),
        step=Timing(time / 1.06, time / 1.1, time) if mine else None,
        step_bytes=size[0] * rows * 32 * 0.95,
        positions=(Position("mixed", time, time), Position("equal", time, 6 * time))
        if mine
        else (),
        error=1e-3,
        bound=1e-2,
    )
