"""The CUDA text of the generated modules, run thread by thread against their oracles.

A run takes half a minute, most of it in compilers, so that few are in the default run. sm90's
modules at MATRIX, for one, run in tests/faults already.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

import pytest
from generated_modules import (
    ARCHES,
    PLAIN,
    SPECS,
    derived,
    file_of,
    in_words,
    lower_once,
    module_at,
    plan_of,
)

from leapgen.report.ledger import Ledger
from leapgen.report.operations import random_operations
from leapgen.report.subjects import Subject, one_thread
from leapgen.report.trial import Trial
from leapgen.runtime import emulated
from leapgen.schedule.arch import arch_named

MATRIX = (64, 32)  # (K, V) of the matrix path; PLAIN: of the other
HALF = (32, 16)  # the payload as for the matrix path, the value channels no whole warp
HEADS = (2, 4)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(emulated, "lower", lower_once)
    with one_thread():
        yield


def trial(name: str, arch: str, dims: tuple[int, int], rounds: int, checked: bool = False) -> Trial:
    """Every operation once and `rounds` more at random, each against the model and float64."""
    module = module_at(file_of(name, arch))
    backend = emulated.Emulator(checked=checked)
    subject = Subject(module.with_backend(backend), arch_named(arch), "emulated", "cpu")
    plan, ledger = plan_of(name, arch), Ledger()
    run = Trial(derived(name)[0], plan, subject, plan.shape(*dims, *HEADS), ledger)
    random_operations(run, rounds)
    assert not [c for c in ledger.checks.values() if not c.ok]
    assert len(ledger.checks) > 20
    return run


def modules(*default: tuple[str, str, tuple[int, int]]) -> pytest.MarkDecorator:
    """All of them; what is not named runs when slow tests do."""
    every = itertools.product(ARCHES, SPECS, (MATRIX, PLAIN, HALF))
    marked = [pytest.param(*w, marks=() if w in default else pytest.mark.slow) for w in every]
    return pytest.mark.parametrize(("arch", "name", "dims"), marked, ids=in_words)


@modules(("sm120", "gdn", MATRIX))
def test_random_operations(arch: str, name: str, dims: tuple[int, int]) -> None:
    assert trial(name, arch, dims, 24).flushed


@modules(("sm90", "gdn", PLAIN))
def test_every_access_watched(arch: str, name: str, dims: tuple[int, int]) -> None:
    """Races, bounds and alignment are errors here."""
    trial(name, arch, dims, 1, checked=True)


@pytest.mark.parametrize("name", SPECS)
def test_archs_that_need_no_run_of_their_own(name: str) -> None:
    """sm100 and sm120 have sm90's builders to the letter; default configs and limits differ."""
    parts = {arch: _functions(arch, name) for arch in ("sm90", "sm100", "sm120")}
    for arch, functions in parts.items():
        assert functions.keys() == parts["sm90"].keys()
        different = {n for n, text in functions.items() if text != parts["sm90"][n]}
        rules = {
            "config_step",
            "config_flush",
            "config_materialize",
            "config_load_state",
            "config_verify",
            "_config_slices",
            "_slices",
            "limits",
        }
        assert different <= rules, arch


def _functions(arch: str, name: str) -> dict[str, str]:
    tree = ast.parse(file_of(name, arch).read_text())
    return {f.name: ast.unparse(f) for f in tree.body if isinstance(f, ast.FunctionDef)}
