"""What the command does with its options: defaults by name, files, and the two streams."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from leapgen.bench import dram, environment, results, text
from leapgen.bench.contender import contender
from leapgen.bench.results import Report
from leapgen.bench.run import HEADS, Request, figure7, run
from leapgen.diagnostics import LeapgenError, MissingTool
from leapgen.files import write_atomic
from leapgen.runtime.module import present_arch
from leapgen.schedule.arch import Arch, arch_named

Print = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The command's options as they were written. Errors of `request`: LeapgenError."""

    specs: tuple[str, ...]
    against: str
    batch: str
    heads: str
    format: str | None
    picks: dict[str, str]
    arch: str | None
    repeats: int
    brief: bool
    figure7: bool
    dram: bool

    def request(self) -> Request:
        """Checked."""
        asked = Request(
            specs=self.specs,
            against=() if self.against == "none" else tuple(self.against.split(",")),
            batches=_numbers(self.batch, "--batch"),
            heads=_head_pairs(self.heads),
            format=self.format,
            picks=self.picks,
            arch=self.arch,
            repeats=self.repeats,
            details=not self.brief,
        )
        asked = figure7(asked) if self.figure7 else asked
        if not asked.specs:
            raise LeapgenError("name a spec, or ask for --figure7")
        return asked


@dataclass(frozen=True)
class Files:
    """Where results go. None: beside each other under tuning/, by the request's name; the picture
    only where matplotlib is installed.

    saved   a result that is shown instead of measuring anything
    """

    json: Path | None = None
    plot: Path | None = None
    saved: Path | None = None


def execute(options: Options, files: Files, say: Print, note: Print) -> tuple[str, bool]:
    """What goes to stdout, and whether all was right. say: progress; note: lines that stay.

    Errors: LeapgenError, Diagnostics, MissingTool (a picture is asked for without matplotlib).
    """
    if files.plot is not None:
        _need_matplotlib()
    if files.saved is not None:
        report = _read(files.saved)
        if files.plot is not None:
            _draw(report, files.plot, note)
        return text.markdown(report), report.ok
    request = options.request()
    path = files.json or _default_file(request, options)
    if options.dram:
        return _dram(request, path, say, note)
    report = run(request, say, lambda r, whole: note(text.line(r, whole)), path)
    note(f"wrote {path}")
    if files.plot is not None or _can_plot():
        _draw(report, files.plot or path.with_suffix(".png"), note)
    return text.markdown(report), report.ok


def _dram(request: Request, path: Path, say: Print, note: Print) -> tuple[str, bool]:
    """The traffic model against the memory counters, at the largest batch and each head pair: a
    step at the first, middle and last cursor, and a flush."""
    arch, rows = _arch(request), max(request.batches)
    found: list[dram.Comparison] = []
    for spec in request.specs:
        who = contender(spec, arch.name, request.picks, request.format)
        for H, HV in request.heads:
            say(f"{spec}: {H}, {HV} heads under ncu")
            shape = who.shape(H, HV)
            cursors = (0, shape.P // 2, shape.P - 1) if who.windowed else (0,)
            picks = dict(request.picks)
            fused = bool(who.config("step", H, HV, rows).get("fused"))
            job = dram.Job(
                spec, arch.name, request.format, picks, H, HV, rows, cursors, who.windowed, fused
            )
            found += dram.compare(who.plan, shape, job)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    command = f"{request.command} --dram"
    data = {
        "environment": environment.describe(device, arch, command),
        "rows": rows,
        "kernels": [asdict(c) for c in found],
    }
    write_atomic(path, json.dumps(data, indent=1) + "\n")
    note(f"wrote {path}")
    return dram.markdown(found), all(c.ok for c in found)


def _read(path: Path) -> Report:
    try:
        return results.read(path)
    except (OSError, ValueError) as error:
        raise LeapgenError(f"{path}: {error}") from None


def _can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _need_matplotlib() -> None:
    if not _can_plot():
        raise MissingTool("matplotlib is not installed; pip install 'leapgen[plot]'")


def _draw(report: Report, path: Path, note: Print) -> None:
    from leapgen.bench import plots

    for written in plots.draw(report, path):
        note(f"wrote {written}")


def _arch(request: Request) -> Arch:
    return present_arch() if request.arch is None else arch_named(request.arch)


def _default_file(request: Request, options: Options) -> Path:
    """tuning/<gpu>/bench/<name>.json of the current directory."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    name = "figure7" if options.figure7 else "-".join(Path(s).stem for s in request.specs)
    words = [name, *([request.format] if request.format else []), *request.picks.values()]
    words += [f"h{H}-{HV}" for H, HV in request.heads] if request.heads != HEADS else []
    words += ["dram"] if options.dram else []
    folder = environment.folder(device, _arch(request))
    return Path("tuning") / folder / "bench" / f"{'-'.join(words)}.json"


def _numbers(value: str, what: str) -> tuple[int, ...]:
    """`1,8,64` as numbers."""
    try:
        found = tuple(int(word) for word in value.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise LeapgenError(f"{what}: expected positive numbers joined by commas, found `{value}`")
    return found


def _head_pairs(value: str) -> tuple[tuple[int, int], ...]:
    """`32,32;16,64` as (H, HV) pairs."""
    pairs = [_numbers(word, "--heads") for word in value.split(";")]
    if any(len(pair) != 2 or pair[1] % pair[0] for pair in pairs):
        raise LeapgenError(f"--heads: expected H,HV with HV a multiple of H, found `{value}`")
    return tuple((pair[0], pair[1]) for pair in pairs)
