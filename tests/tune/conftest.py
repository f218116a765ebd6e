"""The plan whose space the fakes are tuned over."""

from __future__ import annotations

import pytest

from leapgen import pipeline
from leapgen.schedule.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return pipeline.compile("gdn", "sm90").plan
