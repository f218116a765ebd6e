"""Names in generated code: which ones templates use themselves, and how a symbol avoids them."""

from __future__ import annotations

import keyword
import re

TAKEN = frozenset(
    (
        # dimensions, modules and functions
        *("T", "K", "V", "H", "HV", "P", "R", "D", "N"),
        *("flat", "wide", "widen", "narrow", "magnitude", "scalar"),
        *("start_sign", "partial_sums", "step"),
        # indices and variables of templates
        *("bid", "block", "tx", "row", "head", "key_head", "slot", "active"),
        *("count", "limit", "window"),
        *("threads", "slices", "min_blocks", "staged", "held", "bulk", "fused", "tiles", "rounds"),
        *("cc", "gg", "pp", "rr", "tt", "xx", "zz", "warp"),
        *("ii", "jj", "kk", "vv", "hh", "ee", "lane", "lanes", "record", "part", "total", "share"),
        # parameters of kernels
        *("payload", "key_scale", "value_scale", "comp_key", "comp_u"),
        *("payload_high", "row_scale", "head_scale", "block_scale", "tensor_scale"),
        *("comp_key_scale", "comp_u_scale", "stores", "turn_sign", "turn_size", "turn_stages"),
        *("record_decay", "token_decay", "record_key", "record_u"),
        *("cursor", "phase", "status", "slots", "state", "position"),
        *("source", "target", "out", "num_rows", "num_slots", "first_slot"),
        *("order", "front_rows"),
        *("pending", "lengths", "accepted", "num_tokens", "has_lengths", "accepting"),
    )
)
_SHAPES = re.compile(
    r"(s|t|m|own)_.*|.*_|.*_(at|in|slot|row|token|head|key|value|axis)|[A-Z][A-Z_]+"
)


def symbol(name: str) -> str:
    """The Python name of a symbol of the spec or of the window in generated code.

    Names that templates use (TAKEN, and those of certain shapes) get `_v` after them.
    """
    taken = name in TAKEN or keyword.iskeyword(name) or _SHAPES.fullmatch(name)
    return f"{name}_v" if taken else name


def parameter(name: str) -> str:
    """The kernel parameter that carries the raw input `name` (its symbol may be an array)."""
    return f"{name}_in"
