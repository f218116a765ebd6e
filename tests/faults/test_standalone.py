"""A module and its `_host` run elsewhere, without leapgen; cold starts do not clash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lab import Lab

from leapgen import paths
from leapgen.files import write_folder
from leapgen.runtime.module import generate
from leapgen.schedule.arch import arch_named

SCRIPT = """
import sys
sys.modules["leapgen"] = None  # importing it now raises ImportError
import torch
import recurrence as module

pool = module.allocate(3, H=1, HV=2, K=16, V=24, window=2)
slots = torch.tensor([2, -1], dtype=torch.int32)
sizes = {i.name: i.sizes(2, pool.shape) for i in module.MODULE.inputs}
types = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
inputs = {i.name: torch.ones(sizes[i.name], dtype=types[i.dtype]) for i in module.MODULE.inputs}
module.reset(pool, slots)
for _ in range(5):
    out = module.step(pool, slots, **inputs, check=True)
assert out[0].any() and not out[1].any()
state = module.materialize(pool, slots, layout="KV")
module.load_state(pool, slots, state, 5, layout="KV")
module.copy(pool, slots[:1], slots[:1] - 1)
module.flush(pool, slots)
data = module.export(pool, slots[:1])
module.import_(pool, slots[:1] - 2, data)
assert torch.equal(module.materialize(pool, slots[:1] - 2), module.materialize(pool, slots[:1]))
try:
    module.step(pool, slots, **{**inputs, "q": inputs["q"][:1]})
except ValueError as error:
    assert "q: expected shape [2, 1, 16], found [1, 1, 16]" in str(error), error
else:
    raise AssertionError("a wrong shape was accepted")
assert "leapgen.runtime" not in sys.modules
print("fine")
"""


def run(folder: Path, script: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_module_runs_without_leapgen(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    text = generate(make_lab("gdn").spec, arch_named("cpu"))
    (tmp_path / "recurrence.py").write_text(text)
    write_folder(tmp_path / paths.HOST, paths.host_files())
    assert run(tmp_path, SCRIPT).endswith("fine\n")


def test_a_package_of_modules(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """In a package, `_host` is the sibling."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "recurrence.py").write_text(generate(make_lab("gdn").spec, arch_named("cpu")))
    write_folder(folder / paths.HOST, paths.host_files())
    run(tmp_path, "import bundle.recurrence, sys; assert 'bundle._host' in sys.modules")


def test_eight_processes_start_cold(tmp_path: Path) -> None:
    """They store and import the same module at once; each sees a whole one."""
    script = (
        "from pathlib import Path; from leapgen.runtime import assemble\n"
        "text = 'from . import _host\\n# ' + 'x' * 2_000_000 + '\\nMODULE = _host.Shape\\n'\n"
        f"path = assemble.store('big', text, Path({str(tmp_path)!r}))\n"
        "assert assemble.import_module(path).__name__ == 'Shape'\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(8)]
    assert [process.wait() for process in started] == [0] * 8
    (folder,) = tmp_path.iterdir()
    assert [p.name for p in folder.iterdir() if p.is_file()] == ["big.py"]
    assert paths.python_files(folder / paths.HOST) == paths.host_files()
    assert not list(folder.glob(".*"))
