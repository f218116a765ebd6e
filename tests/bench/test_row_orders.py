"""What an order of rows saves: the run itself, and that it needs a GPU to say anything."""

from __future__ import annotations

import pytest
import torch

from leapgen.bench import row_orders


@pytest.mark.parametrize("format", [None, "int8-window"])
def test_both_runs_end_with_the_same_bits(format: str | None) -> None:
    found = row_orders.result("gdn", 1, 2, 5, torch.device("cpu"), repeats=1, format=format)
    assert found.equal
    assert found.front == 0
    assert min(found.ordered_us, found.natural_us, found.step_us) > 0


def test_a_gpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["row_orders", "gdn:1/2:5"])
    assert row_orders.main() == 4
    assert "GPU" in capsys.readouterr().err
