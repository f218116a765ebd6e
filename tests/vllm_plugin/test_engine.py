"""A stock engine with the plugin, on the CPU, beside the engine's own path and a broken state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm_models
from vllm_jobs import TAIL
from vllm_models import Job
from vllm_schedule import BEFORE, TOKENS

Record = Callable[[str, object], None]
WINDOWS = {"fp32-window": {"format": "fp32-window"}, "leapquant-int8": True}


def matched(folder: Path, run: dict[str, Any]) -> tuple[int, int]:
    return vllm_models.agreement(folder, run["prompts"], run["outputs"])


@pytest.fixture
def agreement(folder: Path, record_property: Record) -> Callable[..., float]:
    """Share of generated tokens that transformers' model finds best; recorded."""

    def measure(result: dict[str, Any], run: str, name: str) -> float:
        same, total = matched(folder, result["runs"][run])
        record_property(f"{name}, {run}", f"{same}/{total}")
        return same / total

    return measure


@pytest.mark.parametrize("name", WINDOWS)
def test_agrees_as_far_as_the_engines_own_path(
    job: Job, agreement: Callable[..., float], name: str
) -> None:
    """Teacher-forced: the engine's own path differs from transformers' by roundings too. The
    control has its state zeroed before each decode, so that nothing else can carry the text."""
    plain, found, control = job(), job(leapgen=WINDOWS[name]), job(leapgen=True, fault="zeroed")
    own = agreement(plain, "short", "in-tree")
    assert own > 0.9
    assert agreement(found, "short", name) > own - 0.05
    assert agreement(control, "short", "zeroed") < 0.15
    assert plain["layer"] == found["layer"] == "QwenPagedState"  # inert without the option
    assert "bytes" not in plain


@pytest.mark.parametrize("name", WINDOWS)
def test_crosses_the_ends_of_blocks(job: Job, agreement: Callable[..., float], name: str) -> None:
    """The state is copied into the next block; prompts end in the midst of a window."""
    plain, found, control = job(), job(leapgen=WINDOWS[name]), job(leapgen=True, fault="zeroed")
    assert found["steps"] == 59  # of 60 tokens, the first is the prompt's: no step was skipped
    own = agreement(plain, "edge", "in-tree")
    assert agreement(found, "edge", name) > own - 0.05
    assert agreement(control, "edge", "zeroed") < 0.15


def test_blocks_end_where_windows_do(job: Job, agreement: Callable[..., float]) -> None:
    """Records need not be copied, since a flush stands at each block's end. The control loads
    states without their position, so that windows end elsewhere: the records that stay behind
    are missed, in a running request and in what is found in the cache."""
    bare = {"copy_records": False}
    whole, found = job(leapgen=True), job(leapgen=bare)
    assert found["runs"] == whole["runs"]
    control = job(leapgen=bare, fault="unplaced")
    assert agreement(found, "edge", "no records copied") > 0.9
    assert agreement(control, "edge", "without the position") < 0.7
    assert agreement(found, "decoded", "no records copied") > 0.9
    assert agreement(control, "decoded", "without the position") < 0.8


def test_windows_that_end_elsewhere(job: Job, agreement: Callable[..., float]) -> None:
    """A window that does not divide a block: the records follow the state into the next one."""
    found = job(leapgen={"window": 5, "format": "fp32-window"})
    assert found["block"] % 5
    assert agreement(found, "edge", "window 5") > 0.9
    assert agreement(found, "decoded", "window 5") > 0.9
    assert found["runs"]["cached"]["outputs"] == found["runs"]["uncached"]["outputs"]


