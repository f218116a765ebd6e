"""Fixtures of these tests."""

from __future__ import annotations

import torch
from lab_fixtures import cache, make_lab

__all__ = ["cache", "make_lab"]

torch.set_num_threads(1)  # tensors are tiny, and threads of busy machines wait for each other
