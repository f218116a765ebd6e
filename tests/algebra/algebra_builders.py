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

NONE = Build(_QKV, "S + k @ v.T", (sub("k", value="v"),))
SCALAR_DELTA = Build(
    f"{_QKV} g:value beta:value",
    "exp(g) * (I - beta * k @ k.T) @ S + beta * k @ v.T",
    (sub("k", read="exp(g) * k", value="v", gain="beta", decay="scalar", log="g"),),
)
VECTOR_DELTA = Build(
    f"{_QKV} g:value:K beta:value",
    "(I - beta * k @ k.T) @ diag(exp(g)) @ S + beta * k @ v.T",
    (sub("k", read="k", decayed=True, value="v", gain="beta", decay="vector", log="g"),),
)
DELTA = Build(
    f"{_QKV} beta:value",
    "S + beta * k @ (v - S.T @ k).T",
    (sub("k", read="k", value="v", gain="beta"),),
)
CONSTANT = Build(
    f"{_QKV} gamma:value:!",
    "exp(gamma) * S + k @ v.T",
    (sub("k", value="v", decay="constant", log="gamma"),),
)
BONUS = Build(
    "q:key:K k:key:K v:value:V g:value:K w:value:K",
    "diag(exp(g)) @ S + k @ v.T",
    (sub("k", value="v", decay="vector", log="g"),),
    of="previous",
    add="sum(q * w * k) * v",
)
HIDDEN = Build(  # the decay has a name, the key is 1 - decay
    "q:key:K v:value:V g:key:K p:key:K",
    "diag(f) @ S + k @ (v - S.T @ (f * p)).T",
    (sub("k", read="f * p", value="v", decay="vector", log="g"),),
    let=(("f", "exp(g)"), ("k", "1 - f")),
)
UNDECAYED_READ = Build(
    "q:key:K k:key:K p:key:K v:value:V g:value beta:value D:value:!",
    "exp(g) * S + beta * k @ (v - S.T @ p).T",
    (sub("k", read="p", value="v", gain="beta", decay="scalar", log="g"),),
    query="q - D * p",
)
WRITE_GATE = Build(  # an erase gate on the key side, a write gate on the value side
    f"{_QKV} g:value:K e:key:K w:value:V",
    "(I - k @ (e * k).T) @ diag(exp(g)) @ S + k @ (w * v).T",
    (sub("k", read="e * k", decayed=True, value="w * v", decay="vector", log="g"),),
)
VALUE_GAIN = Build(
    f"{_QKV} g:value c:value:V",
    "exp(g) * S + k @ (c * (v - exp(g) * S.T @ k)).T",
    (sub("k", read="exp(g) * k", value="v", gain="c", decay="scalar", log="g"),),
)
ERASE_WRITE = Build(  # the corrected split: reads along kappa, writes along a * kappa
    f"{_QKV} kappa:key:K a:value:K g:value:K",
    "(diag(exp(g)) - (a * kappa) @ kappa.T) @ S + k @ v.T",
    (
        sub("a * kappa", read="kappa", decay="vector", log="g"),
        sub("k", value="v"),
    ),
)
LATE_DECAY = Build(  # the first sub-step comes before the token's decay
    "q:key:K k:key:K p:key:K v:value:V w:value:V g:value:K",
    "diag(exp(g)) @ (S + p @ w.T) + k @ (v - (S + p @ w.T).T @ (exp(g) * k)).T",
    (
        sub("p", value="w"),
        sub("k", read="exp(g) * k", value="v", decay="vector", log="g"),
    ),
)


def product(n: int) -> Build:
    """n delta-rule sub-steps, the first of which decays."""
    numbers = range(1, n + 1)
    tensors = "q:key:K g:value " + " ".join(f"k{j}:key:K v{j}:value:V b{j}:value" for j in numbers)
    native = "exp(g) * S"
    for j in numbers:
        native = f"(I - b{j} * k{j} @ k{j}.T) @ ({native}) + b{j} * k{j} @ v{j}.T"
    first = sub("k1", read="exp(g) * k1", value="v1", gain="b1", decay="scalar", log="g")
    rest = [sub(f"k{j}", read=f"k{j}", value=f"v{j}", gain=f"b{j}") for j in numbers[1:]]
    return Build(tensors, native, (first, *rest))


def general(decays: list[str], reads: list[str], gains: list[bool], of: str, bonus: bool) -> Build:
    """Sub-steps with any decays and parts; `r` in a read stands for a read vector."""
    tensors = ["q:key:K", "x:value:K", "z:value:V"]
    steps, native = [], "S"
    for j, (decay, read, gain) in enumerate(zip(decays, reads, gains, strict=True), 1):
        tensors += [f"k{j}:key:K", f"r{j}:value:K", f"v{j}:value:V", f"b{j}:value"]
        axis = {"vector": ":K", "constant": ":!"}.get(decay, "")
        factor = "1"
        if decay != "none":
            tensors.append(f"g{j}:value{axis}")
            factor = f"exp(g{j})"
        vector = read.replace("exp(g) * ", f"{factor} * ").replace("r", f"r{j}")
        if read == "decayed":
            vector = f"r{j}"
        written = f"{factor} * {vector}" if read == "decayed" else vector
        weight = f"b{j} * " if gain else ""
        decayed = f"diag({factor}) @ ({native})" if decay == "vector" else f"{factor} * ({native})"
        erased = f" - ({native}).T @ ({written})" if read else ""
        native = f"{decayed} + k{j} @ ({weight}(v{j}{erased})).T"
        steps.append(
            sub(
                f"k{j}",
                read=vector or None,
                value=f"v{j}",
                gain=f"b{j}" if gain else None,
                decay=decay,
                log=None if decay == "none" else f"g{j}",
                decayed=read == "decayed",
            )
        )
    add = "dot(q, x) * z" if bonus else None
    return Build(" ".join(tensors), native, tuple(steps), of=of, add=add)


BY_NAME = {
    "none": NONE,
    "delta": DELTA,
    "constant": CONSTANT,
    "scalar_delta": SCALAR_DELTA,
    "vector_delta": VECTOR_DELTA,
    "bonus": BONUS,
    "hidden": HIDDEN,
    "undecayed_read": UNDECAYED_READ,
    "write_gate": WRITE_GATE,
    "value_gain": VALUE_GAIN,
    "erase_write": ERASE_WRITE,
    "late_decay": LATE_DECAY,
    "product2": product(2),
    "product3": product(3),
}
