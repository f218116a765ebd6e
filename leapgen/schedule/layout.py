"""The order of a payload tile's elements: index maps as integer arithmetic in Python text.

The same text is pasted into generated modules (where arguments may be TIR expressions) and compiled
here for NumPy. The order depends on architecture, format and dimensions, never on a tuned config:
configs change with the batch on one pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from leapgen.formats import packing
from leapgen.formats.base import Format
from leapgen.formats.composed import Composed
from leapgen.formats.grids import Symmetric
from leapgen.schedule.arch import Arch

IndexMap = Callable[..., Any]


@dataclass(frozen=True)
class Layout:
    """One order. Maps are the lines of a function body that ends in a return.

    offset     of (k, v, K, V): the element's offset in the tile
    key        of (i, K, V): the key channel of the element at offset i
    value      of (i, K, V): its value channel
    condition  of (K, V): where the order exists
    words      in planes of codes, a word holds the codes of neighbouring words (see PLANES);
               otherwise a byte holds neighbouring codes
    """

    name: str
    doc: str
    offset: tuple[str, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]
    condition: str = "K % 32 == 0 and V % 16 == 0"
    words: bool = False

    @property
    def source(self) -> str:
        """Text of payload_offset, payload_key and payload_value."""
        return "\n\n\n".join(
            _function(f"payload_{name}", arguments, body)
            for name, arguments, body in (
                ("offset", "k, v, K, V", self.offset),
                ("key", "i, K, V", self.key),
                ("value", "i, K, V", self.value),
            )
        )

    @cached_property
    def functions(self) -> dict[str, IndexMap]:
        """The compiled maps, for integers and integer arrays."""
        scope: dict[str, Any] = {}
        exec(self.source, scope)  # our own text, from the table below
        return {name: scope[f"payload_{name}"] for name in ("offset", "key", "value")}


def _function(name: str, arguments: str, body: tuple[str, ...]) -> str:
    return "\n    ".join((f"def {name}({arguments}):", *body))


PLAIN = Layout(
    name="plain",
    doc="offset = v*K + k: each value channel's keys are contiguous",
    offset=("return v * K + k",),
    key=("return i % K",),
    value=("return i // K",),
)

# One lane's 16 bytes are one A fragment of m16n8k32 (rows are values, columns are keys); lane
# 4g + t holds keys of the range [t*K/4, (t+1)*K/4). M fragments stand side by side, so that after
# the product a lane owns M*16/8 neighbouring values.
FRAGMENT = Layout(
    name="fragment",
    doc="[w][mt][kt][lane][r][i], sizes (V/(16M), M, K/32, 32, 4, 4), lane = 4g + t",
    offset=(
        "M = 2 - V % 32 // 16",
        "t, kt, hi, i = k // (K // 4), k % (K // 4) // 8, k % 8 // 4, k % 4",
        "w, g, mt, lo = v // (16 * M), v % (16 * M) // (2 * M), v % (2 * M) // 2, v % 2",
        "return ((((w * M + mt) * (K // 32) + kt) * 32 + 4 * g + t) * 4 + 2 * hi + lo) * 4 + i",
    ),
    key=("return K // 4 * (i // 16 % 4) + 8 * (i // 512 % (K // 32)) + 4 * (i // 8 % 2) + i % 4",),
    value=(
        "M = 2 - V % 32 // 16",
        "w, mt, g, lo = i // (16 * K * M), i // (16 * K) % M, i // 64 % 8, i // 4 % 2",
        "return 16 * M * w + 2 * M * g + 2 * mt + lo",
    ),
)

# As FRAGMENT, but each step of a product takes the 32 keys of one block, so that its sums can be
# multiplied with the block's scales.
_BLOCK_KEY = "t, kt, hi, i = k % 32 // 8, k // 32, k % 8 // 4, k % 4"
BLOCKS = Layout(
    name="fragment",
    doc="[w][mt][kt][lane][r][i] as above; step kt has the keys of block kt",
    offset=("M = 2 - V % 32 // 16", _BLOCK_KEY, *FRAGMENT.offset[2:]),
    key=("return 32 * (i // 512 % (K // 32)) + 8 * (i // 16 % 4) + 4 * (i // 8 % 2) + i % 4",),
    value=FRAGMENT.value,
)

# As BLOCKS, of packed codes: the two fragments of a block lie in one lane, so that its nibbles are
# 16 bytes and what is above them is one word or two.
_WORD_PLACE = ("w, g, mt, lo = v // 32, v % 32 // 4, v % 4 // 2, v % 2",)
WORDS = Layout(
    name="fragment",
    doc="[w][kt][lane][mt][r][i], sizes (V/32, K/32, 32, 2, 4, 4), keys as in blocks",
    offset=(
        _BLOCK_KEY,
        *_WORD_PLACE,
        "return ((w * (K // 32) + kt) * 32 + 4 * g + t) * 32 + 16 * mt + 8 * hi + 4 * lo + i",
    ),
    key=("return 32 * (i // 1024 % (K // 32)) + 8 * (i // 32 % 4) + 4 * (i // 8 % 2) + i % 4",),
    value=("return 32 * (i // (32 * K)) + 4 * (i // 128 % 8) + 2 * (i // 16 % 2) + i // 4 % 2",),
    condition="K % 32 == 0 and V % 32 == 0",
    words=True,
)

# As WORDS, of codes that are looked up: four neighbouring nibbles of a plane choose the four bytes
# of a register.
LEVELS = Layout(
    name="fragment",
    doc="[w][kt][lane][mt][hi][4*(i%2) + 2*lo + i//2], as above",
    offset=(
        *WORDS.offset[:2],
        "unit = (w * (K // 32) + kt) * 32 + 4 * g + t",
        "return unit * 32 + 16 * mt + 8 * hi + 4 * (i % 2) + 2 * lo + i // 2",
    ),
    key=(
        "low = 4 * (i // 8 % 2) + 2 * (i % 2) + i // 4 % 2",
        "return 32 * (i // 1024 % (K // 32)) + 8 * (i // 32 % 4) + low",
    ),
    value=("return 32 * (i // (32 * K)) + 4 * (i // 128 % 8) + 2 * (i // 16 % 2) + i // 2 % 2",),
    condition=WORDS.condition,
    words=True,
)

PLANES = (
    (
        "plane_index",
        "i, each",
        "return i // (4 * each) * (4 * each) + i % 4 * each + i // 4 % each",
    ),
    (
        "plane_code",
        "j, each",
        "return j // (4 * each) * (4 * each) + j % each * 4 + j // each % 4",
    ),
)
"""Where the code at offset i of a tile is among the codes of a plane that has `each` in a byte, the
lowest bits first, and the reverse. A 32-bit word of a plane holds the codes of `each` neighbouring
words of four codes, each of these words shifted as a whole: a mask and a shift for four codes."""

BLOCK = 32
"""Keys of a step of an integer product."""
OPERANDS = ("int8", "int6", "int5", "int4", "levels4")
"""Payloads of compositions that become operands of an integer product."""


def can_fragment(arch: Arch, format: Format) -> bool:
    """Whether some shapes of this pair use matrix-fragment order. What is rewritten at every token
    is in plain order: whole value channels lie in neighbouring lanes, for their scales."""
    return arch.int8_mma and format.windowed and _whole_steps(format)


ROWS = {"bf16": "bf16", "fp16": "fp16", "e4m3": "fp16"}
"""Payloads whose value channels in plain order become operands of a product, and of which type: a
lane's neighbouring keys are operands as they lie in memory, or once they are FP16."""


