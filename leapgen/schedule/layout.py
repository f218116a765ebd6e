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

from leapgen.formats.base import Format
from leapgen.formats.composed import Composed
from leapgen.schedule.arch import Arch

IndexMap = Callable[..., Any]


@dataclass(frozen=True)
class Layout:
    """One order. Each field is the lines of a function body that ends in a return.

    offset  of (k, v, K, V): the element's offset in the tile
    key     of (i, K, V): the key channel of the element at offset i
    value   of (i, K, V): its value channel
    """

    name: str
    doc: str
    offset: tuple[str, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]

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
BLOCKS = Layout(
    name="fragment",
    doc="[w][mt][kt][lane][r][i] as above; step kt has the keys of block kt",
    offset=(
        "M = 2 - V % 32 // 16",
        "t, kt, hi, i = k % 32 // 8, k // 32, k % 8 // 4, k % 4",
        *FRAGMENT.offset[2:],
    ),
    key=("return 32 * (i // 512 % (K // 32)) + 8 * (i // 16 % 4) + 4 * (i // 8 % 2) + i % 4",),
    value=FRAGMENT.value,
)

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (PLAIN, FRAGMENT)}
BLOCK = 32
"""Keys of a step of an integer product."""
FRAGMENT_CONDITION = "K % 32 == 0 and V % 16 == 0"


def can_fragment(arch: Arch, format: Format) -> bool:
    """Whether some shapes of this pair use matrix-fragment order. What is rewritten at every token
    is in plain order: whole value channels lie in neighbouring lanes, for their scales."""
    plain = not format.windowed or not _whole_steps(format)
    return arch.int8_mma and format.payload == "int8" and not plain


def _whole_steps(format: Format) -> bool:
    """Whether a product over keys can take the payload: one scale a value channel, or blocks of a
    product's step."""
    if not isinstance(format, Composed):
        return True
    c, scale = format.choices, format.scale
    blocks = scale.per == "value" and scale.block == BLOCK and scale.kind == "e4m3"
    whole = c.transform in ("none", "rms_power") and c.rounding == "nearest"
    return blocks and whole and c.factors in ("none", "int8")


def _fragment(format: Format) -> Layout:
    return BLOCKS if isinstance(format, Composed) else FRAGMENT


def payload_order(arch: Arch, format: Format, K: int, V: int) -> Layout:
    """The order of a payload tile of K x V elements."""
    if can_fragment(arch, format) and K % 32 == 0 and V % 16 == 0:
        return _fragment(format)
    return PLAIN


def layout_source(arch: Arch, format: Format) -> str:
    """Text for a generated module: `payload_order(K, V)` and the three maps, for every shape."""
    if not can_fragment(arch, format):
        return f'def payload_order(K, V):\n    return "plain"\n\n\n{PLAIN.source}'
    order = f'def payload_order(K, V):\n    return "fragment" if {FRAGMENT_CONDITION} else "plain"'
    maps = []
    for name, arguments in (
        ("offset", "k, v, K, V"),
        ("key", "i, K, V"),
        ("value", "i, K, V"),
    ):
        plain = getattr(PLAIN, name)[-1]
        body = (
            'if payload_order(K, V) == "plain":',
            f"    {plain}",
            *getattr(_fragment(format), name),
        )
        maps.append(_function(f"payload_{name}", arguments, body))
    return "\n\n\n".join((order, *maps))
