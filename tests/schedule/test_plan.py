"""Buffers, bytes and traffic of the plans of the repository's specs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.formats.base import FormatError
from leapgen.schedule import traffic
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import Plan, PlanError, make_plan
from leapgen.spec.loader import load, loads

SPECS = Path(__file__).resolve().parents[2] / "specs"

TWO_SUBSTEPS = """
name: two
title: two decaying sub-steps with keys of value heads
heads: {key: H, value: HV}
dims: {key: 16, value: 24}
inputs:
  q: {per: key, axes: K, dtype: bf16}
  a: {per: value, axes: K, dtype: bf16}
  b: {per: value, axes: K, dtype: bf16}
  v: {per: value, axes: V, dtype: bf16}
  g: {per: value, dtype: fp32}
recurrence:
  native: exp(2 * g) * S + exp(g) * a @ v.T + b @ v.T
  substeps:
    - {decay: {kind: scalar, log: g}, key: a, value: v}
    - {decay: {kind: scalar, log: g}, key: b, value: v}
  output: {query: q, of: updated}
state: {format: bf16-window, window: 8}
"""


def plan_of(name: str, arch: str = "sm90", **state: Any) -> Plan:
    spec = load(SPECS / f"{name}.yaml", state=state)
    return make_plan(derive(lower(spec)), spec.state, ARCHES[arch])


def rows(plan: Plan) -> list[tuple[Any, ...]]:
    return [(b.name, b.heads, b.tile, b.dtype) for b in plan.buffers]


def test_buffers_of_a_vector_decay() -> None:
    assert rows(plan_of("kda")) == [
        ("payload", "HV", ("K*V",), "int8"),
        ("key_scale", "HV", ("K",), "fp32"),
        ("value_scale", "HV", ("V",), "fp32"),
        ("comp_key", "HV", ("R", "K"), "fp16"),
        ("comp_u", "HV", ("R", "V"), "fp16"),
        ("record_decay", "HV", ("P", "K"), "fp32"),
        ("record_key", "H", ("P", "K"), "fp16"),
        ("record_u", "HV", ("P", "V"), "fp16"),
        ("cursor", "HV", (), "int32"),
        ("phase", "HV", (), "int32"),
    ]


def test_a_scalar_decay_is_one_number_a_token() -> None:
    assert ("record_decay", "HV", ("P",), "fp32") in rows(plan_of("gdn"))


def test_two_substeps_have_two_records_and_two_decays_a_token() -> None:
    spec = loads(TWO_SUBSTEPS)
    plan = make_plan(derive(lower(spec)), spec.state, ARCHES["cpu"])
    assert rows(plan)[:4] == [
        ("payload", "HV", ("K*V",), "bf16"),
        ("record_decay", "HV", ("2*P",), "fp32"),
        ("record_key", "HV", ("2*P", "K"), "fp16"),
        ("record_u", "HV", ("2*P", "V"), "fp16"),
    ]
    assert plan.buffer("key_scale") is None
    shape = plan.shape(16, 24, 2, 4)
    assert plan.buffer("record_key").dims(shape) == (16, 16)  # type: ignore[union-attr]


def test_the_formats_choices_decide_the_buffers() -> None:
    flat = plan_of("gdn", smoothing="none")
    assert flat.buffer("key_scale") is None
    assert flat.buffer("value_scale") is not None
    exact = plan_of("gdn", format="fp32-window", records="fp32")
    assert [b.name for b in exact.buffers][:2] == ["payload", "record_decay"]
    assert exact.buffer("record_u").dtype == "fp32"  # type: ignore[union-attr]


def test_a_state_that_every_step_stores_has_no_records() -> None:
    plan = plan_of("kda", format="int8-step")
    assert [b.name for b in plan.buffers] == ["payload", "value_scale"]
    assert plan.kernels == ("step", "materialize", "load_state", "copy", "reset")
    assert (plan.default_window, plan.records_per_token, plan.records) == (1, 0, "fp32")
    shape = plan.shape(128, 128, 32, 32)
    assert plan.bytes_per_slot(shape) == 32 * (16384 + 512)
    assert plan.state_bytes_per_element(shape) == 1.03125
    with pytest.raises(PlanError, match="format int8-step has no window, found P=16"):
        plan.shape(128, 128, 32, 32, P=16)
    assert "the state is read and written at every token" in plan.text()


@pytest.mark.parametrize(
    ("format", "state"), [("fp32-step", 65536), ("bf16-step", 32768), ("int8-step", 16896)]
)
def test_a_step_in_place_reads_and_writes_the_state(format: str, state: int) -> None:
    """The rows `FP32, BF16, INT8 per step` of the study's table of bytes a token."""
    plan = plan_of("gdn", format=format)
    shape = plan.shape(128, 128, 32, 32)
    step = traffic.launch(plan, shape, "step")
    assert step.total("state", way="read").distinct == state
    assert step.total("state", way="write").distinct == state
    assert step.total("record").distinct == 0
    assert {line.name for line in step.lines if line.kind == "control"} == {"slots"}
    assert traffic.token_mean(plan, shape) == step.total()
    with pytest.raises(PlanError, match="unknown kernel 'flush'"):
        traffic.launch(plan, shape, "flush")
    for kernel in plan.kernels:
        assert traffic.launch(plan, shape, kernel).total("state").distinct >= state


