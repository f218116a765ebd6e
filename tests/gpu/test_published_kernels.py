"""All specs on the device, beside the published recurrences and the library that has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400


def test_every_spec(
    arch: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """tests/recurrences/kernels.py says what is run and compared."""
    out = tmp_path / "published.json"
    command = [sys.executable, "tests/recurrences/kernels.py", "--arch", arch, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    rows = json.loads(out.read_text())["rows"]
    record_property("published", rows)
    assert len(rows) >= 75, "two runs of each reference, and the models' shapes"
    assert all(min(row["flushes"]) > 1 for row in rows)
    assert not any(row["how"] in ("emulated", "compiled") for row in rows), "it ran on the device"
