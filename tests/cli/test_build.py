"""`leapgen build`: what it writes, what it leaves alone, what `--check` says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leapgen import paths
from leapgen.cli import Exit, app
from leapgen.emit.parts import kernel_digest
from leapgen.report import manifest

ROOT = Path(__file__).resolve().parents[2]


def build(out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["build", *words, "--out", str(out)])


def rows(result: Result) -> dict[str, str]:
    return {m["path"]: m["state"] for m in json.loads(result.stdout)["modules"]}


def test_two_specs_two_archs(tmp_path: Path) -> None:
    words = ("gdn", "kda", "--arch", "cpu,sm100", "--json")
    result = build(tmp_path, *words)
    assert result.exit_code == 0
    files = ["gdn.py", "kda.py", *(f"_host/{name}" for name in paths.host_files())]
    names = {f"{arch}/{file}" for arch in ("cpu", "sm100") for file in files}
    assert rows(result) == dict.fromkeys([*names, "MANIFEST.json"], "new")
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.py")} == names
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.py")}
    assert set(rows(build(tmp_path, *words)).values()) == {"same"}
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.py")} == times


def test_picks_and_formats_name_the_file(tmp_path: Path) -> None:
    words = ("kda", "--arch", "cpu", "--pick", "gate=lower_bound", "--format", "bf16-window")
    assert build(tmp_path, *words).exit_code == 0
    assert (tmp_path / "cpu" / "kda-lower_bound-bf16-window.py").is_file()


def test_all_choices_of_one_pick(tmp_path: Path) -> None:
    words = ("gdn", "--arch", "cpu", "--all-choices", "--pick", "norm=l2", "--pick", "scale=rsqrt")
    assert build(tmp_path, *words).exit_code == 0
    stems = {p.stem for p in (tmp_path / "cpu").glob("gdn*.py")}
    assert {"gdn", "gdn-raw2", "gdn-log_decay", "gdn-log_decay-activated"} <= stems
    assert len(stems) == 6


def test_check_prints_a_diff_and_writes_nothing(tmp_path: Path) -> None:
    words = ("gdn", "--arch", "cpu")
    build(tmp_path, *words)
    assert build(tmp_path, *words, "--check").exit_code == 0
    module = tmp_path / "cpu" / "gdn.py"
    edited = module.read_text().replace("import", "IMPORT", 1)
    module.write_text(edited)
    result = build(tmp_path, *words, "--check")
    assert result.exit_code == Exit.FAILED
    assert "-" in result.stdout
    assert "IMPORT" in result.stdout
    assert module.read_text() == edited
    module.unlink()
    assert build(tmp_path, *words, "--check").exit_code == Exit.FAILED
    assert not module.exists()


def test_the_host_beside_modules_is_mended(tmp_path: Path) -> None:
    words = ("gdn", "--arch", "cpu")
    build(tmp_path, *words)
    host = tmp_path / "cpu" / "_host"
    (host / "pool.py").write_text("x = 1\n")
    (host / "steps.py").unlink()
    (host / "gone.py").write_text("x = 1\n")
    found = rows(build(tmp_path, *words, "--check", "--json"))
    states = {Path(path).name: state for path, state in found.items() if "_host" in path}
    assert states.pop("pool.py") == "different"
    assert states.pop("steps.py") == "missing"
    assert states.pop("gone.py") == "stale"
    assert set(states.values()) == {"same"}
    found = rows(build(tmp_path, *words, "--json"))
    assert found["cpu/_host/gone.py"] == "removed"
    assert paths.python_files(host) == paths.host_files()


def test_an_unknown_pick_is_a_diagnostic(tmp_path: Path) -> None:
    result = build(tmp_path, "gdn", "--pick", "gate=softpluss")
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "softplus" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_bad_spec_among_good_ones_writes_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text((ROOT / "specs" / "gdn.yaml").read_text().replace("gain: beta", "gain: bet"))
    result = build(tmp_path / "out", "gdn", str(bad), "--arch", "cpu")
    assert result.exit_code == Exit.DIAGNOSTICS
    assert not (tmp_path / "out").exists()


def test_compiling_without_nvcc_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leapgen.report import subjects

    found = shutil.which
    monkeypatch.setattr(
        subjects.shutil, "which", lambda tool: None if tool == "nvcc" else found(tool)
    )
    result = build(tmp_path, "gdn", "--arch", "sm90", "--compile")
    assert result.exit_code == Exit.MISSING
    assert "nvcc" in result.stderr
    assert result.stdout == ""


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_compiled_kernels_are_in_the_table_and_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leapgen.report import compiled

    monkeypatch.setattr(compiled, "shapes", lambda spec: {(64, 32, 2, 4): ["one"]})
    result = build(
        tmp_path, "gdn", "--arch", "sm90", "--format", "fp32-window", "--compile", "--json"
    )
    assert result.exit_code == 0, result.stderr
    kernels = json.loads(result.stdout)["kernels"]
    assert {k["kernel"] for k in kernels} == {
        "step", "flush", "materialize", "load_state", "copy", "reset", "verify"
    }  # fmt: skip
    step = next(k for k in kernels if k["kernel"] == "step")
    assert step["spills"] == step["stack"] == 0
    assert 0 < step["registers"] <= 255
    book = manifest.read(tmp_path)
    path = "sm90/gdn-fp32-window.py"
    records = book.resources[path]
    text = (tmp_path / path).read_text()
    assert {r["kernel"]: r["digest"] for r in records} == {
        k["kernel"]: kernel_digest(text, (k["kernel"],)) for k in kernels
    }
    # What has not changed is not assembled again: the records stand.
    monkeypatch.setattr(compiled, "needs", None)
    again = build(tmp_path, "gdn", "--arch", "sm90", "--format", "fp32-window", "--compile")
    assert again.exit_code == 0, again.stderr
    assert manifest.read(tmp_path) == book


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_killed_build_leaves_old_files_or_new_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leapgen", "build", "gdn", "kda", "--out", str(tmp_path)]
    subprocess.run([*command, "--format", "fp32-window"], check=True, capture_output=True)
    for path in tmp_path.rglob("*.py"):
        path.write_text(f"old {path.name}\n")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if any(map(replaced, tmp_path.rglob("*.py"))):
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    parts = list(tmp_path.rglob(".*.part-*"))  # folders in which files are written, not yet theirs
    for path in tmp_path.rglob("*.py"):
        if any(path.is_relative_to(part) for part in parts):
            continue
        text = path.read_text()
        assert text == f"old {path.name}\n" or (text.endswith("\n") and compiles(text)), path


def replaced(path: Path) -> bool:
    try:
        return not path.read_text().startswith("old")
    except FileNotFoundError:  # a part that has just become the file
        return True


def compiles(text: str) -> bool:
    compile(text, "generated", "exec", dont_inherit=True)
    return True
