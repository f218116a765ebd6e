"""Engines under test are optional: what needs a missing one is skipped, and counted."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

collect_ignore = [] if importlib.util.find_spec("transformers") else ["tiny_models.py"]


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    """Models as they were, after each test."""
    yield
    if importlib.util.find_spec("transformers"):
        from leapgen.integrations import transformers_hooks as hooks

        for family in hooks.FAMILIES:
            hooks.uninstall(family)
