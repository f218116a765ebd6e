"""What is no recurrence of this language, and how a spec that tries is told which property fails.

A recurrence keeps one matrix state a head. A token maps it linearly: a diagonal over the key
channels plus rank-one terms, each of which reads the state once. Whatever breaks that is refused
where it is written, by the property that fails rather than by the rule of the grammar it trips on.
"""

from __future__ import annotations

import re

CARRIED = (
    "a slot keeps the matrix `S` and nothing else from token to token",
    "if it depends on inputs alone, compute it outside and pass it as an input",
)
"""Help for everything that would be a second state."""

LINEAR = (
    "use `S` once in every term, times factors that do not depend on it",
    "a correction is linear in what it reads: u = gain * (value - S^T read)",
)
"""Help for what is not linear in the state."""

FUNCTIONS = {
    "softmax": "over channels write exp(x) / sum(exp(x)); over tokens it needs all of them, and "
    "no state of fixed size has them",
    "cumsum": "a sum over tokens is a state of its own; only the matrix `S` is kept",
    "cumprod": "a product over tokens is a state of its own; only the matrix `S` is kept",
}
"""Functions that specs of attention layers ask for, and what is in their way."""

SECOND_STATE_KEYS = frozenset(
    ("states", "memory", "memories", "momentum", "auxiliary", "aux", "carry", "carried", "levels")
)
"""Keys by which a spec would declare states beside `S`."""

_TOKENS = frozenset(("T", "L", "N", "time", "tokens", "history"))
_EARLIER = re.compile(r"(.*_)?(prev|previous|last|old|before)(_.*)?|.*_(t1|tm1|minus_1)")


def nonlinear(function: str) -> str:
    """Message for a function that is applied to the state."""
    return f"`{function}` of the state: the state enters a nonlinear function"


def axis_words(text: str) -> tuple[str, ...]:
    """The axes that a text names: `K`, `time`, and both of `KxV` or `KV`."""
    letters = re.fullmatch(r"([A-Z])[ x*,]*([A-Z])", text)
    return letters.groups() if letters else (text,)


def axes_help(words: tuple[str, ...]) -> tuple[str, ...]:
    """Why an input cannot range over these axes; empty where it is a slip of the pen."""
    if set(words) & _TOKENS:
        return (
            "the axis of an input is K or V, never the tokens: a step sees one token",
            "a memory that grows with the tokens is no state of fixed size",
        )
    if len(words) > 1:
        return (
            "an input is a number or a vector a head, so a transition is diagonal plus rank n",
            "use `axes: K` or `axes: V`; a matrix is written as the outer product of two inputs",
        )
    return ()


def is_earlier(name: str) -> bool:
    """Whether a name stands for what an earlier token had, like `k_prev`."""
    return bool(_EARLIER.fullmatch(name))
