"""`leapgen explain`: the figures that the paper and the issue state, and every stage."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from leapgen.cli import app
from leapgen.report.explain_text import STAGES


def leapgen(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_the_papers_bytes(name: str) -> None:
    e = json.loads(leapgen("explain", name, "--json"))
    assert e["state_bytes_per_element"] == 1.1875
    assert e["bytes_per_slot"] == sum(b["bytes"] for b in e["buffers"])
    by_name = {b["name"]: b["bytes"] for b in e["buffers"]}
    HV = e["shape"]["HV"]
    assert by_name["payload"] == HV * 128 * 128
    assert by_name["cursor"] == -(-HV * 4 // 16) * 16
    assert sum(i["bytes"] for i in e["items"]) == pytest.approx(e["bytes_per_token"])


def test_records_by_hand() -> None:
    """Scalar decay: a number a record; vector decay: a vector (bytes of one head)."""
    bytes_of = {}
    for name in ("gdn", "kda"):
        e = json.loads(leapgen("explain", name, "--json"))
        heads = e["shape"]["HV"]
        bytes_of[name] = {b["name"]: b["bytes"] / heads for b in e["buffers"]}
    assert bytes_of["gdn"]["record_decay"] == 16 * 4
    assert bytes_of["kda"]["record_decay"] == 16 * 128 * 4
    assert bytes_of["kda"]["record_u"] == 16 * 128 * 2


def test_markdown_has_every_part() -> None:
    text = leapgen("explain", "kda")
    for heading in (
        "## Native form",
        "## Canonical form",
        "## Proof: The native update equals the sub-steps",
        "## Readout",
        "## Token program",
        "## Flush",
        "## What a slot holds",
        "## HBM bytes per token",
        "## The floor",
    ):
        assert f"\n{heading}" in text, heading
    assert "**1.1875 bytes per element**" in text
    assert "H200" in text


@pytest.mark.parametrize("stage", STAGES)
def test_stages(stage: str) -> None:
    text = leapgen("explain", "gdn", "--stage", stage, "--arch", "cpu")
    if stage == "source":
        compile(text, "gdn", "exec", dont_inherit=True)
    elif stage != "plan":
        assert json.loads(text)


def test_a_model_brings_its_shape_and_choices() -> None:
    e = json.loads(leapgen("explain", "kda", "--model", "kimi-k3", "--json"))
    assert e["shape"]["HV"] == 96
    assert e["picks"]["gate"] == "lower_bound"
    result = CliRunner().invoke(app, ["explain", "kda", "--model", "kimi-k2"])
    assert result.exit_code == 1
    assert "did you mean `kimi-k3`?" in result.stderr