def row_operand(arch: Arch, format: Format) -> str:
    """Element type of the operands that value channels in plain order become; empty: none do.

    One scale a value channel or none, so that it is a factor of the sums over keys."""
    payload = format.payload
    if isinstance(format, Composed):
        c, scale = format.choices, format.scale
        payload = c.payload
        simple = not scale.block and scale.per in ("none", "value") and c.transform != "rotation"
        if not simple or c.outliers or c.feedback != "none":
            return ""
        if payload == "e4m3" and payload not in arch.converts:
            return ""
    return ROWS.get(payload, "") if arch.gpu and format.windowed else ""


def coded_rows(arch: Arch, format: Format) -> bool:
    """Whether a state that is stored at every step is rows of bytes, each a code: what a step
    decodes and encodes word by word."""
    if not arch.gpu or format.windowed:
        return False
    if not isinstance(format, Composed):
        return format.payload == "int8"
    c, scale = format.choices, format.scale
    bytes_ = c.payload == "int8" or (c.payload == "e4m3" and c.payload in arch.converts)
    scaled = scale.per == "value" and scale.kind != "e4m3" and scale.block in (0, BLOCK)
    plain = c.transform == "none" and c.rounding == "nearest" and not c.outliers
    return bytes_ and scaled and plain and c.feedback == "none"


