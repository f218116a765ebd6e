"""Recurrences that nobody published, from the text of a spec to a verified kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from invented import invented
from matrices import update

from leapgen import pipeline
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads, stream
from leapgen.report import derivation
from leapgen.report.ledger import Ledger
from leapgen.report.subjects import one_thread, subject
from leapgen.report.verify import operate
from leapgen.spec.model import Spec

ROUNDS = 60
common = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
HEADS = st.sampled_from([(2, 4), (1, 3), (2, 2)])


def failures(ledger: Ledger) -> list[str]:
    return [f"{c.name}: {c.where} {c.row}" for c in ledger.checks.values() if not c.ok]


def check_native(spec: Spec, H: int, HV: int) -> None:
    """The interpreter's sub-steps against the native update in matrices."""
    tokens = stream(spec, 8, Heads(H, HV, spec.K, spec.V), seed=3)
    S = np.random.default_rng(0).standard_normal((HV, spec.K, spec.V))
    for t in range(8):
        now = {x.name: tokens[x.name] if x.constant else tokens[x.name][t] for x in spec.inputs}
        expected = update(spec, S, now)
        S, _, _ = Stepwise(spec).step(S, now)
        np.testing.assert_allclose(S, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def check(
    text: str,
    folder: Path,
    heads: tuple[int, int] = (2, 4),
    arch: str = "cpu",
    rounds: int = ROUNDS,
) -> None:
    """Derivation, native form and kernel of a spec."""
    path = folder / "invented.yaml"
    path.write_text(text)
    chain = pipeline.compile(str(path), arch)
    check_native(chain.spec, *heads)
    assert not failures(derivation.checks(chain.window, 0))
    with one_thread():
        shape = chain.plan.shape(chain.spec.K, chain.spec.V, *heads)
        section = operate(chain, subject(chain.source, arch), shape, rounds)
    assert not failures(section.ledger)


@settings(common, max_examples=3, phases=[Phase.generate])
@given(text=invented(least=2), heads=HEADS)
def test_three(tmp_path: Path, text: str, heads: tuple[int, int]) -> None:
    note(text)
    check(text, tmp_path, heads)


@pytest.mark.slow
@settings(common, max_examples=50)
@given(text=invented(), heads=HEADS)
def test_fifty(tmp_path: Path, text: str, heads: tuple[int, int]) -> None:
    note(text)
    check(text, tmp_path, heads)


@pytest.mark.slow
@settings(common, max_examples=8, phases=[Phase.generate])
@given(text=invented(dims=(64, 32)), heads=HEADS)
def test_eight_on_an_emulated_gpu(tmp_path: Path, text: str, heads: tuple[int, int]) -> None:
    """At a shape whose state lies in fragment order, in the order of the matrix instructions."""
    note(text)
    check(text, tmp_path, heads, "sm90", rounds=25)


@settings(common, max_examples=40, phases=[Phase.generate])
@given(text=invented())
def test_the_language_takes_them_all(tmp_path: Path, text: str) -> None:
    """What is drawn loads, is proved and renders: without compiling, many are cheap."""
    note(text)
    path = tmp_path / "invented.yaml"
    path.write_text(text)
    chain = pipeline.compile(str(path), "sm90")
    assert chain.source.text
    check_native(chain.spec, 2, 4)
