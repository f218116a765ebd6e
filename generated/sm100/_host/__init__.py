"""What runs a generated module: descriptors, pools, validation, compilation and launches.

Generated modules import a byte copy of this package (`_host/` beside them), so its files import
each other by relative names, torch and the standard library, and tilelang when the first kernel is
compiled.

A class a file, each on top of the one before: `Base` (plan, configs), `Allocation` (shapes, pools),
`Launches` (compiled kernels), `Arguments` (checks of calls), `Drafts`; on that `Steps`, `States`
and `Checkpoints`; `Module` is all of them.
"""

from __future__ import annotations

from .checkpoints import KINDS
from .compilation import C_FLAGS, Backend, Launch, Once, TileLang
from .configs import Tuned, key_of
from .descriptors import (
    ALIGNMENT,
    CHANNELS,
    CHECKPOINT,
    DRAFT_KERNELS,
    DTYPES,
    EXPORT_VERSION,
    LARGEST_STRIDE,
    MOST_CHANNELS,
    MOST_DRAFTS,
    PENDING,
    STATE_AXES,
    STORED,
    Buffer,
    Input,
    Kernel,
    Layout,
    Shape,
)
from .errors import ArgumentError, CompileError
from .module import Module
from .pool import Pool

__all__ = [
    "ALIGNMENT",
    "CHANNELS",
    "CHECKPOINT",
    "C_FLAGS",
    "DRAFT_KERNELS",
    "DTYPES",
    "EXPORT_VERSION",
    "KINDS",
    "LARGEST_STRIDE",
    "MOST_CHANNELS",
    "MOST_DRAFTS",
    "PENDING",
    "STATE_AXES",
    "STORED",
    "ArgumentError",
    "Backend",
    "Buffer",
    "CompileError",
    "Input",
    "Kernel",
    "Launch",
    "Layout",
    "Module",
    "Once",
    "Pool",
    "Shape",
    "TileLang",
    "Tuned",
    "key_of",
]
