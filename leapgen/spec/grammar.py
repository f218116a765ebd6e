"""What may stand in a spec file: one table, from which files are checked and editors are helped.

`check` walks a file along this table, `schema` prints it as JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from leapgen.spec.names import LOWER_WORD, MODEL_NAME, WORD
from leapgen.tensors import DTYPES

MAX_DIMENSION = 256
DIMENSION_STEP = 8
MAX_WINDOW = 64
MAX_COMPENSATORS = 16
MAX_HEADS = 4096
RECORD_DTYPES = ("fp16", "bf16", "fp32")
VALUE_DTYPES = ("bf16", "fp16", "fp32")
DECAY_KINDS = ("none", "constant", "scalar", "vector")
SMOOTHINGS = ("mean_abs_sqrt", "none")
BOUNDED = ("output", "correction", "state")
assert set(RECORD_DTYPES + VALUE_DTYPES) <= set(DTYPES)


@dataclass(frozen=True)
class Text:
    """A string, of a form if `pattern` is given; `form` says in words what the pattern asks."""

    pattern: re.Pattern[str] | None = None
    form: str = ""


@dataclass(frozen=True)
class Word:
    """One of a few fixed words."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class AxisName(Word):
    """The axis of an input; what has more of them, or runs over tokens, is told why not."""


@dataclass(frozen=True)
class FormatName:
    """A name of the table of formats, which is asked only when it is needed."""


@dataclass(frozen=True)
class FormatWord:
    """A word for one choice of a format, from the table of that choice, asked as late."""

    choice: str


@dataclass(frozen=True)
class Integer:
    """A whole number within bounds, both included, and a multiple of `step`."""

    low: int
    high: int
    step: int = 1


@dataclass(frozen=True)
class Positive:
    """A finite number above zero."""


@dataclass(frozen=True)
class Flag:
    """true or false."""


@dataclass(frozen=True)
class FormulaText:
    """A one-line formula."""


@dataclass(frozen=True)
class ListOf:
    """A list with at least one item."""

    item: Kind


@dataclass(frozen=True)
class Key:
    """One key of a fixed mapping."""

    kind: Kind
    doc: str
    required: bool = False


@dataclass(frozen=True)
class Fields:
    """A mapping with known keys. `others` takes keys that only the file itself defines."""

    keys: Mapping[str, Key]
    title: str
    others: Kind | None = None


@dataclass(frozen=True)
class MapOf:
    """A mapping from names that the author gives."""

    value: Kind
    name: Text = Text(WORD, "letters, digits and underscores")


Leaf = Text | Word | FormatName | FormatWord | Integer | Positive | Flag | FormulaText
Kind = Leaf | ListOf | Fields | MapOf

_LOWER = Text(LOWER_WORD, "lower-case letters, digits and underscores")
_MODEL = Text(MODEL_NAME, "lower-case letters, digits, dots and dashes")
_DIMENSION = Integer(DIMENSION_STEP, MAX_DIMENSION, DIMENSION_STEP)
_HEADS = Integer(1, MAX_HEADS)
_FORMULA = FormulaText()

_INPUT = Fields(
    title="an input",
    keys={
        "per": Key(Word(("key", "value")), "heads it has one instance for", required=True),
        "axes": Key(AxisName(("K", "V")), "what it ranges over; absent: one number a head"),
        "dtype": Key(Word(VALUE_DTYPES), "element type of the tensor", required=True),
        "constant": Key(Flag(), "the same for all rows and tokens (a weight)"),
        "doc": Key(Text(), "one line for the generated signature"),
    },
)
_DECAY = Fields(
    title="a decay",
    keys={
        "kind": Key(Word(DECAY_KINDS), "what the decay ranges over", required=True),
        "log": Key(_FORMULA, "natural log of the decay of one token, at most 0"),
    },
)
_SUBSTEP = Fields(
    title="a sub-step",
    keys={
        "decay": Key(_DECAY, "decay of this sub-step (the first one has the recurrence's)"),
        "key": Key(_FORMULA, "key k of the write k u^T, over K", required=True),
        "read": Key(_FORMULA, "vector x of the read S^T x, over K; absent: no read"),
        "of": Key(Word(("previous", "decayed")), "state that is read: before or after the decay"),
        "value": Key(_FORMULA, "value v of the correction u = gain * (v - S^T x), over V"),
        "gain": Key(_FORMULA, "factor of the correction, a scalar or over V; absent: 1"),
    },
)
_OUTPUT = Fields(
    title="the output",
    keys={
        "query": Key(_FORMULA, "vector q of the output S^T q, over K", required=True),
        "of": Key(Word(("updated", "previous")), "state that is read: after or before the token"),
        "add": Key(_FORMULA, "added to the output, over V (a bonus, a skip)"),
        "result": Key(_FORMULA, "the output as a formula of `o`, that read with `add` (a gate)"),
        "dtype": Key(Word(VALUE_DTYPES), "element type of the output; bf16 when absent"),
    },
)


