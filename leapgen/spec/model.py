"""What a spec file says, as frozen values. No behaviour beyond look-ups; `loader` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leapgen.diagnostics import Span
from leapgen.spec.expression import Node
from leapgen.tensors import Axis, Per


@dataclass(frozen=True)
class Formula:
    """A parsed formula with the place it was written at."""

    text: str
    node: Node
    span: Span


@dataclass(frozen=True)
class Input:
    """One raw tensor that a step receives.

    Shape at run time: [rows, heads(per), axis], without `rows` when `constant`,
    without the last axis when `axis` is SCALAR.
    """

    name: str
    per: Per
    axis: Axis
    dtype: str
    constant: bool
    doc: str
    span: Span


@dataclass(frozen=True)
class Definition:
    """`name: formula` of the `let` block; a right-hand name means the latest earlier definition."""

    name: str
    formula: Formula


@dataclass(frozen=True)
class Decay:
    """kind is none, constant, scalar or vector; `log` is the natural-log decay per token (<= 0)."""

    kind: str
    log: Formula | None
    span: Span


@dataclass(frozen=True)
class SubStep:
    """One decay, read and rank-one write: u = gain * (value - S^T read); S <- decay S + key u^T."""

    decay: Decay
    key: Formula
    read: Formula | None
    reads_decayed: bool  # `of: decayed`: the read sees the state after this sub-step's decay
    value: Formula | None
    gain: Formula | None
    span: Span


@dataclass(frozen=True)
class Output:
    """o = S^T query (+ add); `of` is updated (after the token) or previous (before it).

    `result` is a formula of the name `o`, which gives the output; None: the output is o.
    """

    query: Formula
    of: str
    add: Formula | None
    dtype: str
    span: Span
    result: Formula | None = None


@dataclass(frozen=True)
class State:
    """How the state is stored. None means: the format's own."""

    format: str
    window: int
    compensators: int | None
    smoothing: str | None
    records: str
    span: Span
    payload: str | None = None
    scale: str | None = None
    transform: str | None = None
    factors: str | None = None
    rounding: str | None = None

    @property
    def choices(self) -> Mapping[str, str | int | None]:
        """What replaces the format's own choices, by the key of the state block."""
        names = ("payload", "scale", "transform", "factors", "rounding", "smoothing")
        return {n: getattr(self, n) for n in (*names, "compensators")}


@dataclass(frozen=True)
class PublishedModel:
    """Head counts of a published model, and which alternative of each choice it uses.

    kv     numbers that its full attention caches a token, in all layers; None: not known
    conv   numbers that the convolutions of a linear layer keep of the past; None: not known
    """

    name: str
    H: int
    HV: int
    layers: int | None  # linear-attention layers; None: not published
    kv: int | None
    conv: int | None
    K: int
    V: int
    picks: Mapping[str, str]
    source: str
    span: Span


@dataclass(frozen=True)
class Spec:
    """One spec file with one alternative of every choice applied."""

    name: str
    title: str
    path: str
    K: int
    V: int
    inputs: tuple[Input, ...]
    definitions: tuple[Definition, ...]
    native: Formula
    substeps: tuple[SubStep, ...]
    output: Output
    state: State
    tolerances: Mapping[str, float]
    choices: Mapping[str, tuple[str, ...]]  # choice -> alternatives, the default first
    picks: Mapping[str, str]  # choice -> the alternative applied here
    models: tuple[PublishedModel, ...]
    source: str = field(repr=False, default="")  # the file's text, for diagnostics

    def input(self, name: str) -> Input:
        """The input of a name. Errors: KeyError for an unknown one."""
        return {i.name: i for i in self.inputs}[name]

    @property
    def nondefault_picks(self) -> tuple[str, ...]:
        """Alternatives that differ from the default, in the order of the choices."""
        return tuple(
            self.picks[c] for c, options in self.choices.items() if self.picks[c] != options[0]
        )
