"""`leapgen bench` as a user runs it: streams, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import made_up
from typer.testing import CliRunner, Result

from leapgen.bench import command
from leapgen.bench.contender import Contender
from leapgen.bench.contest import Contest
from leapgen.bench.results import read
from leapgen.bench.run import Request, figure7
from leapgen.cli import Exit, app
from leapgen.integrations.peers import Case


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


def test_on_the_cpu(tmp_path: Path) -> None:
    """One configuration beside one format; peers are named, not dropped."""
    file = tmp_path / "r.json"
    words = ("--arch", "cpu", "--batch", "3", "--heads", "1,2", "--repeats", "1", "--brief")
    result = bench("gdn", *words, "--against", "fp32-window,fla", "--json", str(file))
    assert result.exit_code == Exit.FINE, result.output
    assert "| leapquant-int8" in result.stdout
    assert "Not measured: fla on gdn, cannot be imported" in result.stdout
    assert "3 rows, fp32-window: " in result.stderr
    report = read(file)
    assert report.complete
    assert report.ok
    assert [r.contender for r in report.records] == ["leapquant-int8", "fp32-window"]
    assert [r.role for r in report.records] == ["subject", "format"]
    module = report.records[0].module
    assert module is not None
    assert module.path == "cpu/gdn.py"
    asked = "leapgen bench gdn --against fp32-window,fla --batch 3 --heads 1,2 --repeats 1 --brief"
    assert report.environment["command"] == asked
    assert str(tmp_path) not in file.read_text()


def test_a_saved_result_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    made_up("gdn").save(file)
    result = bench("--from", str(file))
    assert result.exit_code == Exit.FINE
    assert "6.79x" in result.stdout
    file.write_text(json.dumps({"schema": 7}))
    result = bench("--from", str(file))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "expected schema" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a spec, or ask for --figure7"),
        (("gdn", "--batch", "8,x"), "--batch: expected positive numbers"),
        (("gdn", "--batch", "0"), "--batch: expected positive numbers"),
        (("gdn", "--heads", "16"), "--heads: expected H,HV"),
        (("gdn", "--heads", "16,24"), "HV a multiple of H"),
        (("gdn", "--against", "nosuch", "--arch", "cpu"), "unknown peer `nosuch`"),
        (("gdn", "--arch", "nosuch"), "unknown architecture"),
    ],
)
def test_wrong_options(words: tuple[str, ...], message: str) -> None:
    result = bench(*words, "--json", "unused.json")
    assert result.exit_code == Exit.DIAGNOSTICS
    assert message in result.stderr
    assert result.stdout == ""


def test_missing_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "_can_plot", lambda: False)
    result = bench("gdn", "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == Exit.MISSING
    assert "leapgen[plot]" in result.stderr
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "ncu" else tool)
    result = bench("gdn", "--dram", "--arch", "cpu", "--json", str(tmp_path / "d.json"))
    assert result.exit_code == Exit.MISSING
    assert "ncu" in result.stderr


def test_figure7_is_the_papers_setting() -> None:
    asked = figure7(Request(()))
    assert asked.specs == ("gdn", "kda")
    assert asked.batches == (64, 128, 256, 512)
    assert asked.heads == ((32, 32),)
    assert asked.against[-1] == "fla"
    assert figure7(Request(("kda",), against=("fla",))).specs == ("kda",)


def test_default_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "NVIDIA H200")
    options = command.Options(
        ("gdn", "specs/kda.yaml"), "all", "1", "1,1", None, {}, "sm90", 1, False, False, True
    )
    path = command._default_file(options.request(), options)
    assert path.as_posix() == "tuning/h200/bench/gdn-kda-h1-1-dram.json"


def test_a_format_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not compile, and one that does not run; the subject's result stays."""
    compiles, runs = Contender.compile, Contest._ours

    def compile(self: Contender, *arguments: Any) -> None:
        if self.name == "fp32-window":
            raise RuntimeError("no such instruction")
        compiles(self, *arguments)

    def ours(self: Contest, who: Contender, case: Case, role: str) -> None:
        if role == "format":
            raise RuntimeError("out of memory")
        runs(self, who, case, role)

    monkeypatch.setattr(Contender, "compile", compile)
    monkeypatch.setattr(Contest, "_ours", ours)
    words = ("--arch", "cpu", "--batch", "3", "--heads", "1,2", "--repeats", "1", "--brief")
    file = tmp_path / "r.json"
    result = bench("gdn", *words, "--against", "fp32-window,bf16-window", "--json", str(file))
    assert result.exit_code == Exit.FINE, result.output
    assert "Not measured: fp32-window on gdn, no such instruction." in result.stdout
    assert "bf16-window on gdn, 1, 2 heads, 3 rows: out of memory." in result.stdout
    assert len(read(file).records) == 1
    result = bench("gdn", *words, "--format", "fp32-window", "--json", str(file))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "no such instruction" in result.stderr
