"""The report of whole decode steps: its file, its table, its picture and its command line."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from leapgen.bench import environment
from leapgen.bench.plots import save_picture
from leapgen.files import write_atomic
from leapgen.runtime.module import present_arch
from leapgen.schedule.arch import arch_named

SCHEMA = 1
COLOURS = {"fp32": "#9aa5b1"}
OURS = "#1f6fb2"


def head(device: torch.device, command: str, context: int, format: str) -> dict[str, Any]:
    """A report without models."""
    arch = present_arch() if device.type == "cuda" else arch_named("cpu")
    around = environment.describe(device, arch, command)
    for package in ("transformers", "flash-linear-attention", "fla-core"):
        if found := environment.version(package):
            around["versions"][package] = found
    return {
        "schema": SCHEMA,
        "complete": False,
        "environment": around,
        "context": context,
        "format": format,
        "models": [],
    }


def save(report: dict[str, Any], path: Path) -> None:
    """Replaces the file."""
    write_atomic(path, json.dumps(_short(report), indent=1) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def parse(arguments: Sequence[str] | None, models: Sequence[str]) -> argparse.Namespace:
    """The options."""
    program = "python -m leapgen.bench.endtoend"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(models), choices=models)
    parser.add_argument("--budget", type=float, default=330.0, help="seconds for everything")
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    parser.add_argument("--context", type=int, default=None)
    parser.add_argument("--format", default="leapquant-int8")
    parser.add_argument("--memory", type=int, default=None, help="bytes a model may use")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--from", dest="saved", type=Path, default=None, help="draw a result")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options.command = " ".join([program, *_without_place(given)])
    return options


def _without_place(words: list[str]) -> list[str]:
    """A command line without where its result goes, which is the machine's alone."""
    if "--json" in words:
        at = words.index("--json")
        return words[:at] + words[at + 2 :]
    return [word for word in words if not word.startswith("--json=")]


def finish(
    options: argparse.Namespace,
    measure: Callable[[Path, Callable[[str], None]], object],
) -> None:
    """Measures, or reads a result; prints the table and draws the picture where that can be."""
    if options.saved is not None:
        path = options.saved
    else:
        path = options.json or _default()
        measure(path, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    report = json.loads(path.read_text())
    print(markdown(report))  # noqa: T201 - the result
    if importlib.util.find_spec("matplotlib") is not None:
        draw(report, path.with_suffix(".png"))


def _default() -> Path:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Path("tuning") / environment.folder(name, present_arch()) / "bench" / "endtoend.json"


def pairs(part: dict[str, Any]) -> list[tuple[int, float, float]]:
    """Rows, and tokens a second in FP32 and quantized, where both were measured."""
    rates: dict[int, dict[str, float]] = {}
    for point in part["points"]:
        if point["fits"]:
            rates.setdefault(point["rows"], {})[point["arm"]] = point["tokens_per_second"]
    return [
        (rows, found["fp32"], next(v for k, v in found.items() if k != "fp32"))
        for rows, found in sorted(rates.items())
        if len(found) == 2 and "fp32" in found
    ]


def markdown(report: dict[str, Any]) -> str:
    """Tables."""
    around = report["environment"]
    lines = [f"{around['device']}, {around['date']}: `{around['command']}`", ""]
    for part in report["models"]:
        lines += [f"**{part['title']}**, context {report['context']}", ""]
        lines += [f"| rows | FP32, tokens/s | {report['format']}, tokens/s | ratio |"]
        lines += ["| ---: | ---: | ---: | ---: |"]
        lines += [f"| {n} | {a:,.0f} | {b:,.0f} | {b / a:.2f} |" for n, a, b in pairs(part)]
        for name, found in part.get("largest", {}).get("arms", {}).items():
            lines.append(f"\nlargest batch, {name}: {found['fits']} (computed {found['computed']})")
        for name, found in part.get("replay", {}).get("arms", {}).items():
            lines.append(
                f"\nreplay, {name}: {found['rows']} at once, {found['steady']:,.0f} tokens/s"
            )
        if part["left_out"]:
            lines.append(f"\nleft out: {', '.join(part['left_out'])}")
        lines.append("")
    return "\n".join(lines)


def draw(report: dict[str, Any], path: Path) -> None:
    """Throughput by batch, and the replay, one row a model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [part for part in report["models"] if pairs(part)]
    if not shown:
        return
    figure, axes = pyplot.subplots(
        len(shown), 2, figsize=(9, 3.2 * len(shown)), squeeze=False, width_ratios=(3, 1)
    )
    for (left, right), part in zip(axes, shown, strict=True):
        _batches(left, part, report)
        _replay(right, part)
    figure.suptitle(f"{report['environment']['device']}, {report['environment']['date']}")
    figure.tight_layout()
    save_picture(figure, path, dpi=130)
    pyplot.close(figure)


def _batches(axis: Any, part: dict[str, Any], report: dict[str, Any]) -> None:
    found = pairs(part)
    places = range(len(found))
    axis.bar([x - 0.2 for x in places], [a for _, a, _ in found], 0.4, color=COLOURS["fp32"])
    axis.bar([x + 0.2 for x in places], [b for _, _, b in found], 0.4, color=OURS)
    for x, (_, a, b) in zip(places, found, strict=True):
        axis.text(x, max(a, b), f"{b / a:.2f}x", ha="center", va="bottom", fontsize=8)
    axis.set_xticks(list(places), [str(n) for n, _, _ in found])
    axis.set_xlabel(f"rows, each at {report['context']} tokens of context")
    axis.set_ylabel("tokens a second")
    axis.set_title(part["title"], fontsize=10)
    axis.legend(["FP32 state", report["format"]], fontsize=8, frameon=False)


def _replay(axis: Any, part: dict[str, Any]) -> None:
    arms = part.get("replay", {}).get("arms", {})
    for place, (name, found) in enumerate(arms.items()):
        axis.bar(place, found["steady"], 0.6, color=COLOURS.get(name, OURS))
        axis.text(
            place, found["steady"], f"{found['rows']} rows", ha="center", va="bottom", fontsize=8
        )
    axis.set_xticks(range(len(arms)), ["FP32" if n == "fp32" else n for n in arms], fontsize=8)
    axis.set_title("replay, tokens a second", fontsize=10)
