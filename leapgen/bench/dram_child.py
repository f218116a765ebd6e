"""The process that `ncu` watches: prepares a pool, then launches what a Job names between marks.

python -m leapgen.bench.dram_child JOB_AS_JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch

from leapgen.bench import cases
from leapgen.bench.contender import contender
from leapgen.bench.dram import Job
from leapgen.bench.ours import Ours


def prepare(job: Job, device: torch.device) -> list[Callable[[], object]]:
    """One launch of one kernel each, in the job's order; everything is compiled."""
    who = contender(job.spec, job.arch, job.picks, job.format)
    shape = who.module.shape(**who.sizes(job.H, job.HV))
    case = cases.Draws(who.spec, device).case(shape, job.rows, 1)
    ours = Ours(who, case)

    def step(cursor: int) -> Callable[[], object]:
        view = ours.view(lambda rows: torch.full_like(rows, cursor), phase=-ours.window)

        def launch() -> object:
            with who.backend.without("flush"):
                return ours.step(0, cursor, view.pool)

        return launch

    if not ours.windowed:
        return [(lambda: ours.step(0, 0)) for _ in job.launches]
    full = ours.full()
    return [
        (lambda: ours.flush(0, full.pool)) if kernel == "flush" else step(cursor)
        for kernel, cursor in job.launches
    ]


def run(job: Job, device: torch.device) -> None:
    """Launches between the profiler's marks, one after the other."""
    launches = prepare(job, device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    with torch.cuda.profiler.profile() if cuda else nullcontext():
        for launch in launches:
            launch()
            if cuda:
                torch.cuda.synchronize(device)


def main() -> None:
    """Reads the job from the command line."""
    data = json.loads(sys.argv[1])
    job = Job(**{**data, "cursors": tuple(data["cursors"])})
    run(job, torch.device("cpu" if job.arch == "cpu" else "cuda"))


if __name__ == "__main__":
    main()
