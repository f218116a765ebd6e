"""Specs to recurrences: names, sums, axes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
from algebra_builders import GDN, KDA, NONE, Build, sub

from leapgen.algebra.lower import lower
from leapgen.algebra.printers import text
from leapgen.algebra.recurrence import Recurrence
from leapgen.algebra.symbols import SumK
from leapgen.diagnostics import Diagnostics
from leapgen.tensors import Axis, Per


def assigned(rec: Recurrence) -> dict[str, str]:
    return {a.target.symbol.name: text(a.expression) for a in rec.assignments}


def test_replaced_inputs_are_raw() -> None:
    rec = KDA.recurrence()
    assert assigned(rec) == {
        "q": "q_raw*rsqrt(sum_K(q_raw**2) + 1e-06)*K**-0.5",
        "k": "k_raw*rsqrt(sum_K(k_raw**2) + 1e-06)",
        "g": "-softplus(a + dt_bias)*exp(A_log)",
        "beta": "sigmoid(b)",
    }
    assert rec.symbol_of("q").name == "q_raw"
    assert rec.symbol_of("v").name == "v"
    assert rec.quantities["g"].axis is Axis.KEY
    assert rec.quantities["g"].per is Per.VALUE
    assert rec.quantities["k"].per is Per.KEY


def test_replaced_definitions_are_numbered() -> None:
    build = replace(NONE, let=(("k", "2 * k"), ("k", "k + q"), ("k", "k * k")))
    assert assigned(build.recurrence()) == {
        "k_1": "2*k_raw",
        "k_2": "k_1 + q",
        "k": "k_2**2",
    }


def test_a_raw_name_that_is_taken_gets_an_underscore() -> None:
    build = Build(
        "q:key:K k:key:K k_raw:key:K v:value:V",
        "S + k @ v.T",
        (sub("k", value="v"),),
        let=(("k", "k + k_raw"),),
    )
    assert assigned(build.recurrence()) == {"k": "k_raw + k_raw_"}


def test_numbers_and_names_are_no_computation() -> None:
    build = replace(NONE, let=(("scale", "K**-0.5"), ("k", "k"), ("q", "q * scale"), ("w", "v")))
    rec = build.recurrence()
    assert assigned(rec) == {"q": "q_raw*K**-0.5"}
    assert rec.symbol_of("k").name == "k"


def test_unused_definitions_go() -> None:
    build = replace(NONE, let=(("w", "v * 2"),))
    assert assigned(build.recurrence()) == {}


def test_sums_outside_definitions_get_names() -> None:
    build = replace(NONE, add="dot(q, k) * v + sum(q * k) * v")
    rec = build.recurrence()
    assert assigned(rec) == {"sum1": "sum_K(k*q)"}
    assert rec.add is not None
    assert not rec.add.has(SumK)


def test_reads_of_the_decayed_state_are_rewritten() -> None:
    build = Build(
        "q:key:K k:key:K v:value:V g:value:K",
        "diag(exp(g)) @ S + k @ (v - (diag(exp(g)) @ S).T @ k).T",
        (sub("k", read="k", decayed=True, value="v", decay="vector", log="g"),),
    )
    rec = build.recurrence()
    g, k = rec.quantities["g"].symbol, rec.quantities["k"].symbol
    assert rec.steps[0].read == sympy.exp(g) * k


@pytest.mark.parametrize(
    ("build", "code", "message"),
    [
        (replace(NONE, query="v"), "axis-mismatch", "expected a vector over key channels"),
        (replace(NONE, query="q * v"), "axis-mismatch", "do not combine"),
        (replace(NONE, query="unknown"), "unknown-name", "`unknown` is not defined"),
        (replace(NONE, query="q @ k"), "matrix-formula", "`native` only"),
        (replace(NONE, add="sum(K) * v"), "axis-mismatch", "no axis to sum over"),
        (replace(NONE, let=(("u1", "v"),)), "reserved-name", "the derivation uses itself"),
        (replace(NONE, substeps=(sub("k"),)), "empty-substep", "writes nothing"),
        (
            replace(NONE, substeps=(sub("k", value="v", decay="scalar", log="k"),)),
            "axis-mismatch",
            "a scalar decay cannot be a vector over key channels",
        ),
    ],
)
def test_refusals(build: Build, code: str, message: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        build.recurrence()
    assert caught.value.codes == (code,)
    assert message in str(caught.value)


def test_check_finds_an_unknown_symbol() -> None:
    rec = GDN.recurrence()
    broken = replace(rec, query=rec.query * sympy.Symbol("x", real=True))
    with pytest.raises(ValueError, match="before it is known: x"):
        broken.check()
    with pytest.raises(ValueError, match="another axis"):
        replace(rec, query=rec.quantities["v"].symbol).check()


def test_lowering_twice_gives_equal_values() -> None:
    assert lower(GDN.spec()) == lower(GDN.spec())
