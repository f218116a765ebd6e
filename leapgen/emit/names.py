"""Names in generated code: which ones templates use themselves, and how a symbol avoids them."""

from __future__ import annotations

import keyword

LOCALS = frozenset(
    (
        *("T", "K", "V", "H", "HV", "P", "R", "D", "N", "S", "X", "Y", "Q"),
        *("bid", "tx", "row", "head", "key_head", "slot", "active", "count", "limit", "threads"),
        *(
            "ii",
            "jj",
            "kk",
            "vv",
            "hh",
            "ee",
            "kx",
            "vx",
            "sub",
            "lane",
            "lanes",
            "token",
            "record",
        ),
        *("part", "total", "peak", "scale", "inverse", "start", "rounds", "trace", "share", "keep"),
        *("gram", "code", "level", "flat", "widen", "narrow", "torch"),
        *("payload", "key_scale", "value_scale", "comp_key", "comp_u", "record_decay"),
        *(
            "record_key",
            "record_u",
            "cursor",
            "phase",
            "status",
            "slots",
            "source",
            "target",
            "into",
        ),
        *("state", "position", "out", "num_rows", "num_slots", "first_slot"),
    )
)
"""Names of templates and of the ABI; so are all that begin with `s_` or `t_` and all that end with
`_` or `_at`. A symbol of a spec with such a name is written with `_v` after it."""


def symbol(name: str) -> str:
    """The Python name of a symbol of the spec or of the window in generated code."""
    taken = name in LOCALS or keyword.iskeyword(name) or name.endswith(("_", "_at"))
    return f"{name}_v" if taken or name.startswith(("s_", "t_")) else name


def parameter(name: str) -> str:
    """The kernel parameter that carries the raw input `name` (its symbol may be an array)."""
    return f"{name}_in"
