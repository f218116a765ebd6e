"""Bytes that kernels touch where no record holds a decay, against the plan's model."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_modules import FRAGMENT, bench, derived, plan_of
from test_generated_traffic import CURSORS, differences

from leapgen import paths
from leapgen.emit.render import render
from leapgen.files import write_folder
from leapgen.schedule import traffic

ARCH = "sm90"
TWICE = "read of record_key: "
"""Keys that tell decays are read a second time for that, from caches: no byte of memory is."""


@pytest.mark.parametrize("kernel", [k for k in CURSORS if k != "load_state"])
@pytest.mark.parametrize(
    "name", ["hgrn2", pytest.param("lightning", marks=pytest.mark.slow, id="lightning"), "retnet"]
)
def test_traffic_of_a_launch(name: str, kernel: str, tmp_path: Path) -> None:
    plan = plan_of(name, ARCH)
    path = tmp_path / f"{name}_{kernel}.py"
    path.write_text(render(plan, derived(name)[0]).text)
    write_folder(tmp_path / paths.HOST, paths.host_files())
    at = bench(path, FRAGMENT)
    for cursor in CURSORS[kernel]:
        found = differences(
            at.launch(kernel, cursor), traffic.launch(plan, at.shape, kernel, cursor)
        )
        told = name == "hgrn2" and kernel in ("step", "flush", "materialize")
        kept = [line for line in found if not (told and line.startswith(TWICE) and " of " in line)]
        assert not kept, cursor
