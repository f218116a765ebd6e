"""`leapgen new`: what it writes works as it is, and nothing is ever lost by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leapgen.cli import Exit, app
from leapgen.files import create_atomic
from leapgen.spec.expression import FUNCTIONS
from leapgen.spec.loader import load
from leapgen.spec.names import RESERVED

ROOT = Path(__file__).resolve().parents[2]


def leapgen(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_starter_is_verified_as_it_is(tmp_path: Path) -> None:
    result = leapgen("new", "my_rule", "--out", str(tmp_path / "new" / "folder"))
    path = tmp_path / "new" / "folder" / "my_rule.yaml"
    assert (result.exit_code, result.stdout) == (Exit.FINE, f"{path}\n")
    assert [p.name for p in path.parent.iterdir()] == ["my_rule.yaml"]
    assert load(path).name == "my_rule"
    done = leapgen("verify", str(path), "--tokens", "512", "--rounds", "25")
    assert done.exit_code == Exit.FINE, done.stdout + done.stderr


def test_every_part_is_explained(tmp_path: Path) -> None:
    leapgen("new", "my_rule", "--out", str(tmp_path))
    text = (tmp_path / "my_rule.yaml").read_text()
    assert all(word in text for word in FUNCTIONS)
    assert all(len(line) <= 100 for line in text.splitlines()[1:])
    schema = text.splitlines()[0].partition("$schema=")[2]
    assert (tmp_path / schema).is_file()
    for part in ("inputs", "let", "recurrence", "  native", "  substeps", "  output", "state"):
        before = text.partition(f"\n{part}:")[0].splitlines()[-1]
        assert before.strip().startswith("#"), part


def test_inside_this_tree_the_schema_is_found_relative_to_the_file() -> None:
    from leapgen.report import starter

    assert starter.text("x", ROOT / "specs").startswith(
        "# yaml-language-server: $schema=schema.json"
    )
    assert "$schema=../../specs/schema.json\n" in starter.text("x", ROOT / "tests" / "spec")


@pytest.mark.parametrize("content", ["name: mine\n", ""])
def test_a_file_that_is_there_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    result = leapgen("new", "mine", "--out", str(tmp_path))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "there is such a file already" in result.stderr
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_dangling_link_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    assert leapgen("new", "mine", "--out", str(tmp_path)).exit_code == Exit.DIAGNOSTICS
    assert not (tmp_path / "elsewhere.yaml").exists()


@pytest.mark.parametrize(
    "name", ["Mine", "9lives", "my-rule", "my rule", "a/b", "../x", "", "mine.yaml", "ünï", "x__y"]
)
def test_bad_names(tmp_path: Path, name: str) -> None:
    result = leapgen("new", "--out", str(tmp_path), "--", name)
    assert result.exit_code == Exit.DIAGNOSTICS
    assert "cannot name a spec" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*sorted({"torch", "step", "import", "state"} & RESERVED), "gdn"])
def test_names_that_are_taken(tmp_path: Path, name: str) -> None:
    result = leapgen("new", name, "--out", str(tmp_path))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = leapgen("new", "mine", "--out", str(tmp_path / "file"))
    assert result.exit_code == Exit.DIAGNOSTICS
    assert result.stderr.startswith("error: ")


def test_of_many_writers_one_wins(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from leapgen.files import create_atomic\n"
        "sys.exit(0 if create_atomic(Path(sys.argv[1]), sys.argv[2] * 100_000) else 9)"
    )
    path = tmp_path / "mine.yaml"
    command = [sys.executable, "-c", script, str(path)]
    writers = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "abcd"]
    codes = [writer.wait() for writer in writers]
    assert sorted(codes) == [0, 9, 9, 9]
    assert path.read_text() == "abcd"[codes.index(0)] * 100_000
    assert list(tmp_path.iterdir()) == [path]
    assert not create_atomic(path, "again")
