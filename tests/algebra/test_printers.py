"""One tree, four printers: NumPy text is run, TileLang text is run on a stand-in for T."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import sympy
from algebra_builders import BY_NAME, GDN, KDA
from hypothesis import given, settings
from hypothesis import strategies as st

from leapgen.algebra import printers
from leapgen.algebra.derive import derive
from leapgen.algebra.describe_native import native_latex
from leapgen.algebra.stages import split_reductions
from leapgen.algebra.symbols import SumK, element, exp2, sigmoid, softplus

x, y, z = element("x"), element("y"), element("z")
K = sympy.Symbol("K", integer=True, positive=True)
T = SimpleNamespace(
    exp=math.exp,
    exp2=lambda v: 2.0**v,
    log=math.log,
    sqrt=math.sqrt,
    rsqrt=lambda v: v**-0.5,
    tanh=math.tanh,
    abs=abs,
    pow=math.pow,
    max=max,
    min=min,
    float32=float,
    if_then_else=lambda test, a, b: a if test else b,
)

CASES = [
    (x * (y - z), "x * (y - z)", "x*(y - z)"),
    (-x * y, "-x * y", "-x*y"),
    (z - x, "z - x", "z - x"),
    (-x - y, "-x - y", "-x - y"),
    (2 * x + 1, "2.0 * x + 1.0", "2*x + 1"),
    (x / 3, "x / 3.0", "x/3"),
    (-x / 3, "-x / 3.0", "-x/3"),
    (x * sympy.Rational(1, 8), "0.125 * x", "0.125*x"),
    (x**2, "x * x", "x**2"),
    ((x + y) ** 3, "(x + y) * (x + y) * (x + y)", "(x + y)**3"),
    (x / y / z, "x / (y * z)", "x/(y*z)"),
    (1 / (x + y), "1.0 / (x + y)", "1/(x + y)"),
    (x * (1 / y) * (x + z), "x * (x + z) / y", "x*(x + z)/y"),
    (x ** sympy.Rational(-1, 2), "T.rsqrt(x)", "rsqrt(x)"),
    (x ** sympy.Rational(3, 2), "T.pow(x, T.float32(1.5))", "x**1.5"),
    (x * K ** sympy.Rational(-1, 2), "x * K**-0.5", "x*K**-0.5"),
    (exp2(x - y), "T.exp2(x - y)", "exp2(x - y)"),
    (x * sigmoid(y), "x * (1.0 / (1.0 + T.exp(-y)))", "x*sigmoid(y)"),
    (
        sympy.Max(x, -150),
        "T.if_then_else(x < T.float32(-150.0), T.float32(-150.0), x)",
        "max(x, -150)",
    ),
    (sympy.Min(x, y), "T.min(x, y)", "min(x, y)"),
    (sympy.tanh(-x), "-T.tanh(x)", "-tanh(x)"),
    (
        softplus(x),
        "T.if_then_else(x > 20.0, x, T.log(1.0 + T.exp(x)))",
        "softplus(x)",
    ),
]


@pytest.mark.parametrize(("expr", "code", "words"), CASES)
def test_printed_text(expr: sympy.Expr, code: str, words: str) -> None:
    assert printers.tilelang(expr) == code
    assert printers.text(expr) == words
    assert printers.latex(expr)


@pytest.mark.parametrize("expr", [case[0] for case in CASES])
def test_printed_code_has_the_value(expr: sympy.Expr) -> None:
    point = {"x": 0.7, "y": 1.3, "z": -0.4}
    wanted = float(_elementary(expr).subs({**_at(point), K: 16}))
    scope = {**point, "K": 16}
    assert eval(printers.tilelang(expr), {"T": T}, scope) == pytest.approx(wanted, rel=1e-12)
    arrays = {name: np.float64(value) for name, value in point.items()}
    found = eval(printers.numpy(expr), {"np": np}, {**arrays, "K": 16})
    assert found == pytest.approx(wanted, rel=1e-12)


def _at(point: dict[str, float]) -> dict[sympy.Symbol, float]:
    return {element(name): value for name, value in point.items()}


def _elementary(expr: sympy.Expr) -> sympy.Expr:
    expr = expr.replace(sigmoid, lambda v: 1 / (1 + sympy.exp(-v)))
    expr = expr.replace(softplus, lambda v: sympy.log(1 + sympy.exp(v)))
    return expr.replace(exp2, lambda v: 2**v)


def expressions() -> st.SearchStrategy[sympy.Expr]:
    leaves = st.sampled_from([x, y, z, sympy.Integer(2), sympy.Rational(1, 3)])

    def grow(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            pair.map(lambda p: p[0] + p[1]),
            pair.map(lambda p: p[0] - p[1]),
            pair.map(lambda p: p[0] * p[1]),
            pair.map(lambda p: p[0] / (p[1] ** 2 + 1)),
            inner.map(sigmoid),
            inner.map(lambda e: exp2(-(e**2))),
            pair.map(lambda p: sympy.Max(*p)),
        )

    return st.recursive(leaves, grow, max_leaves=6)


@settings(max_examples=40, deadline=None)
@given(expr=expressions(), seed=st.integers(0, 1000))
def test_random_expressions_have_their_value(expr: sympy.Expr, seed: int) -> None:
    rng = random.Random(seed)
    point = {name: rng.uniform(-1, 1) for name in "xyz"}
    wanted = float(_elementary(expr).subs(_at(point)))
    assert eval(printers.tilelang(expr), {"T": T}, dict(point)) == pytest.approx(
        wanted, rel=1e-9, abs=1e-9
    )
    arrays = {name: np.float64(value) for name, value in point.items()}
    found = eval(printers.numpy(expr), {"np": np}, arrays)
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    text = printers.text(expr)
    scope = {"sigmoid": lambda v: 1 / (1 + math.exp(-v)), "exp2": T.exp2, "max": max}
    assert eval(text, scope, dict(point)) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_softplus_does_not_overflow() -> None:
    code = printers.numpy(softplus(x))
    with np.errstate(all="raise"):
        found = eval(code, {"np": np}, {"x": np.array([-100.0, 0.0, 19.9, 1000.0])})
    assert found == pytest.approx([0.0, math.log(2), 19.9, 1000.0], rel=1e-8)


def test_names_are_replaced() -> None:
    assert printers.tilelang(x * y, {"x": "x[i]"}) == "x[i] * y"
    assert printers.numpy(x * y, lambda name: f"env.{name}") == "env.x * env.y"


@pytest.mark.parametrize("printer", [printers.tilelang, printers.numpy])
def test_sums_have_no_code(printer: object) -> None:
    assert callable(printer)
    with pytest.raises(ValueError, match="a sum inside"):
        printer(SumK(x) * y)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("k", "k"),
        ("beta", r"\beta"),
        ("k_raw", r"k_{\mathrm{raw}}"),
        ("G1", "G_{1}"),
        ("yq", "y_{q}"),
        ("p_q_1", "p_{q,1}"),
        ("rk", "k_{r}"),
        ("dt_bias", r"\mathrm{dt}_{\mathrm{bias}}"),
        ("k[i]", "{k}_{i}"),
        ("beta1", r"\beta_{1}"),
    ],
)
def test_latex_names(name: str, code: str) -> None:
    assert printers.latex(element(name)) == code


def test_latex_indices_under_sums() -> None:
    window = derive(KDA.recurrence())
    found = printers.latex(SumK(window.pairs[0].inner), window.axes)
    assert found == r"\sum_{i} {k}_{i} \, {q}_{i}"


def test_native_latex() -> None:
    spec = KDA.spec()
    assert native_latex(spec.native.node, {"k", "v", "q"}) == (
        r"\left(I - \beta \, k \, k^\top\right) \, \operatorname{Diag}(\exp(g)) \, S_{t-1}"
        r" + \beta \, k \, v^\top"
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_stages_compute_everything_in_order(name: str) -> None:
    window = derive(BY_NAME[name].recurrence())
    known = {window.recurrence.symbol_of(i.name) for i in window.recurrence.inputs}
    known |= {window.previous} if window.previous is not None else set()
    dims = {sympy.Symbol(n, integer=True, positive=True) for n in "KV"}
    for stage in split_reductions(window):
        for assignment in (*stage.scalars, *stage.vectors_k, *stage.vectors_v):
            assert not assignment.expression.has(SumK)
            assert assignment.expression.free_symbols <= known | dims
            known.add(assignment.target.symbol)
        for reduction in stage.reductions:
            assert reduction.inner.free_symbols <= known | dims
        known |= {r.target.symbol for r in stage.reductions}
    assert {p.symbol for p in window.pairs} <= known
    assert {level.symbol for level in window.levels} <= known


def test_stages_of_a_normalised_recurrence() -> None:
    first, second = split_reductions(derive(GDN.recurrence()))
    assert [a.target.symbol.name for a in first.scalars] == ["g", "beta", "G1"]
    assert [(r.target.symbol.name, printers.text(r.inner)) for r in first.reductions] == [
        ("n1", "q_raw**2"),
        ("n2", "k_raw**2"),
        ("n3", "k_raw*q_raw"),  # the norms are factors: this sum need not wait for them
    ]
    assert [a.target.symbol.name for a in second.vectors_k] == ["q", "k"]
    assert second.reductions == ()
    assert [a.target.symbol.name for a in second.scalars] == ["p_q_1"]
    without = split_reductions(derive(GDN.recurrence()), pairs=False)
    assert len(without[0].reductions) == 2
