"""`leapgen tune` end to end on the CPU, the checks that it makes, and what loading does with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import leapgen
from leapgen import paths, pipeline
from leapgen.cli import app
from leapgen.diagnostics import LeapgenError, MissingTool
from leapgen.emit.parts import kernel_digest
from leapgen.files import write_folder
from leapgen.report.progress import aside
from leapgen.report.subjects import Subject, subject
from leapgen.runtime import host, tables
from leapgen.runtime.host import Shape
from leapgen.tune import check, command, workload
from leapgen.tune.bench import Point, Unfit
from leapgen.tune.compiled import Predicted
from leapgen.tune.device import DeviceBench

pytest.importorskip("tilelang")
SMALL = Shape(32, 16, 1, 2, 16, 4)


@pytest.fixture(scope="module")
def chain() -> pipeline.Chain:
    return pipeline.compile("gdn", "cpu")


@pytest.fixture(scope="module")
def here(chain: pipeline.Chain) -> Subject:
    return subject(chain.source, "cpu")


def test_cpu_from_nothing_then_resumed_then_loaded(tmp_path: Path) -> None:
    request = command.Request(
        "gdn", "cpu", batches=(1, 4), heads=((1, 2),), dims=(32, 16), out=tmp_path
    )
    seen: list[tuple[str, int]] = []
    done = command.tune(request, lambda text, finished: seen.append((text, finished)))
    assert done.path == tmp_path / "cpu" / "tables" / "gdn.json"
    assert [r.rows for r in tables.read(done.path)] == [1, 4]
    assert not done.outcome.unreached
    assert max(finished for _, finished in seen) >= 1
    for record in tables.read(done.path):
        assert record.us > 0
        assert 0 < record.error <= 1
        assert not record.predicted
        text = pipeline.compile("gdn", "cpu").source.text
        assert record.digest == kernel_digest(text, record.configs)
        assert record.versions["torch"] == torch.__version__
    assert "0 dropped" not in command.text(done)
    assert json.loads(json.dumps(done.data()))["records"][0]["rows"] == 4
    again = command.tune(request, lambda *_: None)
    assert again.outcome.resumed == 2
    assert tables.read(done.path) == tables.read(again.path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = leapgen.load("gdn", arch="cpu", tables=tmp_path)
    assert [t.rows for t in module.table] == [1, 4]
    assert not module.pinned
    assert leapgen.load("gdn", arch="cpu", tables=tmp_path, pin_config=True).pinned


def test_loading_names_a_stale_table(tmp_path: Path) -> None:
    record = tables.Record(32, 16, 1, 2, 16, 4, 1, {"step": {}}, 1.0, 1.0, digest="0" * 16)
    tables.merge(tables.path_of(tmp_path, "cpu", "gdn"), [record])
    with pytest.warns(tables.StaleTable, match=r"gdn\.json: 1 of 1 records are stale"):
        module = leapgen.load("gdn", arch="cpu", tables=tmp_path)
    assert module.table == ()


def test_a_module_elsewhere_needs_no_table(tmp_path: Path, chain: pipeline.Chain) -> None:
    (tmp_path / "gdn.py").write_text(chain.source.text)
    files = paths.host_files()
    write_folder(tmp_path / paths.HOST, {**files, "pool.py": files["pool.py"] + "VERSION = 2\n"})
    module = leapgen.load(tmp_path / "gdn.py", tables=tmp_path)
    assert module.table == ()


def test_rows_stand_at_mixed_cursors(chain: pipeline.Chain, here: Subject) -> None:
    given = workload.inputs(chain.spec, SMALL, "cpu")
    one = here.module.bytes_per_slot(H=1, HV=2, K=32, V=16)
    work = workload.Workload(here.module, given, SMALL, 4, cache=16 * one)
    assert work.sets == 8
    assert work.calls == 16
    found = [workload.cursors(work.pool, slots) for slots in work.slots]
    assert sorted(c for rows in found for c in rows) == sorted([*range(16)] * 2)
    assert not work.pool["phase"].any()
    work.run(here.module)()
    found = [workload.cursors(work.pool, slots) for slots in work.slots]
    assert sorted(c for rows in found for c in rows) == sorted([*range(16)] * 2)
    assert work.sound()


class Off(host.Module):
    """A candidate that does something wrong behind a right step."""

    def step(self, pool: host.Pool, slots: torch.Tensor, *given: Any, **options: Any) -> Any:
        out = super().step(pool, slots, *given, **options)
        what = self.name
        if what == "output":
            out[0] *= 1.5
        elif what == "idle" and len(slots) > 2:
            out[2] = 1.0
        elif what == "bystander":
            pool["value_scale"][1] += 1
        elif what == "cursor":
            pool["cursor"][0] = 0
        elif what == "records":
            pool["record_u"][3].mul_(0.5)
        elif what == "nan":
            out[0] = torch.nan
        return out


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("right", None),
        ("output", "output differs"),
        ("idle", "an idle row"),
        ("bystander", "a slot that no row named"),
        ("cursor", "differs from the default config's"),
        ("records", "differs"),
        ("nan", "output differs"),
    ],
)
def test_what_the_check_of_a_candidate_finds(
    chain: pipeline.Chain, here: Subject, what: str, reason: str | None
) -> None:
    default = here.module
    fields = {n: getattr(default, n) for n in default.__dataclass_fields__ if n[0] != "_"}
    candidate = Off(**{**fields, "name": what})
    object.__setattr__(candidate, "_tag", default._tag)
    object.__setattr__(candidate, "_made", default._made)  # what is compiled is the same
    given = workload.inputs(chain.spec, SMALL, "cpu")
    arguments = (chain.spec, chain.plan, default, candidate, given, SMALL)
    if reason is None:
        assert check.against_default(*arguments) == 0
    else:
        with pytest.raises(Unfit, match=reason):
            check.against_default(*arguments)


def test_the_oracle_refuses_a_wrong_default(chain: pipeline.Chain, here: Subject) -> None:
    assert 0 < check.against_oracle(chain.spec, chain.plan, here, SMALL) <= 1
    halved = Shape(32, 16, 1, 2, 8, 4)  # the model's window is 8, the module's 16
    bench = DeviceBench(chain, here.module, "cpu", 0, subject=here)
    assert 0 < bench.check(halved, {"step": {}, "flush": {}}, thorough=True) <= 1
    wrong = replace(here.module, kernels={**here.module.kernels})
    wrong.kernels["flush"] = here.module.kernels["reset"]  # type: ignore[index]
    with pytest.raises(Unfit, match="bound"):
        check.against_oracle(chain.spec, chain.plan, replace(here, module=wrong), SMALL)


def test_a_config_that_a_builder_does_not_take(chain: pipeline.Chain, here: Subject) -> None:
    bench = DeviceBench(chain, here.module, "cpu", 0, subject=here)
    assert bench.knobs("step") == frozenset()
    with pytest.raises(Unfit, match="unexpected keyword"):
        bench.check(SMALL, {"step": {"threads": 1}}, thorough=False)


def test_where() -> None:
    assert command.locate("cpu").folder == "cpu"
    there = command.locate("sm100")
    assert (there.folder, there.name, there.predicted) == ("sm100", "B200", True)
    there = command.locate("rtx-pro-6000")
    assert (there.folder, there.arch.name) == ("rtx-pro-6000", "sm120")
    with pytest.raises(LeapgenError, match="unknown GPU 'h2000'; known: auto, cpu"):
        command.locate("h2000")
    if not torch.cuda.is_available():
        with pytest.raises(MissingTool, match="no GPU here"):
            command.locate("auto")


def test_compiling_only_writes_a_journal_and_no_table(tmp_path: Path) -> None:
    picked = ["--gpu", "cpu", "--compile", "--batch", "4", "--heads", "1,2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["tune", "gdn", *picked])
    assert result.exit_code == 0, result.output
    assert "nothing was run" in result.stdout
    assert "1 candidates, 1 to race" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"{tmp_path}/cpu/journal/gdn.jsonl, ")
    lines = (tmp_path / "cpu" / "journal" / "gdn.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"]["what"] for line in lines} == {"usage"}
    assert not (tmp_path / "cpu" / "tables").exists()


def test_what_compilation_depends_on(chain: pipeline.Chain, here: Subject) -> None:
    device = DeviceBench(chain, here.module, "a", 1, "580", subject=here)
    other = Predicted(chain, here.module, "b", 2)
    assert device.compilation("step") == other.compilation("step")
    assert device.compilation("step") != device.compilation("flush")
    assert device.identity != other.identity


@pytest.mark.parametrize(
    ("option", "value"), [("--batch", "1,x"), ("--batch", "0"), ("--heads", "32"), ("--heads", "")]
)
def test_usage(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["tune", "gdn", option, value])
    assert result.exit_code == 2
    assert option in result.stderr


def test_compiler_noise_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "journal" / "x.log"
    with pytest.raises(ValueError, match="inside"), aside(log):  # noqa: PT012
        os.write(2, b"a warning of a library\n")
        raise ValueError("inside")
    os.write(2, b"after\n")
    assert log.read_text() == "a warning of a library\n"
    assert capfd.readouterr().err == "after\n"


def test_tuners_take_turns_on_a_device_and_do_not_pay_for_it() -> None:
    chain = pipeline.compile("gdn", "cpu", format="fp32-window")
    on = subject(chain.source, "cpu")
    mine, other = (DeviceBench(chain, on.module, "here", 1, subject=on) for _ in range(2))
    point = Point(Shape(16, 8, 1, 1, 4, 0), 2)
    held, seen = threading.Event(), []

    def second() -> None:
        held.wait()
        before = other.clock()
        with other.timer(point):
            seen.append(("second", other.clock() - before))

    waiting = threading.Thread(target=second)
    waiting.start()
    with mine.timer(point):
        held.set()
        time.sleep(1.0)
        seen.append(("first", 0.0))
    waiting.join()
    assert [name for name, _ in seen] == ["first", "second"]
    assert seen[1][1] < 0.9  # its own work, not the second that it waited


def test_no_more_at_a_time_than_this_process_may_use() -> None:
    """Of the machine's CPUs, those that `taskset` or a container leaves."""
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from leapgen.report.workers import Workers, cores\n"
        "print(cores(), Workers().count)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]
