"""Golden files: a text that a test makes, compared with a committed file; and what tests record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests of engines recorded, so that the log has the numbers and not only that they
    passed."""
    lines = [
        f"{report.nodeid.split('::')[-1]}: {name} {value}"
        for report in terminalreporter.stats.get("passed", ())
        if "_plugin/" in report.nodeid
        for name, value in report.user_properties
    ]
    if lines:
        terminalreporter.section("plugins of engines")
        for line in lines:
            terminalreporter.line(line)
