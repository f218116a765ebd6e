"""Layers that are no recurrence of this language, as somebody would write them: what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from leapgen.diagnostics import Diagnostics
from leapgen.spec.loader import load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/spec/beyond"

# The property that fails first, and the text that its caret stands under.
PROPERTIES = {
    "dense": ("input-axes", "KxK"),
    "gsa": ("second-state", "states"),
    "hgrn1": ("vector-state", "diag(f) @ S + (1 - f) * i"),
    "log_linear": ("second-state", "S[0]"),
    "mamba1": ("transition-form", "exp(-A @ dt.T)"),
    "mamba3": ("second-state", "b_prev"),
    "mamba3_angle": ("second-state", "angle"),
    "mesanet": ("nonlinear-state", "solve(S + diag(lamb), q)"),
    "oja": ("transition-form", "S @ v"),
    "oja_gated": ("transition-form", "S @ diag(exp(g)) @ v"),
    "path_softmax": ("input-axes", "[T, K]"),
    "preconditioned": ("second-state", "A"),
    "titans": ("second-state", "Z"),
    "ttt_layernorm": ("nonlinear-state", "layernorm(S.T @ k)"),
    "ttt_tanh": ("nonlinear-state", "tanh(S.T @ k)"),
}


def test_every_file_is_here() -> None:
    assert {p.stem for p in FOLDER.glob("*.yaml")} == set(PROPERTIES)
    assert {p.stem for p in FOLDER.glob("*.txt")} == set(PROPERTIES)


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_failing_property_is_named(
    name: str, golden: Callable[[str, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    path = FOLDER.relative_to(ROOT) / f"{name}.yaml"
    with pytest.raises(Diagnostics) as caught:
        load(path)
    assert all(d.help and d.span for d in caught.value.items)
    golden(f"{caught.value}\n", (FOLDER / f"{name}.txt"))
    code, marked = PROPERTIES[name]
    first = caught.value.items[0]
    assert first.code == code
    assert first.span is not None
    line = path.read_text().splitlines()[first.span.line - 1]
    assert line[first.span.column - 1 : first.span.end - 1] == marked


def test_the_readme_has_a_row_for_each() -> None:
    rows = [r for r in (ROOT / "README.md").read_text().splitlines() if r.startswith("| ")]
    for name, (code, _) in PROPERTIES.items():
        title = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["title"]
        found = [r for r in rows if title in r]
        assert found, f"no row of the README names {title}"
        assert any(f"`{code}`" in r for r in found), (title, code)
