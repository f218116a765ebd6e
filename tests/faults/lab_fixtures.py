"""Fixtures of the folders that use labs: where their modules are generated, and labs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Recipe


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="session")
def make_lab(cache: Path) -> Callable[..., Lab]:
    """make_lab("gdn", (K, V), window=.., picks=.., format=.., records=.., arch=..) -> Lab"""

    def make(
        spec: str,
        dims: tuple[int, int] = (16, 24),
        *,
        format: str | None = None,
        records: str | None = None,
        arch: str = "cpu",
        picks: dict[str, str] | None = None,
        **more: Any,
    ) -> Lab:
        recipe = Recipe(spec, tuple(sorted((picks or {}).items())), format, records, arch)
        return Lab(recipe, cache, *dims, **more)

    return make
