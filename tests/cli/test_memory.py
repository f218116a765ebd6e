"""`leapgen list --memory`: the paper's claim of memory, computed, then taken from an allocator."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

import leapgen
from leapgen import pipeline
from leapgen.cli import app
from leapgen.report import memory

PAPER = {"qwen3.5-9b": 0.41, "qwen3.5-35b-a3b": 0.51, "kimi-linear-48b-a3b": 0.56}


def test_the_claim_is_reproduced() -> None:
    """Savings of the total against FP32 states, within a point and a half of the paper's."""
    found = {r.model: r for r in memory.rows() if r.format == "leapquant-int8"}
    assert set(found) == set(PAPER)
    for model, row in found.items():
        assert abs(row.below_fp32 - PAPER[model]) < 0.015, row
        assert 0.15 < row.below_bf16 < row.below_fp32


def test_bytes_are_what_an_allocator_gives(tmp_path: Path) -> None:
    """A layer's checkpoint, convolutions and keys and values as tensors, at the model's shape."""
    for row in memory.rows():
        model = next(m for m in pipeline.parse(row.spec).models if m.name == row.model)
        module = leapgen.load(
            row.spec, arch="cpu", format=row.format, cache=tmp_path, records="fp16", **model.picks
        )
        sizes = {"H": model.H, "HV": model.HV, "K": model.K, "V": model.V}
        pool = module.allocate(1, **sizes)
        data = module.checkpoint(pool, torch.zeros(1, dtype=torch.int32))
        kept = [x.clone() for x in data.values() if isinstance(x, torch.Tensor)]
        layer = sum(x.untyped_storage().nbytes() for x in kept)
        past = torch.empty(model.conv or 0, dtype=torch.bfloat16).untyped_storage().nbytes()
        kv = torch.empty(memory.TOKENS, model.kv or 0, dtype=torch.bfloat16)
        assert layer == module.checkpoint_bytes(**sizes)
        assert (model.layers or 0) * layer == row.checkpoint
        assert (model.layers or 0) * past == row.convolution
        assert kv.untyped_storage().nbytes() == row.kv
        taken = sum(x.untyped_storage().nbytes() for x in pool.values())
        assert (model.layers or 0) * (taken - layer) == row.active


def test_the_command() -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["list", "--memory"])
    assert shown.exit_code == 0
    assert "41.6%" in shown.stdout
    rows = json.loads(runner.invoke(app, ["list", "--memory", "--json"]).stdout)
    assert [r["model"] for r in rows[::3]] == list(PAPER)
    refused = runner.invoke(app, ["list", "specs", "--memory"])
    assert refused.exit_code == 2
