"""Every alternative of every choice, and every format, builds and verifies on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leapgen import pipeline
from leapgen.formats.table import FORMATS
from leapgen.report.verify import Request, verify

SPECS = ("gdn", "kda")
# One of each shape of change for the default run: other inputs, fewer inputs, other formulas.
QUICK = {("kda", "log_decay"), ("gdn", "activated"), ("kda", "lower_bound")}


def alternatives() -> Iterator[Any]:
    for name in SPECS:
        for choice, options in pipeline.parse(name).choices.items():
            for option in options[1:]:
                marks = () if (name, option) in QUICK else pytest.mark.slow
                yield pytest.param(name, {choice: option}, id=f"{name}-{option}", marks=marks)


@pytest.mark.parametrize(("name", "picks"), list(alternatives()))
def test_an_alternative_verifies(name: str, picks: dict[str, str]) -> None:
    request = Request(name, picks=picks, tokens=512, rounds=30)
    result = verify(request, lambda _: None)
    assert result.ok, [c for c in result.checks if not c.ok]
    (choice,) = picks
    assert result.picks[choice] == picks[choice]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("format", [f for f in FORMATS if f != "leapquant-int8"])
def test_a_format_verifies(name: str, format: str) -> None:
    result = verify(Request(name, format=format, tokens=512, rounds=60), lambda _: None)
    assert result.ok, [c for c in result.checks if not c.ok]
