"""The engine is optional: tests that need it are skipped, and counted, where it is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_models import Job, build

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    return build(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def job(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run an engine in a process of its own, once for each set of arguments: see vllm_jobs."""
    place, done = tmp_path_factory.mktemp("jobs"), {}

    def run(**given: Any) -> dict[str, Any]:
        key = json.dumps(given, sort_keys=True)
        if key not in done:
            source, target = place / f"{len(done)}.json", place / f"{len(done)}-result.json"
            source.write_text(json.dumps({"folder": str(folder), "leapgen": None, **given}))
            command = [sys.executable, str(HERE / "vllm_jobs.py"), str(source), str(target)]
            root = str(HERE.parents[1])
            ended = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": root},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
            done[key] = json.loads(target.read_text())
        found: dict[str, Any] = done[key]
        return found

    return run
