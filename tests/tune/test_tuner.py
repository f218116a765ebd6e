"""The whole tuner on a bench whose times are known: what it finds, keeps and skips."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FLUSH, SHAPE, STEP, FakeBench, best, run, usual

from leapgen.diagnostics import LeapgenError
from leapgen.runtime.host import Shape
from leapgen.schedule.plan import Plan
from leapgen.tune import candidates
from leapgen.tune.bench import Configs, Lost, Point


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


@pytest.mark.parametrize("ahead", [0.25, 0.4])
def test_a_prediction_changes_the_default_where_it_may_be_trusted(plan: Plan, ahead: float) -> None:
    def us(configs: Configs, point: Point) -> float:
        return 10.0 * (1 - ahead * (configs["step"]["min_blocks"] == 6))

    for predicted in (False, True):
        bench = FakeBench(us=us, noise=0.0, predicted=predicted)
        kept = best(run(bench, plan), 8)["step"] == STEP
        assert kept == (predicted and ahead < 0.3)


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


def test_a_candidate_that_breaks_the_device_is_noted(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    deadly = FakeBench(deadly=lambda c: c["step"] == {**STEP, "min_blocks": 8})
    with pytest.raises(Lost, match="illegal access; run the same command again"):
        run(deadly, plan, path, batches=(512,))
    outcome = run(deadly, plan, path, batches=(512,))
    assert best(outcome, 512)["step"]["min_blocks"] in (7, 9)
