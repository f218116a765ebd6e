"""The one visible table of formats."""

from __future__ import annotations

from leapgen.formats.base import Format, FormatError
from leapgen.formats.floating import Floating
from leapgen.formats.integer import Integer

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


def format_named(name: str) -> Format:
    """The row of a name. Errors: FormatError naming the known ones."""
    if name not in FORMATS:
        raise FormatError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]
