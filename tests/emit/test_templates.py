"""Rules on templates: small, no formulas, no unused fields, names that no spec can take."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from leapgen import paths
from leapgen.emit import names
from leapgen.emit.view import View

TEMPLATES = paths.data("templates")
FILES = sorted(TEMPLATES.rglob("*.j2"))
LINES = 130
DIRECTIVE = re.compile(r"^\s*#%")
WINDOW_OWN = {"G", "rG", "rk", "S"}  # symbols that the algebra reserves


def name_of(path: Path) -> str:
    return path.relative_to(TEMPLATES).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_templates_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_formula_stands_in_a_template(path: Path) -> None:
    """Decays, gates and norms come from the spec; templates have quantizer arithmetic only."""
    found = re.findall(r"T\.(?:exp2?|log2?|tanh|sigmoid)\(", path.read_text())
    assert not found


def test_every_field_of_the_view_is_used() -> None:
    text = "".join(path.read_text() for path in FILES)
    fields = [field.name for field in dataclasses.fields(View)]
    assert [name for name in fields if not re.search(rf"view\.{name}\b", text)] == []


def included(name: str) -> set[str]:
    """The template and all that it brings in."""
    found, todo = set(), [name]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += re.findall(r'"([\w/]+\.j2)"', (TEMPLATES / name).read_text())
    return found


NOT_IN_STEPS = {
    *("gpu/step_config.j2", "gpu/held_shape.j2"),
    *(f"cpu/{n}.j2" for n in ("fit", "split", "composed_split", "orthogonal", "outer", "decays")),
}
"""Settings, and what only windows have: its names are those of other kernels."""
STEPS = [f"{d}/{s}" for d in ("cpu", "gpu") for s in ("step", "step_direct", "composed_step")] + [
    "gpu/step_codes"
]


@pytest.mark.parametrize("step", STEPS)
def test_step_uses_protected_names(step: str) -> None:
    """A spec's symbols stand in the step kernel beside the template's own variables."""
    free = set()
    for name in included(f"{step}.j2") - NOT_IN_STEPS:
        kernel = (TEMPLATES / name).read_text().split("def build_step")[-1]
        for line in kernel.splitlines():
            own = re.match(r"\s*(\w+)(?:\[.*?\])? [-+*/]?= ", line) or re.match(
                r"\s*for (\w+) in ", line
            )
            if own and not DIRECTIVE.match(line):
                free.add(own.group(1))
    assert [name for name in sorted(free - WINDOW_OWN) if names.symbol(name) == name] == []


def test_symbols_of_specs_keep_their_names() -> None:
    for name in ("q", "k", "v", "q_raw", "beta", "A_log", "dt_bias", "g", "G1", "n1", "p_q_1", "x"):
        assert names.symbol(name) == name
    for name in ("row", "lambda", "s_x", "mask_", "payload_at", "WARPS", "T"):
        assert names.symbol(name) == f"{name}_v"
