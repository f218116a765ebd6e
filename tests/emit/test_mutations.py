"""Every term of a window reaches the generated code: change one, and the text changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import sympy
from emit_specs import TEXTS, spec_of, window_of

from leapgen import paths, pipeline
from leapgen.algebra.window import Window
from leapgen.emit.render import render
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import make_plan
from leapgen.spec.model import Spec

SPECS = [path.stem for path in paths.shipped_specs()] + list(TEXTS)


@cache
def subject(name: str) -> tuple[Spec, Window]:
    spec = spec_of(name) if name in TEXTS else pipeline.parse(name)
    return spec, window_of(spec)


def code(spec: Spec, window: Window, arch: str) -> str:
    """The module without its docstring, which also tells the formulas."""
    text = render(make_plan(window, spec.state, arch_named(arch)), spec).text
    tree = ast.parse(text)
    tree.body.pop(0)
    bare = ast.unparse(tree)
    return "\n".join(line for line in bare.splitlines() if "digest" not in line)


def changed(expression: sympy.Expr) -> Iterator[tuple[str, sympy.Expr]]:
    """The expression negated, and without each term and each factor."""
    yield "sign", -expression
    if isinstance(expression, sympy.Add | sympy.Mul):
        for argument in expression.args:
            yield f"without {argument}", expression.func(*(set(expression.args) - {argument}))


def mutations(window: Window) -> Iterator[tuple[str, Window]]:
    for part, fields in (
        ("levels", ("increment",)),
        ("reads", ("payload", "record_inner", "record_outer")),
        ("pairs", ("inner",)),
        ("corrections", ("expression",)),
        ("records", ("key",)),
    ):
        entries = getattr(window, part)
        for index, entry in enumerate(entries):
            for field in fields:
                for what, value in changed(getattr(entry, field)):
                    if value == getattr(entry, field):
                        continue
                    other = replace(entry, **{field: value})
                    mutated: dict[str, Any] = {
                        part: (*entries[:index], other, *entries[index + 1 :])
                    }
                    yield f"{part}[{index}].{field} {what}", replace(window, **mutated)
    for what, value in changed(window.output):
        yield f"output {what}", replace(window, output=value)
    for field in ("payload", "record"):
        for what, value in changed(getattr(window.rebuild, field)):
            rebuild = replace(window.rebuild, **{field: value})
            yield f"rebuild.{field} {what}", replace(window, rebuild=rebuild)


CASES = [(name, "cpu") for name in SPECS] + [(SPECS[0], "sm90"), (list(TEXTS)[-1], "sm90")]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_every_term_matters(name: str, arch: str) -> None:
    spec, window = subject(name)
    original = code(spec, window, arch)
    unnoticed = [what for what, other in mutations(window) if code(spec, other, arch) == original]
    assert unnoticed == []


@pytest.mark.parametrize("arch", ["cpu", "sm90"])
@pytest.mark.parametrize("name", ["gdn", "kda", *(n for n in TEXTS if n.startswith("two"))])
def test_every_term_matters_in_place(name: str, arch: str) -> None:
    """A state that every step stores: all that does not serve records."""
    spec, window = subject(name)
    spec = replace(spec, state=replace(spec.state, format="fp32-step", compensators=None))
    original = code(spec, window, arch)
    unnoticed = [what for what, other in mutations(window) if code(spec, other, arch) == original]
    # With one level of decay the token's records are as old as its end.
    alone = {"rebuild.record without exp2(G - rG)"} if len(window.levels) == 1 else set()
    assert {what for what in unnoticed if ".record_" not in what} == alone
