"""Codes of every element type, decoded by kernels on a real GPU: the reference's bits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from leapgen.formats.grids import GRIDS
from leapgen.runtime.module import present_arch

PLACE = Path(__file__).resolve().parents[1] / "runtime" / "composed_codes.py"
SPEC = importlib.util.spec_from_file_location("composed_codes", PLACE)
assert SPEC is not None
assert SPEC.loader is not None
composed_codes = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = composed_codes
SPEC.loader.exec_module(composed_codes)

NARROW = [n for n, g in GRIDS.items() if not g.wide and not n.startswith("fitted")]
SCALES = ("value-bf16", "keys32-e4m3", "keys32-e8m0-floor")


def choices() -> list[str]:
    """Every element type, stored at every step and once a window; scales of every type with two."""
    found = []
    for payload in NARROW:
        found += [f"int8-{cadence}[payload={payload}]" for cadence in ("step", "window")]
        for scale in SCALES if payload in ("int8", "e2m1") else ():
            found.append(f"int8-step[payload={payload},scale={scale}]")
    return [*found, "bf16-step", "fp16-step", "fp16-window"]


@pytest.mark.parametrize("name", choices())
def test_every_code(name: str) -> None:
    composed_codes.every_code(name, present_arch().name)
