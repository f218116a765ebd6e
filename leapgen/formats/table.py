"""The visible tables of formats: those with templates of their own, and what `presets` adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leapgen.formats import choices as rules
from leapgen.formats.base import Format, FormatError
from leapgen.formats.choices import Choices, Refusal
from leapgen.formats.composed import Composed, composed
from leapgen.formats.floating import Floating
from leapgen.formats.integer import Integer
from leapgen.formats.presets import KERNELS, PRESETS

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Integer(
            name="leapquant-int8",
            payload="int8",
            bits=8,
            value_scale=True,
            key_scale="mean_abs_sqrt",
            compensators=4,
            factors="fp16",
            doc="INT8 codes, FP32 scale per value channel, smoothing, rank-4 FP16 compensators",
        ),
        Floating(
            name="bf16-window",
            payload="bf16",
            bits=16,
            value_scale=False,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="BF16 state, written once per window",
        ),
        Floating(
            name="fp32-window",
            payload="fp32",
            bits=32,
            value_scale=False,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="FP32 state, written once per window",
        ),
        Floating(
            name="fp32-step",
            payload="fp32",
            bits=32,
            value_scale=False,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="FP32 state, read and written in place at every token",
            cadence="step",
        ),
        Floating(
            name="bf16-step",
            payload="bf16",
            bits=16,
            value_scale=False,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="BF16 state, read and written in place at every token",
            cadence="step",
        ),
        Integer(
            name="int8-step",
            payload="int8",
            bits=8,
            value_scale=True,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="INT8 codes, FP32 scale per value channel, quantized at every token",
            cadence="step",
        ),
    )
}

INTEGERS: dict[str, Format] = {
    f.name: f
    for f in (
        Integer(
            name="int8-window",
            payload="int8",
            bits=8,
            value_scale=True,
            key_scale=None,
            compensators=0,
            factors=None,
            doc="INT8 codes, FP32 scale per value channel",
        ),
        Integer(
            name="int8-window-comp",
            payload="int8",
            bits=8,
            value_scale=True,
            key_scale=None,
            compensators=4,
            factors="fp16",
            doc="INT8 codes, FP32 scale per value channel, rank-4 FP16 compensators",
        ),
    )
}
"""Rows that the templates of integer codes serve as well; generated/ holds no modules of theirs."""

NAMED: dict[str, Format] = {**FORMATS, **INTEGERS, **PRESETS}
"""Every format that a spec may name."""

REPLACED = ("payload", "scale", "transform", "factors", "rounding")
"""Choices of a format that a spec's state may replace, beside its smoothing and compensators."""


def format_named(name: str) -> Format:
    """The row of a name. Errors: FormatError naming the known ones."""
    if name not in NAMED:
        raise FormatError(f"unknown format {name!r}; known: {', '.join(NAMED)}")
    return NAMED[name]


def choices_of(name: str) -> Choices:
    """What a named format is made of."""
    row = format_named(name)
    return row.choices if isinstance(row, Composed) else KERNELS[name]


def chosen(name: str, changed: Mapping[str, Any]) -> Format:
    """A named format with some of REPLACED, `smoothing` and `compensators` replaced.

    changed   choice -> word; None leaves it as the row has it
    What comes to a row with templates of its own is that row. Errors: FormatError.
    """
    row = format_named(name)
    given = {choice: word for choice, word in changed.items() if word is not None}
    state = given.get("smoothing"), given.get("compensators")
    if not given.keys() & set(REPLACED):
        return row.with_state(*state)
    target = _target(name, given)
    if name in KERNELS and _same_kernels(target, KERNELS[name]):
        smoothing = "none" if target.transform != KERNELS[name].transform else None
        return row.with_state(smoothing, given.get("compensators"))
    words = ",".join(f"{choice}={word}" for choice, word in given.items())
    return composed(f"{name}[{words}]", f"{name} with {words}", target)


def format_spelled(text: str) -> Format:
    """A named format, or one with choices replaced: `leap8[transform=rotation,compensators=4]`.

    Errors: FormatError for what is unknown, or does not go together.
    """
    name, _, rest = text.removesuffix("]").partition("[")
    changed: dict[str, Any] = {}
    for item in rest.split(",") if rest else ():
        choice, _, word = item.partition("=")
        if not word:
            raise FormatError(f"{text}: write choice=word, found {item!r}")
        if choice not in (*REPLACED, "smoothing", "compensators"):
            raise FormatError(f"{text}: unknown choice {choice!r}; known: {', '.join(REPLACED)}")
        if choice == "compensators" and not word.isdigit():
            raise FormatError(f"{text}: compensators must be a number, found {word!r}")
        changed[choice] = int(word) if choice == "compensators" else word
    return chosen(name, changed)


def refusals(name: str, changed: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """Why `chosen` would refuse, one a choice; empty when it would not."""
    given = {choice: word for choice, word in changed.items() if word is not None}
    if given.keys() & set(REPLACED):
        return rules.refusals(_target(name, given))
    found = []
    for choice in ("smoothing", "compensators"):
        try:
            chosen(name, {choice: given.get(choice)})
        except FormatError as error:
            found.append(Refusal(choice, str(error)))
    return tuple(found)


def _target(name: str, given: Mapping[str, Any]) -> Choices:
    words = dict(given)
    smoothing = words.pop("smoothing", None)
    if smoothing is not None:
        words.setdefault("transform", smoothing)
    return replace(choices_of(name), **words)


def _same_kernels(target: Choices, base: Choices) -> bool:
    """Whether they differ in nothing but smoothing left out and the number of compensators."""
    like = replace(target, transform=base.transform, compensators=base.compensators)
    return like == base and target.transform in ("none", base.transform)
