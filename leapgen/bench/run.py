"""`leapgen bench`: every contender at every configuration, one after the other on one device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from leapgen.bench import environment
from leapgen.bench.contest import Contest, Note, Opponents, Say, Scope
from leapgen.bench.results import Report
from leapgen.bench.timing import Timer, ceilings, timer_for
from leapgen.diagnostics import MissingTool
from leapgen.formats.table import FORMATS, NAMED
from leapgen.integrations.fla import RECURRENCES
from leapgen.integrations.peers import PEERS, peer_named
from leapgen.runtime.module import present_arch
from leapgen.schedule.arch import Arch, arch_named

BATCHES = (1, 8, 64, 256, 512)
HEADS = ((32, 32),)
REPEATS = 20
PER_STEP = ("fp32-step", "bf16-step")
"""Formats without a window: what a plain kernel does."""


@dataclass(frozen=True)
class Request:
    """What to measure; see the command's options.

    against   names of formats and peers, or ("all",), or () for none
    heads     (H, HV) pairs
    details   also places in a window, and the rarer calls
    """

    specs: tuple[str, ...]
    against: tuple[str, ...] = ("all",)
    batches: tuple[int, ...] = BATCHES
    heads: tuple[tuple[int, int], ...] = HEADS
    format: str | None = None
    picks: Mapping[str, str] = field(default_factory=dict)
    arch: str | None = None
    repeats: int = REPEATS
    details: bool = True

    @property
    def command(self) -> str:
        """The command line that asks for the same; files it writes are left out."""
        words = ["leapgen", "bench", *(Path(s).stem for s in self.specs)]
        words += ["--against", ",".join(self.against) or "none"]
        words += ["--batch", ",".join(map(str, self.batches))]
        words += ["--heads", ";".join(f"{h},{hv}" for h, hv in self.heads)]
        words += ["--format", self.format] if self.format else []
        words += [word for c, a in self.picks.items() for word in ("--pick", f"{c}={a}")]
        words += ["--repeats", str(self.repeats)]
        return shlex.join(words + ([] if self.details else ["--brief"]))


def figure7(request: Request) -> Request:
    """The paper's setting: 32 heads of 128 x 128, batches 64 to 512, beside the library that it
    compares with; the recurrences are those that this library has kernels for."""
    specs = request.specs or tuple(RECURRENCES)
    against = request.against
    if against == ("all",):
        against = (*(n for n in PER_STEP if n in FORMATS), "fla")
    return replace(
        request, specs=specs, against=against, heads=((32, 32),), batches=(64, 128, 256, 512)
    )


def run(
    request: Request, say: Say, note: Note, path: Path | None, timer: Timer | None = None
) -> Report:
    """Measures everything that the request names.

    say     told what is being done
    note    given each record as it is found, and the report
    path    where the report is saved after every configuration, so that a run cut short leaves
            what it has
    timer   in place of the device's
    Errors: LeapgenError, Diagnostics, MissingTool.
    """
    arch = present_arch() if request.arch is None else arch_named(request.arch)
    device = _device(arch)
    timer = timer or timer_for(device)
    opponents = _opponents(request.against)
    say("measuring the ceilings")
    report = Report(
        {**environment.describe(device, arch, request.command), "picks": dict(request.picks)},
        ceilings(timer, device, request.repeats),
    )
    scope = Scope(request.batches, request.heads, request.repeats, request.details)
    for spec in request.specs:
        contest = Contest(scope, spec, arch, device, timer, report, say, note)
        for _ in contest.run(request.format, request.picks, opponents):
            if path is not None:
                report.save(path)
    report.complete = True
    if path is not None:
        report.save(path)
    return report


def _opponents(against: tuple[str, ...]) -> Opponents:
    if against == ("all",):
        return Opponents(tuple(FORMATS), PEERS)
    formats = tuple(name for name in against if name in NAMED)
    return Opponents(formats, tuple(peer_named(n) for n in against if n not in NAMED))


def _device(arch: Arch) -> torch.device:
    if not arch.gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingTool(f"{arch.name} needs a CUDA device to be measured on; there is none here")
    return torch.device("cuda", torch.cuda.current_device())
