"""Specs written in Python, for tests that should not depend on YAML files."""

from __future__ import annotations

from dataclasses import dataclass, field

from leapgen.algebra.lower import lower
from leapgen.algebra.recurrence import Recurrence
from leapgen.diagnostics import Report, Span
from leapgen.spec.model import (
    Decay,
    Definition,
    Formula,
    Input,
    Output,
    Spec,
    State,
    SubStep,
)
from leapgen.spec.parser import parse
from leapgen.tensors import Axis, Per

SPAN = Span(1, 1, 2)


def formula(text: str) -> Formula:
    report = Report("test.yaml", text)
    node = parse(text, report)
    report.raise_errors()
    assert node is not None
    return Formula(text, node, node.span)


def optional(text: str | None) -> Formula | None:
    return None if text is None else formula(text)


def sub(
    key: str,
    *,
    read: str | None = None,
    value: str | None = None,
    gain: str | None = None,
    decay: str = "none",
    log: str | None = None,
    decayed: bool = False,
) -> SubStep:
    return SubStep(
        decay=Decay(decay, optional(log), SPAN),
        key=formula(key),
        read=optional(read),
        reads_decayed=decayed,
        value=optional(value),
        gain=optional(gain),
        span=SPAN,
    )


def inputs(text: str) -> tuple[Input, ...]:
    """`q:key:K v:value:V g:value A:value:!`: name, heads, axis, and ! for a constant."""
    found = []
    for item in text.split():
        name, per, *rest = item.split(":")
        constant = "!" in rest
        axis = next((Axis(r) for r in rest if r in ("K", "V")), Axis.SCALAR)
        found.append(Input(name, Per(per), axis, "fp32", constant, "", SPAN))
    return tuple(found)


@dataclass
class Build:
    """Arguments of a spec; `spec()` makes it."""

    tensors: str
    native: str
    substeps: tuple[SubStep, ...]
    query: str = "q"
    of: str = "updated"
    add: str | None = None
    let: tuple[tuple[str, str], ...] = field(default_factory=tuple)

    def spec(self) -> Spec:
        return Spec(
            name="test",
            title="Test",
            path="test.yaml",
            K=128,
            V=128,
            inputs=inputs(self.tensors),
            definitions=tuple(Definition(n, formula(t)) for n, t in self.let),
            native=formula(self.native),
            substeps=self.substeps,
            output=Output(formula(self.query), self.of, optional(self.add), "bf16", SPAN),
            state=State("leapquant-int8", 16, None, None, "fp16", SPAN),
            tolerances={},
            choices={},
            picks={},
            models=(),
            source=self.native,
        )

    def recurrence(self) -> Recurrence:
        return lower(self.spec())


_QKV = "q:key:K k:key:K v:value:V"
_GATES = (
    ("q", "l2norm(q, eps=1e-6) * K**-0.5"),
    ("k", "l2norm(k, eps=1e-6)"),
    ("g", "-exp(A_log) * softplus(a + dt_bias)"),
    ("beta", "sigmoid(b)"),
)

GDN = Build(
    f"{_QKV} a:value b:value A_log:value:! dt_bias:value:!",
    "exp(g) * (I - beta * k @ k.T) @ S + beta * k @ v.T",
    (sub("k", read="exp(g) * k", value="v", gain="beta", decay="scalar", log="g"),),
    let=_GATES,
)
KDA = Build(
    f"{_QKV} a:value:K b:value A_log:value:! dt_bias:value:K:!",
    "(I - beta * k @ k.T) @ diag(exp(g)) @ S + beta * k @ v.T",
    (sub("k", read="exp(g) * k", value="v", gain="beta", decay="vector", log="g"),),
    let=_GATES,
)
