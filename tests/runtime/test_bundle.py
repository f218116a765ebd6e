"""Bundles: built, moved, and run where there is no leapgen, no TileLang and no compiler."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import leapgen
from leapgen.cli import app
from leapgen.report import bundle
from leapgen.runtime.host import DTYPES, Module

SIZES = {"H": 1, "HV": 2, "K": 16, "V": 24, "window": 4}
NAME = "gdn-fp32-window"
SHAPE = ",".join(f"{name}={n}" for name, n in SIZES.items())
WORDS = ["gdn", "--format", "fp32-window", "--arch", "cpu", "--shape", SHAPE]
KERNELS = ["--kernels", "step,flush,reset,materialize"]
TOKENS = 9

ALONE = """
import sys
for name in ("leapgen", "tilelang", "tvm", "tvm_ffi"):
    sys.modules[name] = None  # importing it now raises ImportError
sys.path.insert(0, sys.argv[1])
import torch
import tiny

def run(name, expected, **sizes):
    module = tiny.load(name)
    pool = module.allocate(3, **sizes)
    slots = torch.tensor([2, -1], dtype=torch.int32)
    module.reset(pool, slots)
    module.prepare(pool)
    for inputs, out in expected["steps"]:
        assert torch.equal(module.step(pool, slots, *inputs, check=True), out)
    assert torch.equal(module.materialize(pool, slots), expected["state"])
    assert expected["state"][0].any()
    module.reset(pool, slots)
    out = torch.empty_like(out)
    bound = tiny.BoundStep(module, pool, slots, expected["steps"][0][0], out)
    for inputs, right in expected["steps"]:
        bound.step(slots, *inputs, out)
        assert torch.equal(out, right)
"""


def alone(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A Python process with an empty environment, which finds no program and no leapgen."""
    command = [sys.executable, "-I", "-c", ALONE + script, str(folder)]
    done = subprocess.run(command, cwd=folder, env={"PATH": ""}, capture_output=True, text=True)
    return done


def record(module: Module, **sizes: int) -> dict[str, Any]:
    """Inputs and outputs of some steps and the state after them, to be reproduced."""
    generator = torch.Generator().manual_seed(1)
    pool, slots = module.allocate(3, **sizes), torch.tensor([2, -1], dtype=torch.int32)
    module.reset(pool, slots)
    steps = []
    for _ in range(TOKENS):
        inputs = [
            torch.randn(i.sizes((2,), pool.shape), generator=generator).to(DTYPES[i.dtype])
            for i in module.inputs
        ]
        steps.append((inputs, module.step(pool, slots, *inputs)))
    return {"steps": steps, "state": module.materialize(pool, slots)}


