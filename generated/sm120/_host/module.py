"""One generated module, with all its calls."""

from __future__ import annotations

from dataclasses import dataclass

from .checkpoints import Checkpoints
from .states import States
from .steps import Steps


@dataclass(frozen=True)
class Module(Steps, States, Checkpoints):
    """One generated module: its plan as data (fields of `Base`), and the calls that run it."""
