"""Formulas: the whitelist, places, axes, matrix shapes, signs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leapgen.diagnostics import Report, Span
from leapgen.spec import expression as ex
from leapgen.spec.native import check_native
from leapgen.spec.parser import Place, parse
from leapgen.spec.reader import columns, read
from leapgen.spec.shapes import Scope, Type, infer
from leapgen.spec.signs import constant, signs
from leapgen.spec.tree import Leaf, Table
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


def codes(text: str) -> list[str]:
    report = Report()
    parse(text, report)
    return [d.code for d in report.items]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("-exp(A_log)*softplus(a+dt_bias)", "-exp(A_log) * softplus(a + dt_bias)"),
        ("(I - beta*k@k.T)@diag(exp(g))@S", "(I - beta * k @ k.T) @ diag(exp(g)) @ S"),
        ("a**b**c", "a**b**c"),
        ("(a**b)**c", "(a**b)**c"),
        ("(-x)**2", "(-x)**2"),
        ("-x**-2", "-x**-2"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("a / (b * c)", "a / (b * c)"),
        ("(a + b).T", "(a + b).T"),
        ("l2norm( q , eps=1e-6 )", "l2norm(q, eps=1e-6)"),
        ("  max(a, .5)  ", "max(a, .5)"),
    ],
)
def test_print(text: str, printed: str) -> None:
    assert ex.unparse(good(text)) == printed
    assert good(printed) == good(text)


def _nodes() -> st.SearchStrategy[ex.Node]:
    leaves = st.one_of(
        st.sampled_from(["a", "k", "S"]).map(ex.Name),
        st.sampled_from([("2", 2), ("0.5", 0.5), ("1e-6", 1e-6)]).map(
            lambda p: ex.Number(p[1], p[0])
        ),
    )

    def grow(inner: st.SearchStrategy[ex.Node]) -> st.SearchStrategy[ex.Node]:
        operators = st.sampled_from(["+", "-", "*", "/", "**", "@"])
        return st.one_of(
            st.builds(ex.Binary, operators, inner, inner),
            st.builds(ex.Unary, st.just("-"), inner),
            st.builds(ex.Transpose, inner),
            st.builds(lambda f, x: ex.Call(f, (x,)), st.sampled_from(ex.ELEMENTWISE), inner),
            st.builds(lambda x, y: ex.Call("max", (x, y)), inner, inner),
        )

    return st.recursive(leaves, grow, max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(_nodes())
def test_printed_formulas_parse_back(node: ex.Node) -> None:
    assert good(ex.unparse(node)) == node


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_any_text_gives_a_tree_or_findings_inside_it(text: str) -> None:
    report = Report()
    node = parse(text, report)
    assert report.items or ex.HOLE not in tuple(ex.walk(node))
    for d in report.items:
        assert d.span is not None
        assert 1 <= d.span.column < d.span.end <= max(len(text), 1) + 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("__import__(a)", "unknown-function"),
        ("(lambda: 0)()", "unknown-function"),
        ("[x for x in y]", "formula-syntax"),
        ("a.__class__", "formula-syntax"),
        ("f'{a}'", "formula-syntax"),
        ("x := 1", "formula-syntax"),
        ("a ^ 2", "formula-operator"),
        ("a % 2", "formula-operator"),
        ("a // 2", "formula-operator"),
        ("+a", "formula-operator"),
        ("not a", "formula-operator"),
        ("1_000", "formula-syntax"),
        ("0x10", "formula-syntax"),
        ("1j", "formula-syntax"),
        ("1e999", "formula-syntax"),
        ("True", "formula-syntax"),
        ("a # b", "formula-syntax"),
        ("a\\", "formula-syntax"),
        ("a\x00b", "formula-syntax"),
        ("", "formula-syntax"),
        ("a +", "formula-syntax"),
        ("a b", "formula-syntax"),
        ("-" * 900 + "a", "formula-syntax"),
        ("(" * 400 + "a" + ")" * 400, "formula-syntax"),
        ("a" * 2000, "formula-syntax"),
        ("exp()", "formula-arguments"),
        ("exp(a, b)", "formula-arguments"),
        ("max(a, b, c)", "formula-arguments"),
        ("l2norm(k, epsilon=1)", "formula-arguments"),
        ("exp(a, eps=1)", "formula-arguments"),
        ("max(*a, b)", "formula-syntax"),
        ("l2norm(k, **a)", "formula-arguments"),
    ],
)
def test_refused(text: str, code: str) -> None:
    assert codes(text) == [code]


def test_all_findings_of_one_formula() -> None:
    assert sorted(codes("a ^ 2 + sigmiod(b) * c.t")) == [
        "formula-operator",
        "formula-syntax",
        "unknown-function",
    ]


def test_places_count_characters_not_bytes() -> None:
    report = Report()
    parse("é + 状 + foo(x)", report, Place.plain("é + 状 + foo(x)", 7, 10))
    assert [d.span for d in report.items] == [Span(7, 10, 11), Span(7, 14, 15), Span(7, 18, 21)]


def _place(line: str) -> Leaf:
    tree = read(Report("", line))
    assert isinstance(tree, Table)
    leaf = tree.get("x")
    assert isinstance(leaf, Leaf)
    return leaf


@pytest.mark.parametrize(
    "line",
    [
        "x: a + bad(c)",
        "{y: 1, x: a + bad(c)}",
        "x: 'a + bad(c)'",
        'x: "a + bad(c)"',
        'x: "\\x61 + bad(c)"',
        'x: "\\u0061 \\x2b bad(c)"',
        '? x\n: "é" # comment\n'.replace('"é"', '"a + bad(c)"'),
        "  x:   'a + bad(c)'  # comment",
    ],
)
def test_places_survive_quotes_and_escapes(line: str) -> None:
    leaf, report = _place(line), Report()
    assert leaf.text == "a + bad(c)"
    parse(leaf.text, report, leaf.place)
    span = report.items[0].span
    assert span is not None
    row = line.splitlines()[span.line - 1]
    assert row[span.column - 1 : span.end - 1] == "bad"


def test_columns() -> None:
    assert columns("abc", 5) == (5, 6, 7, 8)
    assert columns("'a''b'", 1) == (2, 3, 5, 6)
    assert columns('"a\\tb"', 1) == (2, 3, 5, 6)


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
        ("exp(k @ v.T) + S", "matrix-shape"),
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