class Here:
    """In place of worker processes, each of which would import TileLang again."""

    count = 1
    call = staticmethod(lambda job, *arguments: job(*arguments))

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a bundle was moved to, with what the module itself computes."""
    folder = tmp_path_factory.mktemp("bundle")
    first = folder / "here" / "tiny"
    words = [*WORDS, *KERNELS, "--bundle", str(first), "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "Workers", Here)
        result = CliRunner().invoke(app, ["build", *words])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kernels"] == 4
    first.rename(folder / "moved")
    module = leapgen.load("gdn", arch="cpu", format="fp32-window")
    torch.save(record(module, **SIZES), folder / "moved" / "expected.pt")
    return folder / "moved"


def test_cold_processes_run_it_alone_and_give_the_same_bits(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cold"
    shutil.copytree(built, folder)  # no bytecode yet
    script = (
        f"{ALONE}\nrun({NAME!r}, torch.load('expected.pt'), **{SIZES})\n"
        "assert not [m for m in sys.modules if m.startswith(('leapgen.', 'tilelang.'))]\n"
    )
    command = [sys.executable, "-I", "-c", script, str(folder)]
    started = [subprocess.Popen(command, cwd=folder, env={"PATH": ""}) for _ in range(3)]
    assert [process.wait() for process in started] == [0] * 3


def test_the_wheel_holds_the_same(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("tiny-*-py3-none-*.whl")
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    command += ["--target", str(target), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {p.relative_to(built) for p in (built / "tiny").rglob("*.*") if p.is_file()}
    names = {n for n in names if n.suffix != ".pyc"}
    assert names == {p.relative_to(target) for p in (target / "tiny").rglob("*") if p.is_file()}
    assert all((built / n).read_bytes() == (target / n).read_bytes() for n in names)


def test_what_is_not_compiled_is_refused(built: Path) -> None:
    script = (
        "def refused(call, *words):\n"
        "    try:\n"
        "        call()\n"
        "    except (tiny.BundleError, ValueError) as error:\n"
        "        assert all(w in str(error) for w in words), error\n"
        "        return\n"
        "    raise AssertionError(words)\n"
        f"module, sizes = tiny.load({NAME!r}), {SIZES}\n"
        "refused(lambda: tiny.load('kda'), 'module', 'gdn-fp32-window for cpu', 'kda for cpu')\n"
        "refused(lambda: tiny.load('kda', arch='sm90'), 'kda for sm90')\n"
        "refused(lambda: module.allocate(1, **{**sizes, 'H': 2}), 'not K=16 V=24 H=2')\n"
        "refused(lambda: module.allocate(1, H=1, HV=2), 'window=4', 'not K=128', 'compile=True')\n"
        "refused(lambda: module.allocate(1, **sizes, drafts=2), 'window=4 ', 'drafts=2')\n"
        "pool, slots = module.allocate(2, **sizes), torch.zeros(1, dtype=torch.int32)\n"
        "refused(lambda: module.copy(pool, slots, slots + 1), 'copy', 'no such kernel')\n"
        "other = module.with_configs(reset={'threads': 1})\n"
        "refused(lambda: other.reset(pool, slots), 'reset', \"{'threads': 1}\", 'expected')\n"
        f"refused(lambda: tiny.load({NAME!r}, compile=True), 'compile=True needs', 'tilelang')\n"
        # The comparison of the other tests sees one bit of one input.
        "expected = torch.load('expected.pt')\n"
        "expected['steps'][3][0][2].view(torch.int16)[0, 0, 0] ^= 64\n"
        "try:\n"
        f"    run({NAME!r}, expected, **sizes)\n"
        "except AssertionError:\n"
        "    sys.exit()\n"
        "raise RuntimeError('a wrong answer was not seen')\n"
    )
    done = alone(built, script)
    assert done.returncode == 0, done.stderr[-3000:]


def test_other_shapes_are_compiled_if_asked(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(built)
    package = importlib.import_module("tiny")
    module = package.load(NAME, compile=True)
    pool = module.allocate(2, **{**SIZES, "K": 32})
    pool["payload"].fill_(1.0)
    module.reset(pool, torch.tensor([1], dtype=torch.int32))
    assert not pool["payload"][1].any()
    assert pool["payload"][0].all()
    known, new = (module.kernels["reset"].build(k, 24, 1, 2, 4, 0) for k in (16, 32))
    assert type(known).__name__ == "Built"
    assert type(new).__name__ == "PrimFunc"


def _edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _later_schema(root: Path) -> None:
    _edit(root / "manifest.json", lambda t: t.replace('"schema": 1', '"schema": 2'))


def _another_machine(root: Path) -> None:
    _edit(
        root / "manifest.json", lambda t: t.replace('"machine": {', '"machine": {"name": "m68k",')
    )
    book = json.loads((root / "manifest.json").read_text())
    book["machine"]["name"] = "m68k"
    (root / "manifest.json").write_text(json.dumps(book))


def _another_cpu(root: Path) -> None:
    book = json.loads((root / "manifest.json").read_text())
    book["machine"]["features"].append("avx9000")
    (root / "manifest.json").write_text(json.dumps(book))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "binary": (lambda r: _flip(min(r.glob("lib/*.so"))), r"lib/.*\.so: expected SHA-256"),
    "missing": (lambda r: min(r.glob("lib/*.so")).unlink(), r"\.so: expected .* found nothing"),
    "source": (lambda r: _edit(r / "cpu" / f"{NAME}.py", str.upper), r"window\.py: expected SHA"),
    "host": (lambda r: _edit(r / "_host/pool.py", str.upper), r"_host/pool\.py: expected SHA-256"),
    "no host": (lambda r: (r / "_host/pool.py").unlink(), r"pool\.py: expected .* found nothing"),
    "loader": (lambda r: _edit(r / "_prebuilt.py", str.upper), r"_prebuilt\.py: expected SHA"),
    "package": (lambda r: _edit(r / "__init__.py", str.upper), r"__init__\.py: expected SHA-256"),
    "schema": (_later_schema, "schema: expected 1, found 2"),
    "machine": (_another_machine, "machine: expected m68k, found"),
    "cpu": (_another_cpu, "found one without avx9000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tampered_files_and_other_versions_are_refused(
    built: Path, tmp_path: Path, fault: str
) -> None:
    from leapgen.runtime.bundled import Bundle, BundleError

    shutil.copytree(built / "tiny", tmp_path / "tiny")
    spoil, message = FAULTS[fault]
    spoil(tmp_path / "tiny")
    with pytest.raises(BundleError, match=message):
        Bundle(tmp_path / "tiny", "spoilt").load(NAME)


def test_a_swapped_binary_is_refused(built: Path, tmp_path: Path) -> None:
    """A whole library of another kernel under the name of this one."""
    from leapgen.runtime.bundled import Bundle, BundleError

    shutil.copytree(built / "tiny", tmp_path / "tiny")
    first, second, *_ = sorted((tmp_path / "tiny" / "lib").glob("*.so"))
    shutil.copy(second, first)
    with pytest.raises(BundleError, match=f"{first.name}: expected SHA-256"):
        Bundle(tmp_path / "tiny", "swapped").load(NAME)
