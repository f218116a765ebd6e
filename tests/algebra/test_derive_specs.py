"""Every shipped spec derives, with every alternative, and explains itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from leapgen.algebra.derive import derive
from leapgen.algebra.describe import derivation_markdown, describe
from leapgen.algebra.lower import lower
from leapgen.spec.loader import combinations, load

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
CASES = [(path, picks) for path in SPECS for picks in combinations(path)]


@pytest.mark.parametrize(
    ("path", "picks"), CASES, ids=[f"{p.stem}-{'-'.join(c.values())}" for p, c in CASES]
)
def test_every_combination_derives(path: Path, picks: dict[str, str]) -> None:
    spec = load(path, picks)
    window = derive(lower(spec))
    assert len(window.records) == len(spec.substeps)
    assert len(window.proofs) == 6


@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_explanations_have_all_sections(path: Path) -> None:
    spec = load(path)
    window = derive(lower(spec))
    text = derivation_markdown(spec, window)
    assert text.startswith(f"# {spec.title}\n")
    for heading in ("Native form", "Canonical form", "Records", "Readout", "Token program"):
        assert f"## {heading}\n" in text
    for proof in window.proofs:
        assert f"## Proof: {proof.title}\n" in text
    assert text.count("```math") * 2 == text.count("```")
    assert text.count("{") == text.count("}")
    assert text.count(r"\left") == text.count(r"\right")
    assert describe(window).markdown(3).startswith("### Native form")
