"""Memory counters: what ncu prints, and how it is held against the traffic model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_fakes import CPU, HV, ROWS, H, subject

from leapgen.bench import counts, dram, dram_child
from leapgen.diagnostics import LeapgenError

JOB = dram.Job("gdn", "cpu", None, {}, H, HV, ROWS, (0, 15))
HEAD = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def printed(factor: float = 1.0, names: tuple[str, ...] = ("step_kernel", "flush_kernel")) -> str:
    """What ncu would print for JOB if counters were `factor` times the model."""
    who = subject()
    shape = who.shape(H, HV)
    lines = ["==PROF== Connected to process 7", "==PROF== Profiling", HEAD]
    for number, (kernel, cursor) in enumerate(JOB.launches):
        place = shape.P if cursor < 0 else cursor
        model = counts.kernel(who.plan, shape, kernel, place, ROWS)
        name = names[kernel == "flush"]
        for metric, unit, value in (
            (dram.READ, "byte", model.read * factor),
            (dram.WRITE, "Kbyte", model.write / 2e3),
            (dram.STORED, "sector", model.write * factor / dram.SECTOR),
        ):
            cells = (
                number,
                7,
                name,
                "Command line profiler metrics",
                metric,
                unit,
                f"{value:,.3f}",
            )
            lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines) + "\n"


def compare(output: str) -> list[dram.Comparison]:
    who = subject()
    return dram.compare(who.plan, who.shape(H, HV), JOB, lambda words: output)


def test_counters_that_agree() -> None:
    found = compare(printed(1.02))
    assert [(c.kernel, c.cursor, c.way) for c in found] == [
        ("step", 0, "read"),
        ("step", 0, "write"),
        ("step", 15, "read"),
        ("step", 15, "write"),
        ("flush", 16, "read"),
        ("flush", 16, "write"),
    ]
    assert all(c.ok for c in found)
    assert found[0].off == pytest.approx(0.02, abs=1e-4)
    assert found[1].dram == pytest.approx(found[1].model / 2, rel=1e-3)
    assert found[2].model > found[0].model
    assert "+2.0%" in dram.markdown(found)


def test_counters_that_disagree() -> None:
    found = compare(printed(1.07))
    assert not any(c.ok for c in found)
    assert "OFF" in dram.markdown(found)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("==ERROR== no permission\n", "printed no table"),
        (printed(names=("other", "flush_kernel")), "expected a kernel named step, found other"),
        ("\n".join(printed().splitlines()[:-3]), "expected 3 kernels"),
        (printed().replace('"byte"', '"furlong"'), "unknown unit 'furlong'"),
    ],
)
def test_output_that_is_something_else(output: str, message: str) -> None:
    with pytest.raises(LeapgenError, match=message):
        compare(output)


def test_one_line_a_launch() -> None:
    metrics = ",".join(f'"{m}"' for m in dram.METRICS)
    output = (
        f'"ID","Kernel Name",{metrics}\n'
        '"","","byte","Mbyte","sector"\n'
        '"0","step_kernel","1,000","2","3"\n'
    )
    ((name, values),) = dram.parse(output)
    assert name == "step_kernel"
    assert [values[m] for m in dram.METRICS] == [1000.0, 2e6, 3.0]


def test_command_leaves_the_clocks_alone() -> None:
    words = dram.command(JOB)
    assert "--clock-control=none" in words
    assert "--profile-from-start=off" in words
    assert words[-3:-1] == ["-m", "leapgen.bench.dram_child"]


def test_child_launches_one_kernel_each() -> None:
    """The child's launches on the CPU: steps at their cursors without a flush, then the flush."""
    job = replace(JOB, cursors=(0, 7))
    launches = dram_child.prepare(job, CPU)
    assert len(launches) == len(job.launches) == 3
    dram_child.run(job, CPU)
