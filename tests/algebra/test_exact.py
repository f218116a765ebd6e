"""The token program against the recurrence, in exact rational arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import sympy
from algebra_builders import BY_NAME, Build
from algebra_data import random_matrix, random_tokens, random_vector
from hypothesis import given, settings
from hypothesis import strategies as st

from leapgen.algebra.derive import derive
from leapgen.algebra.exact import Stored, difference
from leapgen.algebra.induction import ProofFailure, prove_window
from leapgen.algebra.symbols import RECORD_DECAY, element, exp2, level_symbol
from leapgen.algebra.window import Window
from leapgen.diagnostics import LeapgenError

WINDOWS = {name: derive(build.recurrence()) for name, build in BY_NAME.items()}


def run(window: Window, past: int, tokens: int, compensators: int, seed: int) -> str:
    rng = random.Random(seed)
    extra = [Stored(0, random_vector(rng, 3), random_vector(rng, 2)) for _ in range(compensators)]
    return difference(
        window,
        random_matrix(rng, 3, 2),
        extra,
        random_tokens(rng, window.recurrence, past, 3, 2),
        random_tokens(rng, window.recurrence, tokens, 3, 2),
    )


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (3, 1), (2, 3)])
def test_program_equals_recurrence(name: str, past: int, tokens: int) -> None:
    assert run(WINDOWS[name], past, tokens, compensators=2, seed=past + tokens) == ""


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(WINDOWS)),
    past=st.integers(0, 5),
    tokens=st.integers(1, 4),
    compensators=st.integers(0, 2),
    seed=st.integers(0, 10**6),
)
def test_program_equals_recurrence_anywhere(
    name: str, past: int, tokens: int, compensators: int, seed: int
) -> None:
    assert run(WINDOWS[name], past, tokens, compensators, seed) == ""


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_recurrences(data: st.DataObject) -> None:
    """Any combination of decays, missing parts and readouts, not only the named ones."""
    build = data.draw(builds())
    window = derive(build.recurrence())
    seed = data.draw(st.integers(0, 10**6))
    assert run(window, data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3)), 1, seed) == ""


@st.composite
def builds(draw: st.DrawFn) -> Build:
    from algebra_builders import general

    count = draw(st.integers(1, 3))
    flags = st.sampled_from(["none", "scalar", "vector", "constant"])
    return general(
        decays=[draw(flags) for _ in range(count)],
        reads=[draw(st.sampled_from(["", "r", "exp(g) * r", "decayed"])) for _ in range(count)],
        gains=[draw(st.booleans()) for _ in range(count)],
        of=draw(st.sampled_from(["updated", "previous"])),
        bonus=draw(st.booleans()),
    )


def caught(window: Window) -> bool:
    """Whether a wrong window is found by data, and by the symbolic proofs too."""
    try:
        by_data = any(run(window, past, 2, 1, seed=past) for past in (1, 2))
    except LeapgenError:
        by_data = True
    with pytest.raises(ProofFailure):
        prove_window(window)
    return by_data


def read_changed(window: Window, index: int, **changes: sympy.Expr) -> Window:
    reads = list(window.reads)
    reads[index] = replace(reads[index], **changes)
    return replace(window, reads=tuple(reads))


@pytest.mark.parametrize("name", ["scalar_delta", "vector_delta", "erase_write", "product3"])
def test_a_dropped_decay_is_caught(name: str) -> None:
    window = WINDOWS[name]
    for index, read in enumerate(window.reads):
        if not read.payload.has(exp2):
            continue
        plain = read.payload.replace(exp2, lambda x: sympy.S.One)
        assert caught(read_changed(window, index, payload=plain))
        for field in ("record_inner", "record_outer"):
            old = getattr(read, field)
            if old.has(exp2):
                new = old.replace(exp2, lambda x: sympy.S.One)
                assert caught(read_changed(window, index, **{field: new}))


@pytest.mark.parametrize("name", ["scalar_delta", "vector_delta", "erase_write", "product3"])
def test_a_level_off_by_one_is_caught(name: str) -> None:
    window = WINDOWS[name]
    top, below = window.levels[-1].symbol, level_symbol(len(window.levels) - 1)
    read = window.reads[-1]
    moved = {
        "payload": read.payload.xreplace({top: below}),
        "record_inner": read.record_inner.xreplace({top: below}),
        "record_outer": read.record_outer.xreplace({top: below}),
    }
    assert caught(read_changed(window, len(window.reads) - 1, **moved))


@pytest.mark.parametrize("name", ["scalar_delta", "product3", "erase_write"])
def test_a_sign_or_a_missing_term_is_caught(name: str) -> None:
    window = WINDOWS[name]
    for symbol in [*(r.symbol for r in window.reads), *(p.symbol for p in window.pairs)]:
        for factor in (-1, 0):
            change = {symbol: factor * symbol}
            corrections = tuple(
                replace(c, expression=c.expression.xreplace(change)) for c in window.corrections
            )
            broken = replace(window, corrections=corrections, output=window.output.xreplace(change))
            assert caught(broken), (symbol, factor)


def test_a_wrong_pair_or_rebuild_is_caught() -> None:
    window = WINDOWS["product3"]
    for index, pair in enumerate(window.pairs):
        pairs = list(window.pairs)
        pairs[index] = replace(pair, inner=2 * pair.inner)
        assert caught(replace(window, pairs=tuple(pairs)))
    rebuild = replace(window.rebuild, record=element("rk"))
    assert caught(replace(window, rebuild=rebuild))
    rebuild = replace(window.rebuild, payload=exp2(element("G")) * 2)
    assert caught(replace(window, rebuild=rebuild))


def test_an_exponent_in_the_wrong_order_has_no_value() -> None:
    window = WINDOWS["vector_delta"]
    read = window.reads[0]
    turned = read.record_inner.replace(exp2, lambda x: exp2(-x))
    broken = read_changed(window, 0, record_inner=turned)
    with pytest.raises(LeapgenError, match="may be positive"):
        broken.check()
    with pytest.raises(LeapgenError, match="is positive"):
        run(broken, 2, 1, 0, 1)
    assert read.record_inner.has(RECORD_DECAY)


def test_zero_decay_forgets_everything_before() -> None:
    window = WINDOWS["vector_delta"]
    rng = random.Random(3)
    tokens = random_tokens(rng, window.recurrence, 3, 3, 2)
    zero = tuple(Fraction(0) for _ in range(3))
    tokens[1] = replace(tokens[1], decays=dict.fromkeys(tokens[1].decays, zero))
    assert difference(window, random_matrix(rng, 3, 2), [], tokens[:2], tokens[2:]) == ""
    assert difference(window, random_matrix(rng, 3, 2), [], tokens[:1], tokens[1:]) == ""
