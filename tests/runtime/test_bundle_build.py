"""How bundles are made: options, what is compiled, and builds that fail or are killed."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from leapgen.cli import Exit, app
from leapgen.files import new_folder
from leapgen.report import binaries, bundle
from leapgen.runtime import bundled, host, launches

WORDS = ["gdn", "--format", "fp32-window", "--arch", "cpu", "--shape", "H=1,HV=2,K=16,V=24"]


def killed(command: list[str], target: Path) -> None:
    """Starts a build, kills it when it has written a kernel, and looks at what is left."""
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 100
    while not list(target.parent.glob(".tiny.part-*/tiny/lib/*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not target.exists()
    assert list(target.parent.glob(".tiny.part-*"))
    with new_folder(target) as folder:
        assert [p.name for p in target.parent.iterdir()] == [folder.name]
    assert [p.name for p in target.parent.iterdir()] == ["tiny"]


def test_a_killed_build_leaves_nothing(tmp_path: Path) -> None:
    """Killed at a moment that is chosen: a kernel is on disk, nothing else."""
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from leapgen.report import bundle\n"
        "def hang(modules, jobs, lib, step):\n"
        "    bundle.bundle_files.put(lib / 'kernel.so', b'half')\n"
        "    time.sleep(600)\n"
        "bundle.prepare, bundle._modules, bundle._compiled = int, lambda *_: (), hang\n"
        f"bundle.build(bundle.Request(('gdn',), ('cpu',), Path({str(tmp_path / 'tiny')!r})), print)"
    )
    killed([sys.executable, "-c", script], tmp_path / "tiny")


@pytest.mark.slow
def test_a_killed_command_leaves_nothing(tmp_path: Path) -> None:
    words = [*WORDS, "--bundle", str(tmp_path / "tiny")]
    killed([sys.executable, "-m", "leapgen", "build", *words], tmp_path / "tiny")


def fill(path: Path, error: Exception | None = None) -> None:
    with new_folder(path) as folder:
        assert folder.is_dir()
        if error is not None:
            raise error


def test_a_folder_that_fails_or_is_held(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        fill(tmp_path / "a", ValueError("no"))
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "b"):
        fill(tmp_path / "c")
        assert len(list(tmp_path.glob(".b.part-*"))) == 1
    with pytest.raises(FileExistsError, match="b: expected a name that nothing has"):
        fill(tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_the_first_of_two_builds_wins(tmp_path: Path) -> None:
    """The second one removes nothing of the first, and is refused when it ends."""
    second = new_folder(tmp_path / "a")
    with new_folder(tmp_path / "a"):
        second.__enter__()
        assert len(list(tmp_path.glob(".a.part-*"))) == 2
    with pytest.raises(FileExistsError, match="a: expected"):
        second.__exit__(None, None, None)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bundle", "x-y"], "expected a folder named as a Python package, found x-y"),
        (["--bundle", "b", "--shape", "H=0"], "H"),
        (["--bundle", "b", "--shape", "H=1,J=2"], "`J=2`: write numbers of H, HV"),
        (["--bundle", "b", "--model", "nobody"], "--model: expected one of .*, found nobody"),
        (["--bundle", "b", "--kernels", "steps"], "--kernels: expected some of step, .* steps"),
        (["--bundle", "b", "--check"], "no meaning with --check"),
        (["--model", "nobody"], "belong to it"),
    ],
)
def test_bad_options(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["build", "gdn", "--arch", "cpu", *words])
    assert result.exit_code in (Exit.DIAGNOSTICS, Exit.USAGE)
    assert re.search(message, re.sub(r"[\s│]+", " ", result.output)), result.output
    assert not list(tmp_path.iterdir())


def test_grids_are_numbers_of_scalars() -> None:
    values = {"num_rows": 5}
    tree = ["min", ["mul", "num_rows", 32], 528]
    assert launches.number(tree, values) == 160
    assert launches.number(["floordiv", ["add", "num_rows", 3], 4], values) == 2
    with pytest.raises(binaries.NoBinary, match="grid: one of Add"):
        binaries.tree(1.5)


def test_published_models_are_grouped_by_their_choices() -> None:
    request = bundle.Request(("gdn",), ("cpu",), Path("unused"))
    (picks, sizes), *_ = bundle._groups("gdn", request)
    assert all({"H", "HV", "K", "V"} == set(size) for size in sizes)
    assert len(sizes) == len({tuple(size.items()) for size in sizes})
    assert picks["gate"]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A backend and builders that note what a pool may launch."""

    kernels: set[str]
    device: str = "cpu"

    def compile(self, func: Any, target: Any, pass_configs: Any) -> Any:
        return print

    def of(self, module: host.Module) -> host.Module:
        def note(name: str) -> Any:
            def build(*numbers: int, **config: Any) -> Any:
                shape = vars(host.Shape(*numbers))
                self.kernels.add(bundled.key_of(name, shape, config))
                return bundled.Built((), {})

            return build

        made = {n: dataclasses.replace(k, build=note(n)) for n, k in module.kernels.items()}
        return dataclasses.replace(module, kernels=made, backend=self)


@pytest.mark.parametrize("drafts", [0, 4])
def test_all_that_a_pool_prepares_is_compiled(drafts: int) -> None:
    size = {"H": 1, "HV": 2, "K": 16, "V": 24, "drafts": drafts}
    request = bundle.Request(("gdn",), ("cpu",), Path("unused"), shapes=(size,))
    (made,) = bundle._modules(request, lambda _: None)
    jobs = {bundled.key_of(j.kernel, vars(j.shape), j.config) for j in bundle._jobs(made)}
    asked = Asked(set())
    module = asked.of(made.module)
    module.prepare(module.allocate(1, **size))
    assert asked.kernels == jobs
    assert len(jobs) == (7 if drafts else 6)


def test_tuned_flushes_of_pools_with_drafts_are_compiled() -> None:
    """Of every number of rows, as a pool prepares them."""
    size = {"H": 1, "HV": 2, "K": 16, "V": 24, "drafts": 4}
    request = bundle.Request(("gdn",), ("cpu",), Path("unused"), shapes=(size,))
    (made,) = bundle._modules(request, lambda _: None)
    shape = made.module.shape(**size)
    table = [host.Tuned(shape, r, {"flush": {"min_blocks": b}}) for r, b in ((1, 2), (64, 4))]
    records = {"device": tuple(SimpleNamespace(tuned=t) for t in table)}
    jobs = bundle._jobs(dataclasses.replace(made, records=records))
    keys = {bundled.key_of(j.kernel, vars(j.shape), j.config) for j in jobs}
    asked = Asked(set())
    module = asked.of(made.module).with_table(table)
    module.prepare(module.allocate(1, **size))
    assert asked.kernels <= keys
    for blocks in (2, 4):
        key = bundled.key_of("flush", vars(shape), {"min_blocks": blocks})
        assert key in asked.kernels
