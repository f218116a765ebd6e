"""The hand-written module of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from leapgen.runtime import assemble, host


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> host.Module:
    text = (Path(__file__).parent / "tiny.py").read_text()
    return assemble.import_module(assemble.store("tiny", text, tmp_path_factory.mktemp("tiny")))
