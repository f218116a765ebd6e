"""What formulas mean: axes and heads, matrix shapes of the native update, signs."""

from __future__ import annotations

import pytest

from leapgen.diagnostics import Report
from leapgen.spec import expression as ex
from leapgen.spec.native import check_native
from leapgen.spec.parser import parse
from leapgen.spec.shapes import Scope, Type, infer
from leapgen.spec.signs import constant, signs
from leapgen.tensors import Axis, Per

SCOPE = Scope(
    {
        "q": Type(Axis.KEY, Per.KEY),
        "k": Type(Axis.KEY, Per.KEY),
        "w": Type(Axis.KEY, Per.VALUE),
        "v": Type(Axis.VALUE, Per.VALUE),
        "g": Type(Axis.SCALAR, Per.VALUE),
        "s": Type(Axis.SCALAR, Per.KEY),
        "broken": None,
    }
)


def good(text: str) -> ex.Node:
    report = Report()
    node = parse(text, report)
    assert not report.items, report.items
    return node


@pytest.mark.parametrize(
    ("text", "axis", "per"),
    [
        ("1 + K", Axis.SCALAR, Per.KEY),
        ("k * s", Axis.KEY, Per.KEY),
        ("k * g", Axis.KEY, Per.VALUE),
        ("k * w", Axis.KEY, Per.VALUE),
        ("-v / g", Axis.VALUE, Per.VALUE),
        ("sum(k ** 2)", Axis.SCALAR, Per.KEY),
        ("dot(k, w)", Axis.SCALAR, Per.VALUE),
        ("dot(k, q) * v", Axis.VALUE, Per.VALUE),
        ("l2norm(k, eps=1e-6) * K**-0.5", Axis.KEY, Per.KEY),
        ("max(v, 0)", Axis.VALUE, Per.VALUE),
        ("silu(tanh(v))", Axis.VALUE, Per.VALUE),
    ],
)
def test_axes(text: str, axis: Axis, per: Per) -> None:
    report = Report()
    assert infer(good(text), SCOPE, report) == Type(axis, per)
    assert not report.items


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("k * v", "axis-mismatch"),
        ("k ** v", "axis-mismatch"),
        ("max(k, v)", "axis-mismatch"),
        ("dot(k, v)", "axis-mismatch"),
        ("dot(k, g)", "axis-mismatch"),
        ("sum(g)", "axis-mismatch"),
        ("l2norm(g)", "axis-mismatch"),
        ("l2norm(k, eps=g)", "formula-arguments"),
        ("k @ k", "matrix-syntax"),
        ("k.T", "matrix-syntax"),
        ("I", "matrix-syntax"),
        ("diag(k)", "matrix-syntax"),
        ("S", "state-in-coefficient"),
        ("exp(S)", "state-in-coefficient"),
        ("H", "unknown-symbol"),
        ("kk", "unknown-symbol"),
    ],
)
def test_axis_errors(text: str, code: str) -> None:
    report = Report()
    infer(good(text), SCOPE, report)
    assert [d.code for d in report.items] == [code]


def test_what_was_reported_causes_no_more_errors() -> None:
    report = Report()
    assert infer(good("exp(broken) * k + v"), SCOPE, report) is None
    assert not report.items


@pytest.mark.parametrize(
    "text",
    [
        "S + k @ v.T",
        "exp(g) * (I - s * k @ k.T) @ S + s * k @ v.T",
        "(I - s * k @ k.T) @ diag(exp(w)) @ S + k @ (g * v).T",
        "S + k @ (v - S.T @ k).T",
        "(k @ (S.T @ k).T) + S",
        "(v @ k.T + S.T).T",
        "diag(w) @ S - (w * k) @ (k.T @ S) + dot(k, q) * k @ v.T",
        "2 * I @ S / g",
        "(I + 2 * I - diag(k)) @ S",
        "S + k @ max(v, 0).T",
        "S * (k.T @ q)",
        "k.T @ k * S",
        "diag(1 - k) @ S + broken * S",
    ],
)
def test_native(text: str) -> None:
    report = Report()
    check_native(good(text), SCOPE, report)
    assert not report.items, str(report.items)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("S @ S.T @ S", "nonlinear-state"),
        ("S * S", "nonlinear-state"),
        ("S ** 2", "nonlinear-state"),
        ("exp(S)", "nonlinear-state"),
        ("k @ v.T / S", "nonlinear-state"),
        ("k @ v.T", "nonlinear-state"),
        ("diag(S)", "nonlinear-state"),
        ("S + k * v.T", "matrix-shape"),
        ("S + k * v", "matrix-shape"),
        ("S + k @ v", "matrix-shape"),
        ("k * S", "matrix-shape"),
        ("S + 1", "matrix-shape"),
        ("S + v @ k.T", "matrix-shape"),
        ("S.T", "matrix-shape"),
        ("I @ I", "matrix-shape"),
        ("g @ S", "matrix-shape"),
        ("S @ k", "matrix-shape"),
        ("S + I", "matrix-shape"),
        ("diag(g) @ S", "matrix-shape"),
        ("exp(k @ v.T) + S", "transition-form"),
        ("(k @ v.T) * S", "transition-form"),
        ("S + k", "vector-state"),
        ("S + v", "vector-state"),
        ("S + sum(g) * k @ v.T", "matrix-shape"),
        ("S / k", "matrix-shape"),
        ("S + kk @ v.T", "unknown-symbol"),
    ],
)
def test_native_errors(text: str, code: str) -> None:
    report = Report()
    check_native(good(text), SCOPE, report)
    assert [d.code for d in report.items] == [code]
    assert all(d.help for d in report.items)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-exp(a) * softplus(b)", {-1}),
        ("exp(a) * softplus(b)", {1}),
        ("-5 * sigmoid(a)", {-1}),
        ("log(0.9)", {-1}),
        ("log(1.5)", {1}),
        ("0", {0}),
        ("1 - 1", {0}),
        ("min(a, 0)", {-1, 0}),
        ("max(a, 1)", {1}),
        ("a", {-1, 0, 1}),
        ("sqrt(a) + 1", {1}),
        ("sigmoid(a) - 1", {-1, 0, 1}),
        ("K ** -0.5", {1}),
        ("2 ** a", {1}),
        ("sum(exp(a))", {1}),
        ("10 ** 10 ** 10", {1}),
    ],
)
def test_signs(text: str, expected: set[int]) -> None:
    assert signs(good(text), {}) == expected


def test_constants_without_a_value() -> None:
    for text in ("1 / 0", "log(0)", "sqrt(-1)", "(-1) ** 0.5", "10 ** 10 ** 10", "exp(1000)"):
        assert constant(good(text)) is None
