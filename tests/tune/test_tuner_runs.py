"""A run's time, and what it leaves for the next: budgets, kills, other machines' journals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FLUSH, SHAPE, STEP, FakeBench, best, run

from leapgen.diagnostics import LeapgenError
from leapgen.runtime.host import key_of
from leapgen.schedule.plan import Plan
from leapgen.tune.bench import Config, Point
from leapgen.tune.journal import Journal
from leapgen.tune.outcome import Result
from leapgen.tune.tuner import Tuner


@pytest.mark.parametrize("calls", [5, 60, 120, 200])
def test_a_killed_run_is_resumed(plan: Plan, tmp_path: Path, calls: int) -> None:
    path, saved = tmp_path / "journal.jsonl", list[Result]()
    whole = FakeBench()
    run(whole, plan)
    first = FakeBench(die_after=calls)
    with pytest.raises(KeyboardInterrupt):
        run(first, plan, path, saved=saved)
    with path.open("a") as file:
        file.write('{"key": {"what"')  # the line that was being written
    second = FakeBench()
    outcome = run(second, plan, path, saved=saved)
    assert best(outcome, 512)["step"]["min_blocks"] == 8
    assert best(outcome, 8)["step"]["min_blocks"] == 4
    for what in ("compile", "check"):
        done = [key for w, key in first.calls if w == what]
        assert not set(done) & {key for w, key in second.calls if w == what}, what
    assert second.count("lap") <= whole.count("lap")
    third = FakeBench()
    again = run(third, plan, path)
    assert not third.calls
    assert again.resumed >= 2
    assert [r.us for r in again.results] == [r.us for r in outcome.results]


def test_another_default_is_raced_anew(plan: Plan, tmp_path: Path) -> None:
    """Times are ratios to the default's: under another rule they say nothing."""
    path, other = tmp_path / "journal.jsonl", {"min_blocks": 5}
    run(FakeBench(), plan, path)
    bench = FakeBench(standard=other)
    outcome = run(bench, plan, path)
    assert bench.count("lap") > 0
    fresh = run(FakeBench(standard=other), plan)
    for result, expected in zip(outcome.results, fresh.results, strict=True):
        assert result.default_us == pytest.approx(expected.default_us, rel=0.01)
        assert result.us == pytest.approx(expected.us, rel=0.01)


