"""Whole decode steps in a tiny form: the code that runs on a GPU, without graphs."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from leapgen.bench import endtoend
from leapgen.bench import endtoend_results as results
from leapgen.bench.decoder import Decoder
from leapgen.bench.replay import lengths, replay
from leapgen.integrations import decode_models
from leapgen.integrations import transformers_hooks as hooks

MEMORY = 700_000
NAMES = [shape.name for shape in decode_models.MODELS]


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    modules = [importlib.import_module(s.family.module) for s in decode_models.MODELS]
    kept: list[Any] = [module.causal_conv1d_update for module in modules]
    yield
    for module, function in zip(modules, kept, strict=True):
        module.causal_conv1d_update = function
    for family in hooks.FAMILIES:
        hooks.uninstall(family)


def request(**changes: Any) -> endtoend.Request:
    given = {"batches": (1, 4), "context": 16, "memory": MEMORY, "tiny": True}
    return endtoend.Request(**{"models": decode_models.MODELS, **given, **changes})


def quiet(_: str) -> None:
    pass


def test_a_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part, both models; and the table and the picture from the file alone."""
    monkeypatch.setattr(endtoend, "REPLAY_SHARE", 0.02)
    path = tmp_path / "endtoend.json"
    given = ["--tiny", "--budget", "90", "--memory", str(MEMORY), "--json", str(path)]
    endtoend.main(given)
    first = capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["complete"], [part["left_out"] for part in report["models"]]
    assert [part["name"] for part in report["models"]] == NAMES
    for part in report["models"]:
        agreement = part["agreement"]
        assert agreement["found"]["error"] < 0.05 < 0.5 < agreement["emptied"]["error"]
        assert agreement["found"]["same_best"] > 0.9
        assert [n for n, _, _ in results.pairs(part)][:2] == [1, 4]
        arms = part["largest"]["arms"]
        assert all(arm["fits"] == arm["computed"] > 4 for arm in arms.values())
        outcomes = part["replay"]["arms"]
        assert set(outcomes) == {"fp32", "leapquant-int8"}
        for outcome in outcomes.values():
            assert outcome["requests"] == part["replay"]["requests"]
            assert outcome["tokens"] == part["replay"]["tokens"]
            assert 0.2 < outcome["occupied"] <= 1
    if importlib.util.find_spec("matplotlib"):
        assert path.with_suffix(".png").stat().st_size > 10_000
    endtoend.main(["--from", str(path)])
    assert capsys.readouterr().out == first


def test_what_does_not_fit_into_the_budget_is_named(tmp_path: Path) -> None:
    path = tmp_path / "endtoend.json"
    report = endtoend.run(request(budget=0.0), path, quiet)
    assert json.loads(path.read_text()) == results._short(report)
    assert not report["complete"]
    for part in report["models"]:
        assert part["left_out"] == ["agreement", "batches", "largest", "replay"]
        assert not part["points"]


@pytest.mark.slow
def test_a_batch_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory at the computed size: recorded, and smaller ones tried."""
    monkeypatch.setattr(endtoend, "REPLAY_SHARE", 0.02)
    limits = {"fp32": 9, "leapquant-int8": 8}  # more than CHECKED needs
    build = Decoder.__init__

    def limited(self: Decoder, model: Any, arm: Any, rows: int, *rest: Any) -> None:
        if rows > limits[arm.name]:
            raise torch.OutOfMemoryError("limit of a test")
        build(self, model, arm, rows, *rest)

    monkeypatch.setattr(Decoder, "__init__", limited)
    monkeypatch.setattr(endtoend, "MARGIN", 0.6)
    found = endtoend.run(
        request(models=decode_models.MODELS[1:], budget=120.0, memory=1_500_000),
        tmp_path / "x.json",
        quiet,
    )
    for part in found["models"]:
        arms = part["largest"]["arms"]
        for name, limit in limits.items():
            assert arms[name]["computed"] > limit >= arms[name]["fits"] > 0
        assert any(not point["fits"] for point in part["points"])
        assert part["replay"]["arms"]["fp32"]["rows"] == arms["fp32"]["fits"]


class FakeArm:
    def __init__(self) -> None:
        self.resets: list[int] = []

    def reset(self, _: object, rows: torch.Tensor) -> None:
        assert rows.dtype == torch.int32
        self.resets += rows.tolist()


class FakeDecoder:
    """Rows that count their tokens."""

    def __init__(self, rows: int) -> None:
        self.rows, self.device, self.arm = rows, torch.device("cpu"), FakeArm()
        self.held = {0: object()}
        self.slots = torch.zeros(rows, dtype=torch.int32)
        self.tokens = 0

    def run(self) -> None:
        active = self.slots >= 0
        assert self.slots[active].tolist() == active.nonzero()[:, 0].tolist()
        self.tokens += int(active.sum())


def test_a_replay_serves_every_request_once() -> None:
    wanted = [5, 1, 7, 2, 2, 9, 3]
    decoder = FakeDecoder(3)
    outcome = replay(decoder, wanted)  # type: ignore[arg-type]
    assert outcome.tokens == decoder.tokens == sum(wanted)
    assert outcome.requests == len(wanted) == len(decoder.arm.resets)
    # Greedy list scheduling of those lengths on three rows.
    assert outcome.steps == 14
    assert outcome.occupied == pytest.approx(sum(wanted) / 42)
    assert outcome.steady > 0


def test_lengths_keep_their_distribution() -> None:
    found, factor = lengths(4000, 400_000)
    assert abs(sum(found) - 400_000) < 4000
    assert np.median(found) / np.mean(found) == pytest.approx(0.7, abs=0.06)  # exp(-sigma^2/2)
    assert max(found) <= 32768 * factor + 1
    assert lengths(4000, 400_000) == (found, factor)


@pytest.mark.parametrize("place", [["--json", "here/x.json"], ["--json=here/x.json"], []])
def test_the_recorded_command_names_no_place(place: list[str]) -> None:
    options = results.parse(["--budget", "5", *place, "--tiny"], ["one"])
    assert options.command == "python -m leapgen.bench.endtoend --budget 5 --tiny"
    assert (options.json is None) == (not place)