def test_the_papers_bytes_per_element() -> None:
    plan = plan_of("gdn")
    assert plan.state_bytes_per_element(plan.shape(128, 128, 16, 32)) == 1.1875
    assert plan.state_bytes_per_element(plan.shape(128, 128, 16, 32, R=8)) == 1.3125
    assert plan.state_bytes_per_element(plan.shape(128, 128, 16, 32, R=0)) == 1.0625


def test_bytes_of_a_slot_count_every_padding() -> None:
    plan = plan_of("gdn")
    H, HV, K, V, P, R = 1, 3, 24, 40, 5, 3
    shape = plan.shape(K, V, H, HV, P, R)
    up = lambda n: -(-n // 16) * 16  # noqa: E731
    expected = HV * (
        up(K * V)
        + up(4 * K)
        + up(4 * V)
        + up(2 * R * K)
        + up(2 * R * V)
        + up(4 * P)
        + up(2 * P * V)
    )
    expected += H * up(2 * P * K) + 2 * up(4 * HV)
    assert plan.bytes_per_slot(shape) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": 12}, "K must be a multiple of 8, found 12"),
        ({"V": 0}, "V must be a multiple of 8, found 0"),
        ({"HV": 3}, "HV must be a multiple of H, found HV=3, H=2"),
        ({"P": 0}, "at least 1 token, found P=0"),
        ({"R": -1}, "R must lie in 0..16, found -1"),
        ({"R": 17}, "R must lie in 0..16, found 17"),
    ],
)
def test_shapes_that_no_kernel_serves(change: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of("gdn").shape(**{"K": 16, "V": 24, "H": 2, "HV": 4, "P": 4, "R": 2, **change})


def test_compensators_need_a_format_that_has_them() -> None:
    with pytest.raises(PlanError, match="bf16-window has no compensators, found R=2"):
        plan_of("gdn", format="bf16-window").shape(16, 24, 2, 4, R=2)
    plan = plan_of("gdn", format="fp32-window")
    spec = load(SPECS / "gdn.yaml")
    state = replace(spec.state, format="fp32-window", compensators=2)
    with pytest.raises(FormatError, match="fp32-window has no compensators"):
        make_plan(plan.window, state, plan.arch)


def test_a_plan_checks_itself() -> None:
    plan = plan_of("gdn")
    with pytest.raises(PlanError, match="duplicate buffers"):
        replace(plan, buffers=(*plan.buffers, plan.buffers[0])).check()
    with pytest.raises(PlanError, match="unknown record type 'int8'"):
        replace(plan, records="int8").check()
    with pytest.raises(PlanError, match="unknown element type 'fp8'"):
        replace(plan, buffers=(replace(plan.buffers[0], dtype="fp8"),)).check()


def test_the_digest_follows_everything_that_rendering_sees() -> None:
    base = plan_of("gdn")
    assert base.digest == plan_of("gdn").digest
    others = [
        plan_of("kda"),
        plan_of("gdn", arch="cpu"),
        plan_of("gdn", format="bf16-window"),
        plan_of("gdn", records="bf16"),
        plan_of("gdn", smoothing="none"),
        plan_of("gdn", compensators=2),
        plan_of("gdn", window=8),
    ]
    assert len({p.digest for p in (base, *others)}) == len(others) + 1
    spec = load(SPECS / "gdn.yaml", {"beta": "raw2"})
    assert make_plan(derive(lower(spec)), spec.state, base.arch).digest != base.digest
    assert "record_key   [slot, H, P, K] fp16" in base.text()


# ---- traffic


def test_a_step_at_the_studys_geometry() -> None:
    """24.9 KB (scalar decay) and 29.5 KB (vector) a head and token: what the prototypes count."""
    plan = plan_of("gdn")
    shape = plan.shape(128, 128, 32, 32)
    mean = traffic.step_mean(plan, shape, rows=512)
    assert mean.distinct == pytest.approx(24878, abs=1)
    floor = traffic.floor_us(mean.distinct, shape, 512, plan.arch.device("NVIDIA H200"))
    assert floor == pytest.approx(92.6, abs=0.1)
    state = traffic.launch(plan, shape, "step", 0).total("state")
    assert state.distinct == 19456
    vector = plan_of("kda")
    assert traffic.step_mean(vector, shape, rows=512).distinct == pytest.approx(29451, abs=1)


def test_a_step_reads_records_by_the_cursor_and_appends_one_token() -> None:
    plan = plan_of("kda")
    shape = plan.shape(128, 128, 32, 32)
    for cursor in (0, 1, 15):
        t = traffic.launch(plan, shape, "step", cursor)
        assert t.total("record", way="read").distinct == cursor * (512 + 256 + 256)
        assert t.total("record", way="write").distinct == 1024
        assert t.total("output").distinct == 256
        assert t.total("input").distinct == 256 * 4 + 2 + 4 + 512
    mean = traffic.step_mean(plan, shape).distinct
    ends = [traffic.launch(plan, shape, "step", c).total().distinct for c in (0, 15)]
    assert mean == pytest.approx(sum(ends) / 2)


def test_what_heads_share_is_counted_once_or_by_everybody() -> None:
    plan = plan_of("gdn")
    shape = plan.shape(128, 128, 8, 32)
    keys = next(
        x.amount
        for x in traffic.launch(plan, shape, "step", 4).lines
        if (x.name, x.way) == ("record_key", "read")
    )
    assert (keys.distinct, keys.sectors, keys.touched) == (256.0, 256.0, 1024.0)
    slots, cursor = (x.amount for x in traffic.launch(plan, shape, "step", 4, 2).lines[:2])
    assert (cursor.distinct, cursor.sectors, cursor.touched) == (4.0, 4.0, 32.0)
    assert (slots.distinct, slots.sectors, slots.touched) == (4 / 32, 16 / 32, 32.0)
    few = plan.shape(128, 128, 2, 2)
    assert traffic.launch(plan, few, "step", 4).lines[1].amount.sectors == 16.0


def test_one_head_moves_what_heads_share() -> None:
    plan = plan_of("gdn")
    shape = plan.shape(128, 128, 8, 32)
    for kernel, way in (("step", "write"), ("copy", "write"), ("copy", "read")):
        lines = {(x.name, x.way): x.amount for x in traffic.launch(plan, shape, kernel, 1).lines}
        moved = lines["record_key", way]
        assert (moved.distinct, moved.touched, moved.asked) == (64.0, 64.0, 64.0)


def test_sectors_are_never_fewer_than_bytes_nor_more_than_touched() -> None:
    for name in ("gdn", "kda"):
        plan = plan_of(name)
        shape = plan.shape(24, 40, 1, 3, 5, 3)
        for kernel in plan.kernels:
            for line in traffic.launch(plan, shape, kernel, 3, rows=2).lines:
                a = line.amount
                assert a.distinct <= a.sectors + 1e-9
                assert a.sectors <= a.touched + 1e-9
                assert a.distinct <= a.asked + 1e-9


def test_whole_slot_kernels() -> None:
    plan = plan_of("gdn")
    shape = plan.shape(128, 128, 32, 32)
    stored, window = 19456, 16 * (4 + 256 + 256)
    of = lambda kernel, cursor=0: traffic.launch(plan, shape, kernel, cursor).total()  # noqa: E731
    row = 4 / 32  # the slot's number, shared by the heads
    assert of("flush", 16).distinct == 2 * stored + window + 16 + row
    assert of("materialize", 16).distinct == stored + window + 4 + 65536 + row
    assert of("load_state").distinct == 65536 + stored + 8 + 2 * row
    assert of("copy", 16).distinct == 2 * (stored + window + 8 + row)
    assert of("reset").distinct == stored + 8 + row
    assert traffic.idle_flush(plan, shape).total().distinct == 8 + row
    token = traffic.token_mean(plan, shape)
    share = of("flush", 16).distinct / 16 + (8 + row) * 15 / 16
    assert token.distinct == pytest.approx(traffic.step_mean(plan, shape).distinct + share)


def test_a_step_that_closes_windows() -> None:
    """Open, it reads the phase too; at the end it writes what a flush does, and reads no more."""
    plan = plan_of("gdn")
    shape = plan.shape(128, 128, 8, 32)
    stored = 19456

    def of(cursor: int, **more: int) -> traffic.Traffic:
        return traffic.launch(plan, shape, "step", cursor, **more)  # type: ignore[arg-type]

    for cursor, phase in ((0, 0), (14, 0), (3, 11), (15, -16)):
        open_, apart = of(cursor, phase=phase, fused=True).total(), of(cursor).total()
        assert open_.distinct == apart.distinct + 4
    for cursor, phase in ((15, 0), (3, 12), (0, 15)):
        closing, apart = of(cursor, phase=phase, fused=True), of(cursor)
        assert closing.total(way="read").distinct == apart.total(way="read").distinct + 4
        assert closing.total(way="read").sectors == apart.total(way="read").sectors + 4
        own = 4 + 256  # decay and correction of the token, read back from caches
        assert closing.total(way="read").asked == apart.total(way="read").asked + 4 + own
        assert closing.total(way="write").distinct == apart.total(way="write").distinct + stored + 4
    mean = traffic.token_mean(plan, shape, fused=True)
    assert mean == traffic.step_mean(plan, shape, fused=True)
    assert mean.distinct == pytest.approx(
        traffic.step_mean(plan, shape).distinct + 4 + (stored + 4) / 16
    )
    assert mean.distinct < traffic.token_mean(plan, shape).distinct


def test_cursors_and_kernels_that_do_not_exist() -> None:
    plan = plan_of("gdn")
    shape = plan.shape(16, 24, 2, 4)
    with pytest.raises(PlanError, match=r"cursor of step must lie in 0\.\.15, found 16"):
        traffic.launch(plan, shape, "step", 16)
    with pytest.raises(PlanError, match="unknown kernel 'verify'"):
        traffic.launch(plan, shape, "verify")
    assert "record_key" in traffic.launch(plan, shape, "flush", 16).text()