def test_another_module_measures_anew(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(FakeBench(), plan, path)
    bench = FakeBench(digest="e")
    run(bench, plan, path)
    assert bench.count("lap") > 0


def test_what_a_machine_without_the_device_compiled_is_not_compiled_again(
    plan: Plan, tmp_path: Path
) -> None:
    """The journal travels; the driver, which a build machine lacks, is no part of its keys."""
    path, other = tmp_path / "journal.jsonl", replace(SHAPE, H=1)
    absent = FakeBench()
    there = FakeBench(driver="580", seconds={"compile": 1e6, "check": 0.1, "lap": 0.01})
    tuner = Tuner(
        absent, plan, None, Journal(path, absent.identity), 1e9, lambda *_: None, lambda _: None
    )
    compiled = tuner.compile((SHAPE, other), (8, 512))
    assert absent.count("compile") == sum(f.considered for _, f in compiled.fields)
    assert {what for what, _ in absent.calls} == {"compile"}
    assert not compiled.results
    outcome = run(there, plan, path, budget=25.0)
    assert there.count("compile") == 0
    assert not any(f.left for _, f in outcome.fields)
    assert best(outcome, 512)["step"]["min_blocks"] == 8
    changed = FakeBench(digest="e")
    run(changed, plan, path)
    assert (
        changed.count("compile")
        == compiled.fields[0][1].considered + compiled.fields[1][1].considered
    )


def test_what_was_compiled_elsewhere_runs_before_more_is_compiled(
    plan: Plan, tmp_path: Path
) -> None:
    path, seconds = tmp_path / "journal.jsonl", {"compile": 5.0, "check": 0.5, "lap": 0.002}
    absent = FakeBench()
    journal = Journal(path, absent.identity)
    Tuner(absent, plan, None, journal, 4.0, lambda *_: None, lambda _: None).compile((SHAPE,), (8,))
    known = absent.count("compile")
    bench = FakeBench(seconds=seconds)
    outcome = run(bench, plan, path, budget=30.0)
    assert not outcome.unreached
    assert all(len(f.candidates) >= 8 and f.left for _, f in outcome.fields)
    calls = [what for what, _ in bench.calls]
    assert "compile" not in calls[: calls.index("check")]
    rest = FakeBench()
    run(rest, plan, path)
    whole = FakeBench()
    run(whole, plan)
    assert rest.count("compile") == whole.count("compile") - known - bench.count("compile") > 0


@pytest.mark.parametrize("budget", [1.0, 8.0, 15.0, 30.0])
def test_the_budget_is_kept_and_the_rest_is_for_the_next_run(
    plan: Plan, tmp_path: Path, budget: float
) -> None:
    path = tmp_path / "journal.jsonl"
    bench = FakeBench(seconds={"compile": 0.3, "check": 0.2, "lap": 0.02})
    outcome = run(bench, plan, path, batches=(1, 8, 64, 512), budget=budget)
    # Beyond it: what was begun, and the default and winners, which are checked in any case.
    assert outcome.seconds <= budget + 3.0
    assert len(outcome.results) + len(outcome.unreached) == 4
    if budget < 15:
        assert outcome.unreached
    left = sum(f.left for _, f in outcome.fields)
    rest, whole = FakeBench(), FakeBench()
    outcome = run(rest, plan, path, batches=(1, 8, 64, 512))
    run(whole, plan, batches=(1, 8, 64, 512))
    assert not outcome.unreached
    assert rest.count("compile") == whole.count("compile") - bench.count("compile")
    assert rest.count("compile") == left  # what was compiled in time was checked in time
    assert best(outcome, 512)["step"]["min_blocks"] in (7, 8, 9)


def test_heads_that_tried_few_candidates_are_tried_again(plan: Plan, tmp_path: Path) -> None:
    """What the first heads had no time for, the others have not tried either."""
    path, other = tmp_path / "journal.jsonl", replace(SHAPE, H=1)
    short = FakeBench(seconds={"compile": 0.3, "check": 0.2, "lap": 0.002})
    outcome = run(short, plan, path, shapes=(SHAPE, other), budget=6.0)
    assert {r.point.shape for r in outcome.results} == {SHAPE, other}
    assert outcome.fields[0][1].left > 0
    outcome = run(FakeBench(), plan, path, shapes=(SHAPE, other))
    for shape in (SHAPE, other):
        (found,) = [r for r in outcome.results if r.point == Point(shape, 512)]
        assert found.configs["step"]["min_blocks"] == 8


def test_what_a_machine_had_no_room_for_is_compiled_by_the_next(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    full = FakeBench(full=lambda c: c.get("min_blocks") == 8)
    outcome = run(full, plan, path, batches=(512,))
    assert outcome.fields[0][1].left > 0
    assert best(outcome, 512)["step"]["min_blocks"] != 8
    outcome = run(FakeBench(), plan, path, batches=(512,))
    assert best(outcome, 512)["step"]["min_blocks"] == 8
    with pytest.raises(LeapgenError, match="default config: does not compile here"):
        run(FakeBench(full=lambda _: True), plan, tmp_path / "other.jsonl")
    assert run(FakeBench(), plan, tmp_path / "other.jsonl").results


def test_the_default_is_built_for_its_check_and_for_races(plan: Plan) -> None:
    bench = FakeBench()
    run(bench, plan, batches=(512,))
    default = key_of(configs={"step": STEP, "flush": FLUSH})
    assert {(default, True), (default, False)} <= set(bench.built)


def test_slow_builds_leave_time_for_flushes_and_races(plan: Plan) -> None:
    bench = FakeBench(seconds={"compile": 0.1, "ready": 3.0, "check": 0.1, "lap": 0.002})
    outcome = run(bench, plan, budget=72.0)
    steps, flushes = (f for _, f in outcome.fields)
    assert 1 < len(steps.candidates) < 12
    assert len(flushes.candidates) > 1
    assert not outcome.unreached


@pytest.mark.parametrize("budget", [25.0, 40.0])
def test_slow_checks_leave_time_for_races(plan: Plan, budget: float) -> None:
    bench = FakeBench(seconds={"compile": 0.3, "check": 2.0, "lap": 0.002})
    outcome = run(bench, plan, budget=budget)
    assert [f.left > 0 for _, f in outcome.fields] == [True, True]
    assert not outcome.unreached
    assert outcome.results


def test_heads_for_which_no_time_was_left_are_not_reached(plan: Plan) -> None:
    """Time was up before the default of the first could be checked."""
    bench = FakeBench(seconds={"compile": 5.0, "check": 0.2, "lap": 0.02})
    other = replace(SHAPE, H=1)
    outcome = run(bench, plan, shapes=(SHAPE, other), budget=4.0)
    assert {p.shape for p in outcome.unreached} == {SHAPE, other}


def test_little_time_serves_steps_that_close_windows_too(plan: Plan) -> None:
    """With fewer threads resident than others: more of them leave too few registers."""

    def broken(config: Config) -> bool:
        return bool(config.get("fused")) and config["threads"] * config["min_blocks"] > 512

    bench = FakeBench(step_knobs=frozenset((*STEP, "fused")), broken=broken)
    outcome = run(bench, plan, batches=(8,), budget=8.0)
    (steps,) = [f for _, f in outcome.fields if f.kernel == "step"]
    assert steps.left > 10
    assert best(outcome, 8)["step"]["fused"] == 1
