"""Processes that compile: what they answer, and that they do not outlive the tuner."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from leapgen import pipeline
from leapgen.report.workers import Killed, Workers, build, needs
from leapgen.runtime.host import Shape, TileLang

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]
SHAPE = Shape(64, 32, 1, 2, 4, 4)


def test_needs_of_a_kernel_and_why_another_has_none() -> None:
    module = pipeline.load(pipeline.compile("gdn", "sm90").source)
    made = module.kernels["step"]
    path = Path(inspect.getsourcefile(made.build) or "")
    config = dict(made.config(*SHAPE.builder_arguments))
    with closing(Workers(1)) as workers:
        found, failure = workers.call(needs, path, "step", SHAPE, config, "sm_90a")
        assert failure == ""
        assert found is not None
        assert 32 <= found.registers <= 255
        assert found.instructions > 300
        found, failure = workers.call(needs, path, "step", SHAPE, {"odd": 1}, "sm_90a")
        assert found is None
        assert "unexpected keyword argument" in failure
        workers.call(build, path, "step", SHAPE, config, "sm_90a")
        start = time.perf_counter()
        func = made.build(*SHAPE.builder_arguments, **config)
        TileLang("cuda").compile(func, {"kind": "cuda", "arch": "sm_90a"}, made.pass_configs)
        assert time.perf_counter() - start < 5.0  # from the cache on disk
        with pytest.raises(Killed, match="its process was killed"):
            workers.call(os._exit, 1)
        assert workers.call(os.getpid) != os.getpid()


SCRIPT = """
import os, time
from leapgen.report.workers import Workers
if __name__ == "__main__":
    print(Workers(1).call(os.getpid), flush=True)
    time.sleep(600)
"""


def test_workers_end_with_a_killed_tuner(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    tuner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=env)
    assert tuner.stdout is not None
    worker = int(tuner.stdout.readline())
    tuner.kill()
    tuner.wait()
    until = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.2)
    state = Path(f"/proc/{worker}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
