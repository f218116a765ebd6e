"""Native updates against sub-steps: what is proved and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from algebra_builders import BY_NAME, ERASE_WRITE, GDN, KDA, SCALAR_DELTA, VECTOR_DELTA, Build, sub

from leapgen.algebra.derive import derive
from leapgen.algebra.proof import prove_native
from leapgen.diagnostics import Diagnostics


def refused(build: Build) -> str:
    with pytest.raises(Diagnostics) as caught:
        derive(build.recurrence())
    assert caught.value.codes == ("native-mismatch",)
    return str(caught.value)


@pytest.mark.parametrize("name", BY_NAME)
def test_native_updates_are_proved(name: str) -> None:
    proof = prove_native(BY_NAME[name].recurrence())
    assert len(proof.steps) == 4


def test_the_transposed_split_is_refused() -> None:
    """The split as the paper prints it: reads along a * kappa and writes along kappa."""
    wrong = replace(
        ERASE_WRITE,
        substeps=(
            sub("kappa", read="a * kappa", decay="vector", log="g"),
            sub("k", value="v"),
        ),
    )
    message = refused(wrong)
    assert "the coefficient of S[m, j], summed over m, in S'[i, j]:" in message
    assert "native    -a[i]*kappa[i]*kappa[m]" in message
    assert "sub-steps -a[m]*kappa[i]*kappa[m]" in message


def test_the_two_splits_agree_where_a_is_a_number() -> None:
    scalar = ERASE_WRITE.tensors.replace("a:value:K", "a:value")
    swapped = (sub("kappa", read="a * kappa", decay="vector", log="g"), sub("k", value="v"))
    derive(replace(ERASE_WRITE, tensors=scalar, substeps=swapped).recurrence())


@pytest.mark.parametrize(
    ("build", "native", "place"),
    [
        # the read sees the undecayed state
        (VECTOR_DELTA, "(diag(exp(g)) - beta * k @ k.T) @ S + beta * k @ v.T", "S[m, j]"),
        # decay after the erase: the factor stands at the other index
        (VECTOR_DELTA, "diag(exp(g)) @ (I - beta * k @ k.T) @ S + beta * k @ v.T", "S[m, j]"),
        (SCALAR_DELTA, "exp(2 * g) * S - exp(g) * beta * k @ (k.T @ S - v.T)", "S[i, j]"),
        (SCALAR_DELTA, "exp(g) * (I - beta * k @ k.T) @ S + k @ v.T", "the additive part"),
        (SCALAR_DELTA, "exp(g) * (I + beta * k @ k.T) @ S + beta * k @ v.T", "S[m, j]"),
    ],
)
def test_near_misses_are_refused(build: Build, native: str, place: str) -> None:
    assert place in refused(replace(build, native=native))


@pytest.mark.parametrize(
    "native",
    [
        "exp(g) * S + beta * k @ (v - exp(g) * S.T @ k).T",
        "exp(g) * S + (k * beta) @ (v.T - exp(g) * k.T @ S)",
        "exp(g) * S - k @ (beta * (S * exp(g)).T @ k).T + k @ v.T * beta",
        "(exp(g) * S.T @ (I - beta * k @ k.T) + beta * v @ k.T).T",
        "(diag(exp(g) + 0 * k) - exp(g) * beta * k @ k.T) @ S + beta * k @ v.T",
        "exp(g / 2) * (I - beta * k @ k.T) @ (exp(g / 2) * S) + beta * k @ v.T",
        "exp(g) * (I - beta * k @ k.T) @ S @ I + beta * k @ v.T",
        "exp(g) * (S - k @ k.T @ S * beta) + beta * k @ v.T",
    ],
)
def test_other_ways_to_write_one_update(native: str) -> None:
    derive(replace(SCALAR_DELTA, native=native).recurrence())


def test_definitions_are_looked_into() -> None:
    build = replace(
        SCALAR_DELTA,
        let=(("alpha", "exp(g)"), ("eta", "1 / (1 + exp(-beta))"), ("zeta", "sigmoid(beta)")),
        native="alpha * (I - eta * k @ k.T) @ S + zeta * k @ v.T",
        substeps=(sub("k", read="alpha * k", value="v", gain="eta", decay="scalar", log="g"),),
    )
    window = derive(build.recurrence())
    assert window.reads[0].vector == window.quantities["k"].symbol


@pytest.mark.parametrize("build", [GDN, KDA])
def test_the_erase_direction_is_normalised_in_both(build: Build) -> None:
    raw = build.native.replace("k.T", "k.T / dot(k, k)")
    assert "S[m, j]" in refused(replace(build, native=raw))


@pytest.mark.parametrize(
    ("native", "code", "message"),
    [
        ("S @ S.T @ S", "native-not-affine", "S is multiplied by S"),
        ("S * S", "native-not-affine", "S is multiplied by S"),
        ("exp(S)", "native-not-affine", "no function of S or I"),
        ("S + k @ (S @ v).T @ S", "native-not-affine", "keep value channels apart"),
        ("S @ v @ v.T", "native-not-affine", "keep value channels apart"),
        ("S @ (v @ v.T)", "native-not-affine", "keep value channels apart"),
        ("k @ k.T", "native-shape", "a K x K matrix, expected a K x V matrix"),
        ("S.T", "native-shape", "a V x K matrix"),
        ("S + k @ k.T", "native-shape", "cannot be added"),
        ("S @ k", "native-shape", "a K x V matrix times a K x 1 matrix"),
        ("k * S", "native-shape", "matrices take `@`"),
        ("diag(S) @ S", "native-shape", "`diag` takes a vector without S"),
        ("k @ v.T / S", "native-shape", "the divisor"),
    ],
)
def test_native_formulas_without_meaning(native: str, code: str, message: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        replace(SCALAR_DELTA, native=native).recurrence()
    assert caught.value.codes == (code,)
    assert message in str(caught.value)