def closes_rows(arch: Arch, format: Format) -> bool:
    """Whether products of records can close a window of such a payload: a state that is stored as
    it is, or with a scale a value channel."""
    if not row_operand(arch, format) or format.factors is not None:
        return False
    plain = not isinstance(format, Composed) or format.choices.rounding == "nearest"
    smooths = isinstance(format, Composed) and format.choices.transform != "none"
    return plain and not smooths


def held_rows(arch: Arch, format: Format, K: int, V: int) -> bool:
    """Whether a step whose threads own a value channel each can read a tile of K x V elements by
    products: the rule of generated modules' `_can_hold`, but for its rows and threads."""
    if row_operand(arch, format):
        return K % 32 == 0 and V % 32 == 0
    return payload_order(arch, format, K, V).name == "fragment"


def _whole_steps(format: Format) -> bool:
    """Whether a product over keys can take the payload: one scale a value channel, or blocks of a
    product's step."""
    if not isinstance(format, Composed):
        return format.payload == "int8"
    c, scale = format.choices, format.scale
    blocks = scale.block == BLOCK and scale.kind == "e4m3"
    scaled = scale.per == "value" and (blocks or not scale.block)
    whole = c.payload in OPERANDS and c.rounding == "nearest" and not c.outliers
    return scaled and whole and c.feedback == "none" and c.factors in ("none", "int8", "fp16")


def _fragment(format: Format) -> Layout:
    if not isinstance(format, Composed):
        return FRAGMENT
    if format.bits not in packing.PACKED:
        return BLOCKS
    return WORDS if isinstance(format.grid, Symmetric) else LEVELS


def payload_order(arch: Arch, format: Format, K: int, V: int) -> Layout:
    """The order of a payload tile of K x V elements."""
    found = _fragment(format)
    exists = can_fragment(arch, format) and eval(found.condition, {"K": K, "V": V})  # our own text
    return found if exists else PLAIN


def layout_source(arch: Arch, format: Format) -> str:
    """Text for a generated module: `payload_order(K, V)` and the three maps, for every shape; for
    packed codes also the maps of PLANES."""
    if not can_fragment(arch, format):
        return f'def payload_order(K, V):\n    return "plain"\n\n\n{PLAIN.source}'
    found = _fragment(format)
    order = f'def payload_order(K, V):\n    return "fragment" if {found.condition} else "plain"'
    maps = [
        _either(f"payload_{name}", arguments, getattr(PLAIN, name)[-1], getattr(found, name))
        for name, arguments in (
            ("offset", "k, v, K, V"),
            ("key", "i, K, V"),
            ("value", "i, K, V"),
        )
    ]
    if found.words:
        for name, arguments, line in PLANES:
            plain = f"return {arguments[0]}"
            maps.append(_either(name, f"{arguments}, K, V", plain, (line,)))
    return "\n\n\n".join((order, *maps))


def _either(name: str, arguments: str, plain: str, fragment: tuple[str, ...]) -> str:
    test = 'if payload_order(K, V) == "plain":'
    return _function(name, arguments, (test, f"    {plain}", *fragment))
