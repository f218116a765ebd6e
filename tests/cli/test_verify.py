"""`leapgen verify`: passes on what is right, fails on every wrong term, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import sympy
from typer.testing import CliRunner

from leapgen import paths, pipeline
from leapgen.algebra.symbols import exp2
from leapgen.algebra.window import Window
from leapgen.cli import Exit, app
from leapgen.report import subjects, verify
from leapgen.report.drift_section import required_gains
from leapgen.report.subjects import subject
from leapgen.report.verify import operate

SHAPE = (16, 24, 2, 4)
SHAPES_OF_ALL = ((16, 24),)
OTHERS = sorted({p.stem for p in paths.shipped_specs()} - {"gdn", "kda"})


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_shipped_specs_pass_on_cpu(name: str) -> None:
    words = ["verify", name, "--arch", "cpu", "--json", "--tokens", "512", "--rounds", "40"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stdout
    (report,) = json.loads(result.stdout)
    assert report["ok"]
    names = {c["name"] for s in report["sections"] for c in s["checks"]}
    assert {"output in lockstep", "output against float64", "copy is exact"} <= names
    for section in report["sections"]:
        for check in section["checks"]:
            inside = check["measured"] <= check["bound"]
            assert check["measured"] >= check["bound"] if check["least"] else inside


@pytest.mark.parametrize("name", OTHERS)
def test_every_recurrence_passes_on_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One geometry, and few operations; `leapgen verify` has more."""
    monkeypatch.setattr(verify, "GEOMETRIES", SHAPES_OF_ALL)
    words = ["verify", name, "--arch", "cpu", "--json", "--tokens", "512", "--rounds", "25"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stdout
    (report,) = json.loads(result.stdout)
    assert report["ok"]
    assert "windows that closed, of a head" in str(report["sections"])


PICKED = (
    ("linear_attention", "normaliser=column"),
    ("mamba2", "gate=silu"),
    ("hgrn2", "lower=bounded"),
    ("deltaproduct", "products=three"),
    ("gated_deltaproduct", "products=three"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pick"), [*((n, "") for n in OTHERS), *PICKED])
def test_every_recurrence_is_under_its_bounds(name: str, pick: str) -> None:
    words = ["verify", name, "--arch", "cpu", *(("--pick", pick) if pick else ())]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stdout


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects.shutil, "which", lambda _: None)
    result = CliRunner().invoke(app, ["verify", "gdn", "--arch", "cpu"])
    assert result.exit_code == Exit.MISSING
    assert "g++" in result.stderr
    assert result.stdout == ""


# ---- every term of the window, wrong one after the other

Mutation = tuple[str, Callable[[Window], Window]]


def undecayed(e: sympy.Expr) -> sympy.Expr:
    return e.replace(exp2, lambda x: sympy.S.One)


def expression_mutations(name: str, e: sympy.Expr) -> Iterator[tuple[str, sympy.Expr]]:
    """The expression with its sign turned, its decay dropped, or one term of a sum missing."""
    if e == 1:
        return
    yield f"sign of {name}", -e
    if e.has(exp2):
        yield f"decay of {name} dropped", undecayed(e)
    for term in sympy.Add.make_args(sympy.expand(e)):
        if term != sympy.expand(e):
            yield f"{term} missing in {name}", sympy.expand(e) - term


def mutations(window: Window) -> Iterator[Mutation]:
    """Windows that differ from a right one in one term."""

    def changed(kind: str, index: int, field: str, e: sympy.Expr) -> Callable[[Window], Window]:
        def apply(w: Window) -> Window:
            items: list[Any] = list(getattr(w, kind))
            items[index] = replace(items[index], **{field: e})
            return replace(w, **{kind: tuple(items)})

        return apply

    fields = {
        "reads": ("payload", "record_inner", "record_outer"),
        "pairs": ("inner",),
        "corrections": ("expression",),
        "records": ("key",),
    }
    for kind, names in fields.items():
        for index, item in enumerate(getattr(window, kind)):
            for field in names:
                where = f"{getattr(item, 'symbol', 'record')}.{field}"
                for name, e in expression_mutations(where, getattr(item, field)):
                    yield name, changed(kind, index, field, e)
    for index, level in enumerate(window.levels):
        zero = changed("levels", index, "increment", sympy.S.Zero)
        yield f"decay of {level.symbol} dropped", zero
    for name, e in expression_mutations("output", window.output):
        yield name, lambda w, e=e: replace(w, output=e)
    for field in ("payload", "record"):
        for name, e in expression_mutations(f"rebuild.{field}", getattr(window.rebuild, field)):
            yield name, lambda w, e=e, f=field: replace(w, rebuild=replace(w.rebuild, **{f: e}))


CHAINS = {name: pipeline.compile(name, "cpu") for name in ("gdn", "kda")}
CASES = [(name, m) for name, chain in CHAINS.items() for m in mutations(chain.window)]


def test_the_unchanged_window_passes() -> None:
    for chain in CHAINS.values():
        shape = chain.plan.shape(*SHAPE)
        assert operate(chain, subject(chain.source, "cpu"), shape, 30).ledger.ok


# Each compiles its own kernels, some seconds: the default run has one of each kind.
QUICK = (
    "gdn: decay of y1.payload dropped",
    "gdn: decay of G1 dropped",
    "kda: decay of yq.record_inner dropped",
    "kda: sign of u1.expression",
    "kda: yq missing in output",
)


def cases() -> Iterator[Any]:
    for name, mutation in CASES:
        label = f"{name}: {mutation[0]}"
        marks = () if label in QUICK else pytest.mark.slow
        yield pytest.param(name, mutation, id=label, marks=marks)


@pytest.mark.parametrize(("name", "mutation"), list(cases()))
def test_a_wrong_term_is_caught(name: str, mutation: Mutation) -> None:
    chain = CHAINS[name]
    window = mutation[1](chain.window)
    plan = pipeline.schedule(window, chain.spec, "cpu")
    wrong = replace(chain, window=window, plan=plan)
    assert wrong.source.text != chain.source.text
    section = operate(wrong, subject(wrong.source, "cpu"), plan.shape(*SHAPE), 30)
    assert not section.ledger.ok, f"{mutation[0]} went unnoticed"


@pytest.mark.parametrize(
    ("name", "window", "method"),
    [("gdn", 10, 10), ("kda", 10, 10), ("rwkv7", 10, 5), ("linear_attention", 4, 10)],
)
def test_gains_that_drift_requires(name: str, window: float, method: float) -> None:
    gains = required_gains(pipeline.compile(name, "cpu").plan)
    assert gains == {"per window": window, "full": method}
