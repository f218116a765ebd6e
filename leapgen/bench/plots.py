"""Pictures of a report: throughput by batch under the roofline, and speedups over the others.

One picture for each pair of head counts, one column of panels a spec. Needs matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leapgen.bench.results import Record, Report
from leapgen.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, PALE, GRID = "#1f2933", "#7b8794", "#e4e7eb"
SUBJECT = "#0b6e4f"
OTHERS = ("#d1495b", "#edae49", "#30638e", "#8d6a9f", "#66a182", "#b56576", "#5c7c99")
MARKERS = ("s", "^", "D", "v", "P", "X", "h")
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}


def draw(report: Report, path: Path) -> list[Path]:
    """Writes a PNG for each pair of head counts: `path`, then `<stem>-h<H>-<HV>`; what was
    written."""
    import matplotlib
    from matplotlib.figure import Figure

    heads = list(dict.fromkeys((r.H, r.HV) for r in report.records))
    written = []
    for number, (H, HV) in enumerate(heads):
        records = [r for r in report.records if (r.H, r.HV) == (H, HV)]
        target = path if number == 0 else path.with_stem(f"{path.stem}-h{H}-{HV}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(0, 0))
            _fill(figure, report, records)
            save_picture(figure, target)
        written.append(target)
    return written


def save_picture(figure: Any, target: Path, colours: int = 128, dpi: int = 160) -> None:
    """A PNG with a palette: a third of the bytes, which a repository keeps for ever."""
    from PIL import Image  # matplotlib needs it too

    raw = io.BytesIO()
    figure.savefig(raw, dpi=dpi, format="png")
    picture = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    picture.save(packed, format="png", optimize=True)
    write_atomic(target, packed.getvalue())


def _fill(figure: Any, report: Report, records: Sequence[Record]) -> None:
    specs = list(dict.fromkeys(r.spec for r in records))
    figure.set_size_inches(0.6 + 6.0 * len(specs), 8.6)
    axes = figure.subplots(2, len(specs), squeeze=False)
    titles = list(dict.fromkeys(r.title for r in records if r.role != "subject"))
    looks = {t: (OTHERS[i % len(OTHERS)], MARKERS[i % len(MARKERS)]) for i, t in enumerate(titles)}
    for column, spec in enumerate(specs):
        mine = [r for r in records if r.spec == spec]
        _throughput(axes[0][column], report, mine, looks)
        _speedup(axes[1][column], report, mine, looks)
    first = records[0]
    figure.suptitle(
        f"One linear-attention layer, one token a row: {first.H} key and {first.HV} value heads, "
        f"{first.K} x {first.V}",
        x=0.02,
        y=0.985,
        ha="left",
        fontsize=13,
        fontweight="bold",
    )
    entries: dict[str, Any] = {}
    for ax in axes[0]:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels[-1:] + labels[:-1], handles[-1:] + handles[:-1], strict=True))
    columns = 4 if len(specs) > 1 else 2
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="upper left",
        bbox_to_anchor=(0.012, 0.962),
        ncols=columns,
        fontsize=9.5,
    )
    lines = -(-len(entries) // columns)
    figure.text(0.02, 0.012, _caption(report), color=PALE, fontsize=8, va="bottom")
    figure.tight_layout(rect=(0, 0.04, 1, 0.965 - 0.022 * lines), h_pad=2.2, w_pad=2.5)


def _caption(report: Report) -> str:
    env, top = report.environment, report.ceilings
    driver = f", driver {env['driver']}" if env["driver"] else ""
    versions = ", ".join(f"{k} {v}" for k, v in env["versions"].items())
    return (
        f"{env['device']}{driver}, {versions}, {env['date']}. Medians over whole windows of tokens "
        f"at mixed cursors, flushes included.\nRoofline: counted bytes of the first kernel at the "
        f"read-only ceiling of the same run, {top.read / 1e12:.2f} TB/s."
    )


def _throughput(
    ax: Axes, report: Report, records: Sequence[Record], looks: dict[str, tuple[str, str]]
) -> None:
    """Tokens a second over rows, both logarithmic."""
    subject = [r for r in records if r.role == "subject"]
    batches = sorted({r.rows for r in records})
    roof = [(r.rows, r.rows / (r.bytes / report.ceilings.read) / 1e6) for r in subject]
    ax.plot(
        *zip(*roof, strict=True),
        "--",
        color=SUBJECT,
        alpha=0.55,
        lw=1.4,
        label="its roofline (bytes / ceiling)",
    )
    for title, (color, marker) in looks.items():
        points = [(r.rows, _rate(r)) for r in records if r.title == title]
        if points:
            ax.plot(
                *zip(*points, strict=True),
                color=color,
                marker=marker,
                ms=5,
                lw=1.5,
                label=title,
            )
    points = [(r.rows, _rate(r)) for r in subject]
    label = f"leapgen {subject[0].title}"
    ax.plot(*zip(*points, strict=True), color=SUBJECT, marker="o", ms=6.5, lw=2.6, label=label)
    for x, y in points[-1:]:
        ax.annotate(
            f"{y:.2f}",
            (x, y),
            xytext=(-2, -16),
            textcoords="offset points",
            ha="right",
            color=SUBJECT,
            fontweight="bold",
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(batches, [str(b) for b in batches])
    ax.minorticks_off()
    low, high = ax.get_ylim()
    ticks = [t for e in range(-3, 3) for t in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if low < t < high]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_title(f"{records[0].spec.upper()}: throughput", loc="left")
    ax.set_xlabel("rows of a launch (batch)")
    ax.set_ylabel("million tokens / s")


def _rate(record: Record) -> float:
    """Millions of tokens a second."""
    return record.rows / record.token.median


def _speedup(
    ax: Axes, report: Report, records: Sequence[Record], looks: dict[str, tuple[str, str]]
) -> None:
    """How many times longer the others take, in bars by batch."""
    batches = sorted({r.rows for r in records})
    titles = [t for t in looks if any(r.title == t for r in records)]
    width = 0.84 / max(1, len(titles))
    narrow = len(titles) * len(batches) > 20
    for index, title in enumerate(titles):
        bars = []
        for place, rows in enumerate(batches):
            ratio = _ratio(report, records, title, rows)
            if ratio is not None:
                bars.append((place + (index - (len(titles) - 1) / 2) * width, ratio))
        if not bars:
            continue
        x, y = zip(*bars, strict=True)
        ax.bar(x, y, width * 0.9, color=looks[title][0], label=title)
        for at, ratio in bars:
            ax.annotate(
                f"{ratio:.1f}" if narrow else f"{ratio:.2f}",
                (at, ratio),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=6.5 if narrow else 8,
                color=INK,
            )
    ax.axhline(1, color=SUBJECT, lw=1.6)
    ax.set_xticks(range(len(batches)), [str(b) for b in batches])
    ax.grid(axis="x", visible=False)
    ax.set_title(f"{records[0].spec.upper()}: speedup over others", loc="left")
    ax.set_xlabel("rows of a launch (batch)")
    ax.set_ylabel("their time / ours")
    if titles:
        ax.set_ylim(top=ax.get_ylim()[1] * 1.05)


def _ratio(report: Report, records: Sequence[Record], title: str, rows: int) -> float | None:
    for record in records:
        if record.title == title and record.rows == rows:
            subject = report.subject(record)
            return None if subject is None else record.token.median / subject.token.median
    return None