def test_hits_go_on_from_the_very_state(job: Job, record_property: Record) -> None:
    """What a quantized state promises, whatever tokens it leads to: a hit starts from the bits that
    the run which filled the block had there, in the midst of a window too; and from then on every
    output and the last state have the bits of a pool of our own on the same schedule of flushes.
    The control leaves the records behind that a window's end would have made needless."""
    how = {"leapgen": {"window": 5}, "schedule": True}
    found, control = job(**how), job(**how, fault="dropped")
    block = found["block"]
    assert block % 5
    assert found["cached"] == control["cached"] == block
    assert min(found["norm"]) > 0
    assert all(found["restored"])
    assert min(control["restored_error"]) > 0.01
    steps = found["steps"]
    assert min(steps) == max(steps) > 3 * 5
    assert {p % 5 for p in found["position"]} == {(block - BEFORE + TOKENS) % 5}
    for result in (found, control):  # the page is as good as a pool either way
        assert result["same_outputs"] == result["steps"]
        assert all(result["same_state"])
    worst = max(control["restored_error"])
    record_property("restored", f"{len(steps)} layers bit for bit; without records {worst:.3f} off")
    record_property("replayed", f"{sum(steps)} outputs bit for bit")


@pytest.mark.parametrize("name", WINDOWS)
def test_hits_of_the_prefix_cache(
    job: Job, agreement: Callable[..., float], record_property: Record, name: str
) -> None:
    """A hit gives the tokens of the run that filled the cache. Blocks that were completed while
    decoding are found too: their rest is computed in another order, so only agreement is asked."""
    found = job(leapgen=WINDOWS[name])
    block, runs = found["block"], found["runs"]
    assert runs["uncached"]["cached"] == [0]
    assert runs["cached"]["cached"] == [2 * block]
    assert runs["cached"]["outputs"] == runs["uncached"]["outputs"]
    assert runs["decoded"]["cached"] == [block] * 3
    record_property(f"{name}, tokens found", f"{2 * block} of {2 * block + TAIL}")
    assert agreement(found, "decoded", name) > 0.9


def test_hits_within_a_block(job: Job, record_property: Record) -> None:
    """Keys finer than blocks: a page is found at a place in its midst, and copied whole before it
    goes on."""
    found = job(leapgen=True, options={"prefix_match_unit": 32})
    block, runs = found["block"], found["runs"]
    assert runs["cached"]["cached"] == [2 * block + 32]
    assert runs["cached"]["outputs"] == runs["uncached"]["outputs"]
    record_property("tokens found", f"{2 * block + 32} of {2 * block + TAIL}")


def test_pages_shrink_by_the_computed_factor(job: Job, record_property: Record) -> None:
    plain, found = job(), job(leapgen=True)
    conv = 3 * 512 * 2
    assert plain["bytes_now"] == conv + 4 * 64 * 64 * 4
    assert found["bytes_now"] == found["bytes"] == conv + found["slot"]
    record_property("bytes", f"{plain['bytes_now']} -> {found['bytes_now']}")
    record_property("padded by the engine", f"{plain['padded']} -> {found['padded']}")
    record_property("blocks", f"{plain['blocks']} -> {found['blocks']}")
    record_property("tokens a block", f"{plain['block']} -> {found['block']}")
    assert found["padded"] >= found["bytes"]
    for result in (plain, found):  # the same memory, cut into pages
        assert abs(result["blocks"] * result["padded"] - 2**30) < result["padded"]


def test_requests_that_come_and_go(
    job: Job, agreement: Callable[..., float], record_property: Record
) -> None:
    """Prompts beside decodes in one batch, and pages that other requests have left."""
    plain, found, control = job(), job(leapgen=True), job(leapgen=True, fault="zeroed")
    record_property("layers' batches of both kinds", found["mixed"])
    assert found["mixed"] > 20
    own = agreement(plain, "many", "in-tree")
    assert agreement(found, "many", "leapquant-int8") > own - 0.05
    assert agreement(control, "many", "zeroed") < 0.2


def test_in_an_engine_of_several_processes(job: Job, agreement: Callable[..., float]) -> None:
    """As the engine runs by default: each process loads the plugin by its entry point."""
    here, there = job(leapgen=True), job(leapgen=True, processes=True)
    assert there["runs"]["short"] == here["runs"]["short"]
    assert agreement(there, "short", "several processes") > 0.9


def test_without_the_prefix_cache(job: Job, agreement: Callable[..., float]) -> None:
    """One page a request, of no block's size; the same tokens."""
    found = job(leapgen=True, caching=False, block=job(leapgen=True)["block"])
    for run in ("short", "edge"):
        assert agreement(found, run, "no prefix cache") > 0.9
    assert found["mode"] == "none"
