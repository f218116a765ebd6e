"""A report as text: Markdown tables, and one line a record while the run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leapgen.bench.results import Operation, Record, Report
from leapgen.report.text import markdown_table

CONTENDERS = (
    "rows",
    "contender",
    "us a token",
    "times the first",
    "step alone",
    "exposed flush",
    "TB/s",
    "of ceiling",
    "step of ceiling",
    "error",
)
PLACES = ("rows", "mixed, mean", "mixed, worst", "equal, mean", "equal, worst")
CALLS = ("rows", "call", "us", "TB/s", "of in-place ceiling")


def line(record: Record, report: Report) -> str:
    """One record, for people who wait."""
    parts = [
        f"{record.spec} {record.H},{record.HV} heads, {record.rows:>3} rows",
        f"{record.title}: {_us(record.token.median)} us",
        f"{_tb(record.rate)} TB/s ({_share(record, report)})",
    ]
    if record.step is not None and record.exposed is not None:
        parts.append(f"step {_us(record.step.median)} us, flush +{100 * record.exposed:.1f}%")
    if not record.ok:
        parts.append(f"WRONG: error {record.error:.2e} > {record.bound:.2e}")
    return ", ".join(parts)


def markdown(report: Report) -> str:
    """The whole report."""
    env, top = report.environment, report.ceilings
    versions = ", ".join(f"{k} {v}" for k, v in env["versions"].items())
    driver = f", driver {env['driver']}, CUDA {env['cuda']}" if env["driver"] else ""
    parts = [
        f"**{env['device']}**{driver}, {versions}, {env['date']}",
        f"`{env['command']}`",
        f"Ceilings of this run ({top.bytes >> 20} MiB): {_tb(top.read)} TB/s read only, "
        f"{_tb(top.in_place)} TB/s in place. Kernels that write more than a quarter of their "
        "bytes are held against the second. Bytes are counted, each once; times are medians over "
        "whole windows of tokens, flushes included.",
    ]
    for spec, H, HV in _groups(report.records):
        records = [r for r in report.records if (r.spec, r.H, r.HV) == (spec, H, HV)]
        K, V, window = records[0].K, records[0].V, records[0].window
        parts.append(f"### {spec}: {H} key and {HV} value heads, {K} x {V}, window {window}")
        parts.append(markdown_table(CONTENDERS, [_contender(r, report) for r in records]))
        places = [r for r in records if r.positions]
        if places:
            parts.append("One token by place in the window, us:")
            parts.append(markdown_table(PLACES, [_places(r) for r in places]))
        calls = [o for o in report.operations if (o.spec, o.H, o.HV) == (spec, H, HV)]
        if calls:
            parts.append("Calls over all rows:")
            parts.append(markdown_table(CALLS, [_call(o, report) for o in calls]))
    parts += [f"Not measured: {a.contender} on {a.spec}, {a.reason}." for a in report.absent]
    wrong = [r for r in report.records if not r.ok]
    parts += [f"**WRONG**: {line(r, report)}" for r in wrong]
    if not report.complete:
        parts.append("The run was cut short.")
    return "\n\n".join(parts)


def _groups(records: Iterable[Record]) -> Sequence[tuple[str, int, int]]:
    return list(dict.fromkeys((r.spec, r.H, r.HV) for r in records))


def _contender(record: Record, report: Report) -> Sequence[str]:
    subject = report.subject(record)
    over = "" if subject is None else f"{record.token.median / subject.token.median:.2f}x"
    return (
        str(record.rows),
        record.title,
        _us(record.token.median),
        over,
        "-" if record.step is None else _us(record.step.median),
        "-" if record.exposed is None else f"{100 * record.exposed:.1f}%",
        _tb(record.rate),
        _share(record, report),
        _step_share(record, report),
        f"{record.error:.1e}",
    )


def _share(record: Record, report: Report) -> str:
    return f"{100 * record.rate / record.ceiling(report.ceilings):.0f}%"


def _step_share(record: Record, report: Report) -> str:
    if record.step is None:
        return "-"
    return f"{100 * record.step_bytes / record.step.median * 1e6 / report.ceilings.read:.0f}%"


def _places(record: Record) -> Sequence[str]:
    times = [_us(t) for p in record.positions for t in (p.mean, p.worst)]
    return (str(record.rows), *times)


def _call(call: Operation, report: Report) -> Sequence[str]:
    rate = call.bytes / call.time.median * 1e6
    share = f"{100 * rate / report.ceilings.in_place:.0f}%"
    return (str(call.rows), call.name, _us(call.time.median), _tb(rate), share)


def _tb(rate: float) -> str:
    """Bytes a second in TB/s; a CPU's with more decimals."""
    return f"{rate / 1e12:.2f}" if rate > 1e11 else f"{rate / 1e12:.4f}"


def _us(value: float) -> str:
    """Microseconds: two decimals below ten."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
