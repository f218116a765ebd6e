"""Which names a spec may give: a plain word that generated code does not use itself."""

from __future__ import annotations

import keyword
import re

from leapgen.spec import expression as ex

WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
LOWER_WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MODEL_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")

_READ = (ex.READ,)
_SHAPES = ("K", "V", "H", "HV", "P", "R", "D", "B", "T", "S", "I", "O")
_BUFFERS = (
    *("payload", "key_scale", "value_scale", "comp_key", "comp_u"),
    *("record_decay", "record_key", "record_u", "cursor", "phase", "status"),
)
_ARGUMENTS = (
    *("pool", "slots", "out", "first_slot", "num_slots", "check", "layout", "state", "position"),
    *("source", "target", "lengths", "accepted", "drafts", "window", "compensators", "device"),
    *("threads", "tiles", "stages", "path", "picks", "slot", "row", "bid", "head", "data"),
)
_CODE = ("torch", "tilelang", "math", "self", "range", "int", "float", "len", "print", "dict")
_STEPS = ("step", "verify", "commit", "flush", "materialize", "load_state", "copy", "reset")

RESERVED = frozenset(
    (
        *_READ,
        *_SHAPES,
        *_BUFFERS,
        *_ARGUMENTS,
        *_CODE,
        *_STEPS,
        "export",
        "allocate",
        *keyword.kwlist,
    )
)
"""Words with a meaning of their own in specs or in generated modules."""

RESERVED_CHOICES = RESERVED | {
    *("arch", "format", "layers", "kv", "conv", "pin_config", "records", "smoothing")
}
"""What a choice may not be called: choices are keywords of `leapgen.load` and keys of models."""

_SUFFIXES = ("_raw", "_row", "_slot", "_head", "_axis", "_at", "_v")  # strides, renamed inputs
_INTERNAL = re.compile(r"(y|u|G|n|sum)\d+|G|yq|rG|rk|n_.+|p_.+_.+|build_.+|config_.+|payload_.+")


def why_not(name: str) -> str:
    """Why an input or a definition cannot have this name; empty when it can."""
    if not WORD.fullmatch(name):
        return ""  # the grammar's finding
    if name in ex.FUNCTIONS or name in ex.NATIVE_FUNCTIONS:
        return "it is a function"
    if name in RESERVED:
        return "it has a meaning of its own in generated modules"
    if name.endswith(_SUFFIXES) or _INTERNAL.fullmatch(name):
        return "generated code makes names of this form itself"
    return ""
