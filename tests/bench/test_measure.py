"""What is launched while the clock runs: cursors, flushes, and states that come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bench_fakes import CPU, HV, ROWS, CountingTimer, H, small_case, subject

from leapgen.bench import cases, check, counts, measure
from leapgen.bench.contender import contender
from leapgen.bench.ours import Ours
from leapgen.bench.timing import Timing, WallTimer, ceilings, timer_for


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours(subject(), small_case(), spare=True)


def content(ours: Ours) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in ours.pool.items()}


def same(ours: Ours, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(ours.pool[name], tensor) for name, tensor in before.items())


def test_counts_of_tokens_and_sets() -> None:
    assert [cases.token_count(p) for p in (1, 5, 16, 24)] == [16, 20, 16, 24]
    cache = 60 << 20
    sets = {rows: cases.set_count(rows, 800_000, cache) for rows in (1, 8, 64, 255, 256, 512)}
    assert sets == {1: 128, 8: 20, 64: 3, 255: 2, 256: 1, 512: 1}


def test_settled_pools_stand_at_mixed_cursors(ours: Ours) -> None:
    used = ours.pool["cursor"][: ROWS * ours.case.sets, 0].tolist()
    assert used == [0, 1, 2] * ours.case.sets
    assert int(ours.pool["phase"].abs().sum()) == 0
    assert all(bool(torch.isfinite(t.float()).all()) for t in ours.pool.values())


def test_tokens_come_back(ours: Ours) -> None:
    ours.restore()
    before = content(ours)
    found = measure.tokens(WallTimer(), ours, ours.case, 2)
    assert 0 < found.least <= found.median <= found.largest
    assert not same(ours, before)
    ours.restore()
    assert same(ours, before)


class Recorder:
    """Stands where the module stands, and notes cursors before each call."""

    def __init__(self, ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[int]] = []
        self.due: list[int] = []
        module = ours.module
        step, flush = type(module).step, type(module).flush

        def noted_step(self_: Any, pool: Any, slots: Any, *inputs: Any, **options: Any) -> Any:
            self.steps.append(pool["cursor"][slots.long(), 0].tolist())
            before = pool["payload"].clone()
            out = step(self_, pool, slots, *inputs, **options)
            self.due.append(self._changed(before, pool))
            return out

        def noted_flush(self_: Any, pool: Any, slots: Any, **options: Any) -> None:
            before = pool["payload"].clone()
            flush(self_, pool, slots, **options)
            self.due.append(self._changed(before, pool))

        monkeypatch.setattr(type(module), "step", noted_step)
        monkeypatch.setattr(type(module), "flush", noted_flush)

    @staticmethod
    def _changed(before: torch.Tensor, pool: Any) -> int:
        return int((before != pool["payload"]).flatten(1).any(dim=1).sum())


def test_step_alone_flushes_nothing(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder(ours, monkeypatch)
    assert measure.step_alone(CountingTimer(), ours, 1) is not None
    window, sets = ours.window, ours.case.sets
    assert seen.steps[::sets] == [[(r + t) % window for r in range(ROWS)] for t in range(16)]
    assert sum(seen.due) == 0
    assert int(ours.pool.status.sum()) == 0
    assert not ours.contender.backend.silent


def test_flush_alone_flushes_each_row_once(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder(ours, monkeypatch)
    assert measure.flush_alone(CountingTimer(), ours, 1) is not None
    assert sum(seen.due) == ROWS * ours.case.sets
    assert max(seen.due) == 1


def test_places_in_the_window(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    """At equal cursors the last place flushes every row; at mixed ones at most one here."""
    seen = Recorder(ours, monkeypatch)
    timer = CountingTimer(lambda: sum(seen.due))
    mixed, equal = measure.positions(timer, ours, 1)
    per_place = np.array(timer.samples).reshape(2, ours.window)
    launches = -(-measure.LAUNCHES // ours.case.sets) * ours.case.sets
    assert set(per_place[0]) == {0, launches}
    assert per_place[1].tolist() == [0] * (ours.window - 1) + [launches * ROWS]
    assert (mixed.at, equal.at) == ("mixed", "equal")
    assert equal.worst == ROWS


def test_operations(ours: Ours) -> None:
    ours.restore()
    before = content(ours)
    found = measure.operations(WallTimer(), ours, 1)
    assert [o.name for o in found] == list(measure.OPERATIONS)
    assert all(o.bytes > 0 and o.time.median > 0 for o in found)
    size = {o.name: o.bytes for o in found}
    assert size["load_state"] > size["flush"] > size["reset"]
    assert same(ours, before)


def test_check_sees_a_wrong_kernel(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    error, bound = check.ours(ours)
    assert 0 < error <= bound
    right = type(ours.module).step

    def wrong(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        return right(self, *arguments, **options).mul_(1.5)

    monkeypatch.setattr(type(ours.module), "step", wrong)
    error, bound = check.ours(ours)
    assert error > bound


def test_counted_bytes() -> None:
    who = subject()
    shape = who.shape(H, HV)
    token = counts.token(who.plan, shape, ROWS)
    step = counts.step_mean(who.plan, shape, ROWS)
    assert token.total > step.total
    assert counts.operation(who.plan, shape, "flush", ROWS).write > 128 * 128 * HV * ROWS
    fused = counts.token(who.plan, shape, ROWS, fused=True)
    assert step.total < fused.total < token.total
    alone = counts.step_mean(who.plan, shape, ROWS, fused=True)  # windows that stay open
    assert alone.total == pytest.approx(step.total + 4 * HV * ROWS)
    other = counts.others_token(who.plan, shape, ROWS, 4)
    assert other.write == pytest.approx((128 * 128 * 4 + 256) * HV * ROWS)


def test_timing_and_ceilings() -> None:
    assert Timing.of([4.0, 2.0, 9.0], calls=2) == Timing(2.0, 1.0, 4.5)
    timer = timer_for(CPU)
    assert isinstance(timer, WallTimer)
    order: list[str] = []
    timer.sample(lambda: order.append("prepare"), lambda: order.append("body"), 2)
    assert order == ["prepare", "body"] * 3
    top = ceilings(timer, CPU, 1)
    assert top.read > 1e8
    assert top.in_place > 1e8


@pytest.mark.parametrize("format", ["mxfp4", "leap4"])
def test_check_holds_a_kernel_against_its_own_format(format: str) -> None:
    """What a format loses is no fault of the kernel; a code that no rounding gives is one."""
    who = contender("gdn", "cpu", None, format)
    shape = who.module.shape(**who.sizes(1, 2))
    session = Ours(who, cases.Draws(who.spec, CPU).case(shape, ROWS, 1))
    error, bound = check.ours(session)
    assert 0 < error <= bound < 0.01
    if not who.records:
        lost, _ = check.peer(session, session.case, who.spec, 1)
        assert lost > 10 * bound
    right = type(session).step

    def wrong(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        out = right(self, *arguments, **options)
        last = self.pool["payload"][0, 0].view(torch.uint8)
        last.copy_(last.flip(0))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session), "step", wrong)
        error, bound = check.ours(session)
    assert error > bound
