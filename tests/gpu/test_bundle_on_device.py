"""A bundle on a GPU, where nothing can compile: the bits of the module that TileLang compiles."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import leapgen
from leapgen.cli import app
from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.runtime.module import present_arch

SIZES = {"H": 16, "HV": 32}
ROWS = (1, 8, 64)
TOKENS = 19  # a window of 16 closes

ALONE = """
import sys
for name in ("leapgen", "tilelang", "tvm", "tvm_ffi"):
    sys.modules[name] = None  # importing it now raises ImportError
sys.path.insert(0, sys.argv[1])
import torch
import gpu_bundle

module = gpu_bundle.load("gdn")
pool = module.allocate(64, **{sizes})
module.prepare(pool)
for rows, given in torch.load("expected.pt", map_location="cuda").items():
    slots = torch.arange(rows, dtype=torch.int32, device="cuda")
    module.reset(pool, slots)
    for inputs, out in given["steps"]:
        assert torch.equal(module.step(pool, slots, *inputs, check=True), out), rows
    assert torch.equal(module.materialize(pool, slots), given["state"]), rows
print("fine")
"""


def inputs_of(module: Module, pool: Pool, rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        torch.randn(i.sizes((rows,), pool.shape), generator=generator, device="cuda").to(
            DTYPES[i.dtype]
        )
        for i in module.inputs
    ]


def record(module: Module, rows: int) -> dict[str, Any]:
    """Inputs and outputs of steps through a window's end, and the state after them."""
    pool = module.allocate(64, **SIZES)
    slots = torch.arange(rows, dtype=torch.int32, device="cuda")
    module.reset(pool, slots)
    steps = []
    for token in range(TOKENS):
        inputs = inputs_of(module, pool, rows, token)
        steps.append((inputs, module.step(pool, slots, *inputs)))
    return {"steps": steps, "state": module.materialize(pool, slots)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a bundle was moved to, with what the module itself computes."""
    folder = tmp_path_factory.mktemp("bundle")
    arch, shape = present_arch().name, ",".join(f"{n}={v}" for n, v in SIZES.items())
    words = ["build", "gdn", "--arch", arch, "--shape", shape]
    result = CliRunner().invoke(app, [*words, "--bundle", str(folder / "here" / "gpu_bundle")])
    assert result.exit_code == 0, result.output
    (folder / "here" / "gpu_bundle").rename(folder / "moved")
    module = leapgen.load("gdn")
    torch.save({rows: record(module, rows) for rows in ROWS}, folder / "moved" / "expected.pt")
    return folder / "moved"


@pytest.fixture
def bare(built: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bundle's package in this process, where compiling raises."""
    import tilelang

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("TileLang was asked to compile")

    monkeypatch.setattr(tilelang, "compile", refuse)
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(built)
    return importlib.import_module("gpu_bundle")


@pytest.fixture
def expected(built: Path) -> dict[int, Any]:
    found: dict[int, Any] = torch.load(built / "expected.pt", map_location="cuda")
    return found


def test_alone_with_no_program_and_no_leapgen(built: Path) -> None:
    script = ALONE.replace("{sizes}", str(SIZES))
    command = [sys.executable, "-I", "-c", script, str(built)]
    done = subprocess.run(command, cwd=built, env={"PATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "fine\n"


def played(bundle: Any, given: Sequence[Any], rows: int, how: str) -> torch.Tensor:
    """The state after the steps, each of which is compared."""
    module = bundle.load("gdn")
    pool = module.allocate(64, **SIZES)
    slots = torch.arange(rows, dtype=torch.int32, device="cuda")
    module.reset(pool, slots)
    module.prepare(pool)
    fixed = [tensor.clone() for tensor in given[0][0]]
    out = torch.empty_like(given[0][1])
    bound = bundle.BoundStep(module, pool, slots, fixed, out)
    graph = torch.cuda.CUDAGraph()
    if how == "graph":
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            bound.run()
    for inputs, right in given:
        for place, tensor in zip(fixed, inputs, strict=True):
            place.copy_(tensor)
        graph.replay() if how == "graph" else bound.run()
        assert torch.equal(out, right)
    state: torch.Tensor = module.materialize(pool, slots)
    return state


@pytest.mark.parametrize("how", ["bound", "graph"])
@pytest.mark.parametrize("rows", ROWS)
def test_bound_and_captured(bare: Any, expected: dict[int, Any], rows: int, how: str) -> None:
    state = played(bare, expected[rows]["steps"], rows, how)
    assert torch.equal(state, expected[rows]["state"])


def test_another_input_gives_another_state(bare: Any, expected: dict[int, Any]) -> None:
    """The comparisons above can fail."""
    steps = expected[8]["steps"]
    steps[4][0][2].mul_(1.01)
    with pytest.raises(AssertionError):
        played(bare, steps, 8, "bound")


def test_a_new_thread_launches(bare: Any, expected: dict[int, Any]) -> None:
    """The device's context is made current where torch has not done it yet."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(played, bare, expected[8]["steps"], 8, "bound").result()
    assert torch.equal(state, expected[8]["state"])


def test_what_is_not_compiled_is_refused(bare: Any) -> None:
    module = bare.load("gdn")
    with pytest.raises(ValueError, match=r"the bundle has K=128 V=128 H=16 HV=32 .* not .* HV=16"):
        module.allocate(1, H=16)
    pool = module.allocate(1, **SIZES)
    slots = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(bare.BundleError, match="reset: expected one of"):
        module.with_configs(reset={"threads": 64}).reset(pool, slots)
