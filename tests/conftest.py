"""Golden files: a text that a test makes, compared with a committed file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

Golden = Callable[[str, Path], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files with what tests make"
    )
    parser.addoption("--record", help="where tests/gpu writes what it measured, as JSON")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Call it with a text and the golden file's path; --update-golden writes the file instead."""

    def compare(text: str, path: Path) -> None:
        if request.config.getoption("--update-golden"):
            path.write_bytes(text.encode())
            return
        test = request.node.nodeid.split("[")[0]
        command = f"python -m pytest {test} --update-golden"
        where = path.relative_to(ROOT)
        if not path.is_file():
            pytest.fail(f"{where} is missing; make it with: {command}", pytrace=False)
        expected = path.read_bytes().decode()
        assert text == expected, f"{where} differs; if this is meant: {command}"

    return compare
