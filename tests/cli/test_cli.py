"""Commands as a user sees them: text, streams and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leapgen import load
from leapgen.cli import Exit, app
from leapgen.diagnostics import LeapgenError
from leapgen.formats.table import NAMED
from leapgen.schedule.buffers import state_bytes

ROOT = Path(__file__).resolve().parents[2]
GPUS = {"sm90", "sm100", "sm120"}


def leapgen(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def spec_with(tmp_path: Path, name: str, old: str, new: str) -> str:
    """A copy of a shipped spec with one piece of text replaced."""
    text = (ROOT / "specs" / f"{name}.yaml").read_text()
    assert old in text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


def test_version_names_the_pin() -> None:
    result = leapgen("version")
    assert result.exit_code == 0
    assert result.stdout.startswith("leapgen ")
    assert "tilelang 0.1.15" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["nosuch"],
        ["explain"],
        ["list", "colours"],
        ["build", "gdn", "--pick", "gate"],
        ["verify", "gdn", "--tokens", "511"],  # the drift check compares twice
    ],
)
def test_usage_errors(words: list[str]) -> None:
    result = leapgen(*words)
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_the_table_of_costs_has_every_spec() -> None:
    result = leapgen("list", "--table")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    specs = sorted(p.stem for p in (ROOT / "specs").glob("*.yaml"))
    assert [line.split()[0] for line in lines[1 : 1 + len(specs)]] == specs
    rows = {row["spec"]: row for row in json.loads(leapgen("list", "--table", "--json").stdout)}
    # 64 heads' payload, scales and compensators, 16 keys and corrections, a decay, two cursors.
    lightning = rows["lightning"]
    assert lightning["record_bytes"] == 2 * (128 + 128)
    head = 128 * 128 + 4 * (128 + 128) + 2 * 4 * (128 + 128) + 16 * 2 * (128 + 128)
    assert lightning["slot_bytes"] == 64 * (head + 3 * 4)
    assert lightning["fp32_bytes"] == 64 * 128 * 128 * 4
    floor = 64 * lightning["token_bytes"] / 4.4e12 * 1e6
    assert abs(lightning["floor_us"] - floor) < 0.01 * floor
    assert [row["spec"] for row in rows.values() if not set(row["compiled"]) >= GPUS] == []
    assert rows["gdn"]["record_bytes"] == 4 + 2 * 128 + 2 * 128 / 2  # a key head, two value heads


def test_the_table_of_formats_counts_bytes_as_plans_do() -> None:
    result = leapgen("list", "--formats")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    assert "19,456" in lines["leapquant-int8"]
    assert "1.1875" in lines["leapquant-int8"]
    assert "cpu|" in lines["leapquant-int8"]
    assert "cpu|" in lines["leap8"]
    assert "reference only" in lines["kvquant-8"]
    rows = json.loads(leapgen("list", "--formats", "--json").stdout)
    assert [row["name"] for row in rows] == list(NAMED)
    for row in rows:
        format, window = NAMED[row["name"]], row["cadence"] == "window"
        assert row["state_bytes"] == state_bytes(format, 128, 128)
        # 16 keys and corrections in FP16, FP32 decays, cursor and phase; paddings to 16 bytes.
        extra = 16 * 2 * 256 + 16 * 4 + 2 * 16 if window else 0
        assert 0 <= row["slot_bytes"] - row["state_bytes"] - extra <= 4 * 16


@pytest.mark.parametrize("command", ["build", "verify", "explain"])
@pytest.mark.parametrize("format", ["int8-step-ef", "kvquant-8"])
def test_a_format_without_kernels_is_refused_by_name(command: str, format: str) -> None:
    result = leapgen(command, "gdn", "--arch", "cpu", "--format", format)
    assert result.exit_code == Exit.DIAGNOSTICS
    assert f"format {format} has no kernels for cpu" in result.stderr
    assert "formats that have: leapquant-int8, bf16-window" in result.stderr


def test_so_is_a_composition_of_a_spec(tmp_path: Path) -> None:
    path = spec_with(
        tmp_path, "gdn", "window: 16}", "window: 16, scale: values32-fp32, smoothing: none}"
    )
    result = leapgen("build", path, "--arch", "sm90", "--out", str(tmp_path))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "has no kernels for sm90" in result.stderr
    assert leapgen("explain", path, "--stage", "plan").exit_code == 0


def test_loading_one_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(LeapgenError, match="format kvquant-4 has no kernels for cpu"):
        load("gdn", arch="cpu", format="kvquant-4", cache=tmp_path)


def test_a_table_takes_no_topic() -> None:
    assert leapgen("list", "specs", "--formats").exit_code == Exit.USAGE
    assert leapgen("list", "specs", "--table").exit_code == Exit.USAGE


def test_list_prints_every_topic() -> None:
    result = leapgen("list")
    assert result.exit_code == 0
    for word in ("gdn", "kda", "leapquant-int8", "sm_100a", "kimi-linear-48b-a3b"):
        assert word in result.stdout
    data = json.loads(leapgen("list", "--json").stdout)
    assert set(data) == {"specs", "formats", "archs", "models"}
    assert all(data.values())


def test_doctor_tells_what_each_arch_needs() -> None:
    result = leapgen("doctor", "--json")
    health = json.loads(result.stdout)
    assert result.exit_code == (Exit.FINE if health["ok"] else Exit.MISSING)
    assert {"cpu", "sm90", "sm100", "sm120"} <= {a["name"] for a in health["archs"]}
    for finding in health["findings"]:
        assert finding["ok"] or finding["remedy"]


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from leapgen.report import doctor

    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    health = doctor.examine()
    assert not health.ok
    text = doctor.text(health)
    assert "missing: g++" in text
    assert "needs nvcc" in text
    result = leapgen("doctor")
    assert result.exit_code == Exit.MISSING


def test_a_bad_spec_is_a_diagnostic(tmp_path: Path) -> None:
    path = spec_with(tmp_path, "kda", "gain: beta", "gain: betta")
    for command in ("explain", "build", "verify"):
        result = leapgen(command, path)
        assert result.exit_code == Exit.DIAGNOSTICS, command
        assert result.stdout == ""
        assert "did you mean `beta`?" in result.stderr
        assert "^^^^^" in result.stderr


def test_a_missing_file_is_no_traceback() -> None:
    result = leapgen("explain", "nosuch.yaml")
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "nosuch.yaml" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["build", "explain", "verify"])
def test_an_unknown_arch_names_the_known(command: str) -> None:
    result = leapgen(command, "gdn", "--arch", "sm91")
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "sm91" in result.stderr
    assert "sm90" in result.stderr


def test_module_and_script_are_one_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leapgen", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == leapgen("version").stdout
