"""Formulas as text: the whitelist, printing, places in the file."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leapgen.diagnostics import Report, Span
from leapgen.spec import expression as ex
from leapgen.spec.parser import Place, parse
from leapgen.spec.reader import columns, read
from leapgen.spec.tree import Leaf, Table


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
