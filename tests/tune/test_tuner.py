"""The whole tuner on a bench whose times are known: what it finds, keeps, skips and resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FLUSH, SHAPE, STEP, FakeBench, usual

from leapgen import pipeline
from leapgen.diagnostics import LeapgenError
from leapgen.runtime.host import Shape, key_of
from leapgen.schedule.plan import Plan
from leapgen.tune import candidates
from leapgen.tune.bench import Configs, Lost, Point
from leapgen.tune.journal import Journal
from leapgen.tune.outcome import Outcome, Result
from leapgen.tune.tuner import Tuner


@pytest.fixture(scope="module")
def plan() -> Plan:
    return pipeline.compile("gdn", "sm90").plan


def run(
    bench: FakeBench,
    plan: Plan,
    path: Path | None = None,
    batches: tuple[int, ...] = (8, 512),
    shapes: tuple[Shape, ...] = (SHAPE,),
    budget: float = 1e9,
    saved: list[Result] | None = None,
) -> Outcome:
    results: list[Result] = [] if saved is None else saved
    device = plan.arch.device("H200")
    journal = Journal(path, bench.identity)
    tuner = Tuner(bench, plan, device, journal, budget, lambda *_: None, results.append)
    return tuner.run(shapes, batches)


def best(outcome: Outcome, rows: int) -> dict[str, dict[str, Any]]:
    (found,) = [r for r in outcome.results if r.point.rows == rows]
    return {k: dict(c) for k, c in found.configs.items()}


def test_finds_the_best_pair_of_each_batch(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "FINALISTS", {"step": 99, "flush": 99})
    bench = FakeBench()
    outcome = run(bench, plan)
    for rows, blocks in ((8, 4), (512, 8)):
        assert best(outcome, rows) == {
            "step": {**STEP, "min_blocks": blocks},
            "flush": {**FLUSH, "min_blocks": 3},
        }
    assert not outcome.unreached
    assert all(r.us < 0.95 * r.default_us for r in outcome.results)
    assert all(r.us == pytest.approx(13.0, rel=0.02) for r in outcome.results)
    assert all(r.error == 0.5 for r in outcome.results)


def test_the_default_stays_unless_something_is_clearly_better(plan: Plan) -> None:
    outcome = run(FakeBench(us=lambda configs, point: 10.0), plan)
    assert best(outcome, 8) == {"step": STEP, "flush": FLUSH}


@pytest.mark.parametrize("ahead", [0.08, 0.13])
def test_a_prediction_changes_the_default_where_it_may_be_trusted(plan: Plan, ahead: float) -> None:
    def us(configs: Configs, point: Point) -> float:
        return 10.0 * (1 - ahead * (configs["step"]["min_blocks"] == 6))

    for predicted in (False, True):
        bench = FakeBench(us=us, noise=0.0, predicted=predicted)
        kept = best(run(bench, plan), 8)["step"] == STEP
        assert kept == (predicted and ahead < 0.1)


def test_predictions_serve_every_point_whatever_the_time(plan: Plan, tmp_path: Path) -> None:
    """Only compilation takes time; the next run compiles the rest."""
    first = FakeBench(predicted=True)
    outcome = run(first, plan, tmp_path / "notes", batches=(1, 8, 64, 512), budget=1.0)
    assert len(outcome.results) == 4
    assert not outcome.unreached
    left = [found.left for _, found in outcome.fields]
    assert min(left) > 0
    again = run(FakeBench(predicted=True), plan, tmp_path / "notes", batches=(1, 8, 64, 512))
    assert len(again.results) == 4
    assert not any(found.left for _, found in again.fields)


def test_only_checked_configs_are_timed(plan: Plan) -> None:
    bench = FakeBench(wrong=lambda c: c.get("step", STEP)["min_blocks"] in (4, 8))
    outcome = run(bench, plan)
    timed = [key for what, key in bench.calls if what == "lap"]
    assert timed
    assert not any('"step":{"min_blocks":8' in key for key in timed)
    assert best(outcome, 512)["step"]["min_blocks"] != 8
    assert any("failed its check" in f.dropped for _, f in outcome.fields)
    assert any("output is off" in failure for failure in outcome.failures)


def test_a_wrong_default_ends_the_run(plan: Plan) -> None:
    with pytest.raises(LeapgenError, match="step at its default config: output is off"):
        run(FakeBench(wrong=lambda c: c.get("step") == STEP), plan)
    with pytest.raises(LeapgenError, match="flush at its default config: does not compile"):
        run(FakeBench(broken=lambda c: c == FLUSH), plan)


def test_a_winner_that_the_oracle_refuses_is_passed_over(plan: Plan) -> None:
    class Strict(FakeBench):
        def check(self, shape: Shape, configs: Any, thorough: bool) -> float:
            self.wrong = lambda c: thorough and c["step"]["min_blocks"] == 8
            return super().check(shape, configs, thorough)

    outcome = run(Strict(), plan)
    assert best(outcome, 512)["step"]["min_blocks"] in (7, 9)
    assert best(outcome, 8)["step"]["min_blocks"] == 4


def test_spilling_and_uncompilable_candidates_never_run(plan: Plan) -> None:
    def spills(c: dict[str, Any]) -> bool:
        return c != STEP and c != FLUSH and c["min_blocks"] == 8

    bench = FakeBench(spilling=spills, broken=lambda c: c["min_blocks"] == 4)
    outcome = run(bench, plan)
    dropped = outcome.fields[0][1].dropped
    assert dropped["spills more than 64 bytes"] > 0
    assert dropped["does not compile: no"] > 0
    assert all(f'"min_blocks":{n}' not in key for w, key in bench.calls if w == "lap" for n in (4,))


def test_a_fused_step_wins_alone(plan: Plan) -> None:
    bench = FakeBench(step_knobs=FUSED)
    outcome = run(bench, plan)
    # Eight blocks would be faster, but their words do not fit into shared memory.
    assert best(outcome, 512) == {"step": {**STEP, "min_blocks": 7, "fused": 1}}
    assert set(outcome.results[0].usage) == {"step"}
    without = FakeBench(us=lambda c, p: 5.0 + (40.0 if c["step"].get("fused") else 0.0))
    outcome = run(replace(without, step_knobs=FUSED), plan)
    assert set(best(outcome, 512)) == {"step", "flush"}


FUSED = frozenset((*STEP, "fused"))


def test_a_flush_is_checked_and_raced_behind_a_step_that_needs_it(plan: Plan) -> None:
    """Also where the default step closes windows itself, and is raced against."""
    bench = FakeBench(step_knobs=FUSED, standard={"fused": 1})
    outcome = run(bench, plan)
    assert set(best(outcome, 512)) == {"step"}
    seen = [(what, json.loads(key)) for what, key in bench.calls if what in ("check", "lap")]
    flushes = [x for _, x in seen if "flush" in x["configs"] and x["configs"]["flush"] != FLUSH]
    assert len(flushes) > 20
    assert all(x["configs"]["step"]["fused"] == 0 for x in flushes)
    default = [
        x["configs"]["step"]["fused"] for what, x in seen if what == "check" and x["thorough"]
    ]
    assert {0, 1} <= set(default)


def test_the_best_pair_beats_a_default_that_closes_windows(plan: Plan) -> None:
    def slow(configs: Any, point: Any) -> float:
        return usual(configs, point) + (20.0 if configs["step"]["fused"] else 0.0)

    bench = FakeBench(us=slow, step_knobs=FUSED, standard={"fused": 1})
    for found in run(bench, plan).results:
        assert set(found.configs) == {"step", "flush"}
        assert found.configs["step"]["fused"] == 0
        assert found.configs["flush"]["min_blocks"] == 3
        assert found.rule_us > 0


def test_a_wrong_flush_behind_a_step_that_closes_windows(plan: Plan) -> None:
    """Its default is held against the oracle though the default token never launches it."""
    bench = FakeBench(
        step_knobs=FUSED,
        standard={"fused": 1},
        wrong=lambda c: not c["step"].get("fused") and "flush" in c,
    )
    with pytest.raises(LeapgenError, match="flush at its default config: output is off"):
        run(bench, plan)


def test_a_module_without_windows_has_steps_only(plan: Plan) -> None:
    bench = FakeBench(kernels=("step",))
    outcome = run(bench, plan)
    assert set(best(outcome, 8)) == {"step"}
    assert best(outcome, 8)["step"]["min_blocks"] == 4
    assert [f.kernel for _, f in outcome.fields] == ["step"]


def test_drift_does_not_choose(plan: Plan) -> None:
    """The device slows down by half during the run; ratios to the canary do not."""
    bench = FakeBench(drift=lambda now: 1.0 + now / 40)
    outcome = run(bench, plan)
    assert best(outcome, 8)["step"]["min_blocks"] == 4
    assert best(outcome, 512)["step"]["min_blocks"] == 8


def test_other_heads_try_the_survivors_only(plan: Plan) -> None:
    other = replace(SHAPE, H=2)
    bench = FakeBench()
    outcome = run(bench, plan, shapes=(SHAPE, other))
    considered = [f.considered for _, f in outcome.fields]
    assert considered[2] < considered[0] / 2
    assert considered[3] < considered[1] / 2
    assert len(outcome.results) == 4


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


def test_a_candidate_that_breaks_the_device_is_noted(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    deadly = FakeBench(deadly=lambda c: c["step"] == {**STEP, "min_blocks": 8})
    with pytest.raises(Lost, match="illegal access; run the same command again"):
        run(deadly, plan, path, batches=(512,))
    outcome = run(deadly, plan, path, batches=(512,))
    assert best(outcome, 512)["step"]["min_blocks"] in (7, 9)


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
    assert outcome.fields[0][1].dropped["does not compile here: no space left on device"] > 0
    assert best(outcome, 512)["step"]["min_blocks"] != 8
    path.write_text("".join(x for x in path.open() if '"what": "point"' not in x))
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
