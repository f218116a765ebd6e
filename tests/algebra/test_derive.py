"""The shape of derived windows: what others build on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sympy
from algebra_builders import (
    BY_NAME,
    CONSTANT,
    GDN,
    HIDDEN,
    KDA,
    LATE_DECAY,
    UNDECAYED_READ,
    Build,
    sub,
)

from leapgen.algebra.derive import derive
from leapgen.algebra.printers import text
from leapgen.algebra.program import token_program
from leapgen.algebra.window import Window
from leapgen.diagnostics import LeapgenError
from leapgen.tensors import Axis, Per


def reads(window: Window) -> dict[str, tuple[str, ...]]:
    return {
        r.symbol.name: tuple(map(text, (r.payload, r.record_inner, r.record_outer)))
        for r in window.reads
    }


def test_scalar_decay_stands_outside_the_sum() -> None:
    window = derive(GDN.recurrence())
    assert reads(window) == {
        "y1": ("k*exp2(G1)", "k*rk", "exp2(G1 - rG)"),
        "yq": ("q*exp2(G1)", "q*rk", "exp2(G1 - rG)"),
    }
    assert [(p.symbol.name, text(p.inner)) for p in window.pairs] == [("p_q_1", "k*q")]
    assert [text(c.expression) for c in window.corrections] == ["beta*(v - y1)"]
    assert text(window.output) == "yq + p_q_1*u1"
    assert text(window.levels[0].increment) == "max(log2(e)*g, -150)"
    assert window.decay_axis is Axis.SCALAR
    assert window.records[0].key_per is Per.KEY
    assert (text(window.rebuild.payload), text(window.rebuild.record)) == (
        "exp2(G)",
        "rk*exp2(G - rG)",
    )


def test_vector_decay_stands_inside_the_sum() -> None:
    window = derive(KDA.recurrence())
    assert reads(window)["y1"] == ("k*exp2(G1)", "k*rk*exp2(G1 - rG)", "1")
    assert window.decay_axis is Axis.KEY


def test_a_read_without_the_decay_uses_the_level_before() -> None:
    window = derive(UNDECAYED_READ.recurrence())
    assert reads(window)["y1"][0] == "p*exp2(G0)"
    assert reads(window)["yq"][0] == "(q - D*p)*exp2(G1)"


def test_a_decay_under_another_name_is_found() -> None:
    window = derive(HIDDEN.recurrence())
    assert reads(window)["y1"][0] == "p*exp2(G1)"


@pytest.mark.parametrize(
    ("read", "payload"),
    [
        ("exp(g) * (k + q)", "(k + q)*exp2(G1)"),
        ("exp(g) * k + exp(g) * q", "(k + q)*exp2(G1)"),
        ("exp(g) * k + q", "(q + k*exp(g))*exp2(G0)"),
        ("exp(g) * k * (1 - exp(g))", "k*(1 - exp(g))*exp2(G1)"),
        ("exp(2 * g) * k", "k*exp(g)*exp2(G1)"),
    ],
)
def test_decay_factors_in_reads(read: str, payload: str) -> None:
    build = Build(
        "q:key:K k:key:K v:value:V g:value",
        f"exp(g) * S + k @ (v - S.T @ ({read})).T",
        (sub("k", read=read, value="v", decay="scalar", log="g"),),
    )
    found = derive(build.recurrence()).reads[0].payload
    assert text(found) == payload


def test_no_decay_stores_none() -> None:
    window = derive(BY_NAME["delta"].recurrence())
    assert window.previous is None
    assert window.decay_axis is None
    assert reads(window)["y1"] == ("k", "k*rk", "1")
    assert window.records[0].decay is None
    assert window.rebuild.payload == 1


def test_constant_decay_is_marked() -> None:
    window = derive(CONSTANT.recurrence())
    assert window.constant_decay
    assert not derive(GDN.recurrence()).constant_decay


def test_every_record_has_a_level_of_its_token() -> None:
    window = derive(LATE_DECAY.recurrence())
    assert [r.decay.name for r in window.records if r.decay] == ["G1", "G2"]
    assert window.levels[0].increment == 0
    assert [window.level_index(r.decay) for r in window.records if r.decay] == [1, 2]


def test_drafts_leave_earlier_outputs_alone() -> None:
    """Outputs of a prefix do not mention later tokens, whatever their number."""
    window = derive(BY_NAME["product2"].recurrence())
    short, long = token_program(window, 2), token_program(window, 4)
    assert long.solves[: len(short.solves)] == short.solves
    assert long.weights[: len(short.weights)] == short.weights
    assert long.reads[: len(short.reads)] == short.reads
    with pytest.raises(ValueError, match="at least one token"):
        token_program(window, 0)


def test_a_query_that_divides_by_the_decay_is_refused() -> None:
    build = replace(BY_NAME["vector_delta"], query="exp(-g) * q")
    with pytest.raises(LeapgenError, match="division by a decay"):
        derive(build.recurrence())


def test_proofs_are_kept() -> None:
    titles = [p.title for p in derive(KDA.recurrence()).proofs]
    assert len(titles) == 6
    assert titles[0] == "The native update equals the sub-steps"


DIGESTS = """
import sys; sys.path.insert(0, {here!r})
from algebra_builders import BY_NAME
from leapgen.algebra.derive import derive
from leapgen.algebra.describe import describe
from leapgen.algebra.printers import tilelang
from leapgen.algebra.stages import split_reductions
for name in ("product2", "write_gate", "hidden"):
    build = BY_NAME[name]
    window = derive(build.recurrence())
    print(window.digest(), window.recurrence.digest(), describe(window))
    print(split_reductions(window), [tilelang(r.payload) for r in window.reads])
"""


def test_text_and_digests_do_not_depend_on_hashes() -> None:
    here = Path(__file__).parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS.format(here=str(here))],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(here.parent.parent)},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


def test_digests_see_formulas_and_not_places() -> None:
    window = derive(GDN.recurrence())
    assert window.digest() == derive(GDN.recurrence()).digest()
    other = replace(GDN, query="2 * q").recurrence()
    assert derive(other).digest() != window.digest()
    assert window.with_proofs(()).digest() == window.digest()
    spec = replace(GDN.spec(), path="elsewhere.yaml", source="")
    from leapgen.algebra.lower import lower

    assert lower(spec).digest() == window.recurrence.digest()


def test_exponents_are_checked() -> None:
    window = derive(GDN.recurrence())
    level = window.levels[0].symbol
    doubled = window.reads[0].payload.subs(level, 2 * level)
    broken = replace(window, reads=(replace(window.reads[0], payload=doubled), *window.reads[1:]))
    with pytest.raises(LeapgenError, match="may be positive"):
        broken.check()
    divided = window.reads[0].payload.subs(window.reads[0].payload, 1 / window.reads[0].payload)
    broken = replace(window, reads=(replace(window.reads[0], payload=divided), *window.reads[1:]))
    with pytest.raises(LeapgenError, match="division by a decay"):
        broken.check()
    assert isinstance(divided, sympy.Expr)
