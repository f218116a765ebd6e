"""Element types and axes: the vocabulary that every later stage shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Axis(StrEnum):
    """What a per-head quantity ranges over: nothing, the key channels, or the value channels."""

    SCALAR = ""
    KEY = "K"
    VALUE = "V"


class Per(StrEnum):
    """Which heads a quantity has one instance for."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True)
class DType:
    """One element type.

    name    the word used in specs and generated code (``fp16``)
    bits    width of one element
    torch   attribute of the torch module
    tile    TileLang's name
    """

    name: str
    bits: int
    torch: str
    tile: str

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8


DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        DType("fp32", 32, "float32", "float32"),
        DType("bf16", 16, "bfloat16", "bfloat16"),
        DType("fp16", 16, "float16", "float16"),
        DType("int8", 8, "int8", "int8"),
        DType("uint8", 8, "uint8", "uint8"),
        DType("int32", 32, "int32", "int32"),
    )
}
