"""What the host spends on a step, by way of calling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leapgen.bench import host_cost


def test_bound_steps_cost_a_fraction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked once: measured are a 30th and a 7th, so that a busy machine passes too."""
    path = tmp_path / "host.json"
    host_cost.main(["gdn", "--rows", "2", "--heads", "2", "4", "--json", str(path)])
    found = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == found
    (costs,) = found["microseconds"].values()
    assert costs["bound, same tensors"] < costs["module.step"] / 8
    assert costs["operator"] < costs["module.step"] / 3
    assert found["environment"]["versions"]["torch"]
