"""Archs that no module is kept for: they lack the conversions that later ones have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leapgen.cli import app

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]
TARGETS = {"sm80": "sm_80", "sm89": "sm_89"}
WINDOWS = (
    "leapquant-int8",
    "leapquant-int4",
    "leap6",
    "leap5",
    "leap4",
    "leap4-levels",
    "fp8-window",
)
STEPS = ("mxfp8", "mxfp6", "nvfp4", "turboquant-4", "quarot-6", "int8-step-sr")
RARE = [("sm80", f) for f in (*WINDOWS, *STEPS)] + [("sm89", "leap8"), ("sm89", "nvfp4")]


@pytest.mark.parametrize(
    ("arch", "format"),
    [("sm80", "leap8"), *(pytest.param(*case, marks=pytest.mark.slow) for case in RARE)],
)
def test_kernels_assemble(arch: str, format: str, tmp_path: Path) -> None:
    """Block scales in E4M3, codes and factors: their text differs where no instruction helps."""
    words = ["build", "gdn", "--arch", arch, "--format", format, "--shape", "H=1,HV=2,K=64,V=32"]
    kernels = "step" if format in STEPS else "step,flush"
    more = ["--kernels", kernels, "--bundle", str(tmp_path / "old")]
    result = CliRunner().invoke(app, [*words, *more])
    assert result.exit_code == 0, result.output
    book = json.loads((tmp_path / "old" / "old" / "manifest.json").read_text())
    (module,) = book["modules"]
    found = {k["kernel"]: set(k["binaries"]) for k in module["kernels"]}
    assert found == {k: {TARGETS[arch]} for k in kernels.split(",")}