def _recurrence(required: bool) -> Fields:
    keys = {
        "native": Key(_FORMULA, "the update as its authors write it; must equal the sub-steps"),
        "decay": Key(_DECAY, "decay of a token, at its first sub-step"),
        "substeps": Key(ListOf(_SUBSTEP), "one to n rank-one updates"),
        "output": Key(_OUTPUT, "what a token returns"),
    }
    needed = ("native", "substeps", "output") if required else ()
    keys = {name: Key(k.kind, k.doc, name in needed) for name, k in keys.items()}
    return Fields(keys, "the recurrence" if required else "a recurrence patch")


ALTERNATIVE = Fields(
    title="an alternative",
    keys={
        "doc": Key(Text(), "what it is for"),
        "inputs": Key(MapOf(_INPUT), "inputs it adds; each replaces a definition of its name"),
        "drop": Key(ListOf(Text(WORD, "a name")), "inputs and definitions it does without"),
        "let": Key(MapOf(_FORMULA), "definitions it adds or replaces"),
        "recurrence": Key(_recurrence(required=False), "parts of the recurrence it replaces"),
    },
)
STATE = Fields(
    title="the state",
    keys={
        "format": Key(FormatName(), "how the state is stored", required=True),
        "window": Key(Integer(1, MAX_WINDOW), "tokens between two flushes", required=True),
        "compensators": Key(
            Integer(0, MAX_COMPENSATORS), "rank of the compensation; the format's when absent"
        ),
        "smoothing": Key(Word(SMOOTHINGS), "key-channel smoothing; the format's when absent"),
        "payload": Key(FormatWord("payload"), "grid of the codes; the format's when absent"),
        "scale": Key(FormatWord("scale"), "what shares a scale; the format's when absent"),
        "transform": Key(FormatWord("transform"), "of the residual; the format's when absent"),
        "factors": Key(FormatWord("factors"), "type of compensators; the format's when absent"),
        "rounding": Key(FormatWord("rounding"), "of the codes; the format's when absent"),
        "records": Key(Word(RECORD_DTYPES), "element type of keys and corrections; fp16"),
    },
)
MODEL = Fields(
    title="a model",
    keys={
        "H": Key(_HEADS, "key heads", required=True),
        "HV": Key(_HEADS, "value heads, a multiple of H", required=True),
        "layers": Key(Integer(1, 1000), "linear-attention layers; absent: not published"),
        "kv": Key(Integer(0, 1 << 24), "numbers that full attention caches a token, in all layers"),
        "conv": Key(Integer(0, 1 << 24), "numbers that a linear layer's convolutions keep"),
        "K": Key(_DIMENSION, "key channels; those of `dims` when absent"),
        "V": Key(_DIMENSION, "value channels; those of `dims` when absent"),
        "source": Key(Text(), "where the figures come from"),
    },
    others=_LOWER,
)
_HEAD_NAMES = Fields(
    title="the heads",
    keys={
        "key": Key(Word(("H",)), "name of the number of key heads"),
        "value": Key(Word(("HV",)), "name of the number of value heads"),
    },
)
_DIMS = Fields(
    title="the dimensions",
    keys={
        "key": Key(_DIMENSION, "key channels K", required=True),
        "value": Key(_DIMENSION, "value channels V", required=True),
    },
)
_TOLERANCES = Fields(
    title="the tolerances",
    keys={name: Key(Positive(), f"largest error of the {name}") for name in BOUNDED},
)
SPEC = Fields(
    title="a spec",
    keys={
        "name": Key(_LOWER, "name of the spec and of its modules", required=True),
        "title": Key(Text(), "its name for people", required=True),
        "heads": Key(_HEAD_NAMES, "names of the two head counts; HV is a multiple of H"),
        "dims": Key(_DIMS, "default dimensions of a head", required=True),
        "inputs": Key(MapOf(_INPUT), "tensors that a step receives, in order", required=True),
        "let": Key(MapOf(_FORMULA), "raw inputs to coefficients, in order"),
        "recurrence": Key(_recurrence(required=True), "one token", required=True),
        "state": Key(STATE, "how the state is stored", required=True),
        "tolerances": Key(_TOLERANCES, "tighter bounds than the computed ones"),
        "choices": Key(
            MapOf(MapOf(ALTERNATIVE, _LOWER), _LOWER),
            "orthogonal choices; the first alternative of each is the default",
        ),
        "models": Key(MapOf(MODEL, _MODEL), "published models"),
    },
)
