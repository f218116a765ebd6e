"""Rendered text: the same in every process, valid, tidy, and equal to what is committed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emit_specs import TEXTS, plan_of, spec_of

from leapgen import paths, pipeline
from leapgen.emit.render import render, stem
from leapgen.emit.tidy import tidy
from leapgen.formats.table import FORMATS
from leapgen.report import manifest, targets
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import PlanError

ROOT = Path(__file__).resolve().parents[2]
SPECS = [path.stem for path in paths.shipped_specs()]

RENDER_ALL = """
import hashlib
from leapgen import paths, pipeline
for path in paths.shipped_specs():
    for arch in ("cpu", "sm90"):
        source = pipeline.compile(str(path), arch).source
        print(source.path, hashlib.sha256(source.text.encode()).hexdigest(), source.digest)
"""


def test_rendering_does_not_depend_on_the_process() -> None:
    texts = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", RENDER_ALL],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 2 * len(SPECS)


@pytest.mark.parametrize("arch", ["cpu", "sm90"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", TEXTS)
def test_every_kind_of_recurrence_renders(name: str, format: str, arch: str) -> None:
    spec = spec_of(name, format)
    if "sums" in name and arch != "cpu" and not FORMATS[format].windowed:
        with pytest.raises(PlanError, match="the output sums over them"):
            plan_of(spec, arch)
        return
    plan = plan_of(spec, arch)
    source = render(plan, spec)
    functions = {n.name for n in ast.parse(source.text).body if isinstance(n, ast.FunctionDef)}
    assert "step" in plan.kernels
    for kernel in plan.kernels:
        assert {kernel, f"build_{kernel}", f"config_{kernel}"} <= functions
    assert ("flush" in functions) == plan.windowed
    assert {"allocate", "export", "import_", "payload_offset"} <= functions


@pytest.mark.parametrize("name", SPECS)
def test_committed_modules_are_what_is_rendered(name: str) -> None:
    """`generated/` is the golden set: what its table of targets says, as files or as digests."""
    chain = pipeline.compile(name, "cpu")
    folder = paths.data("generated")
    target = targets.target_of(targets.read(folder), name)
    assert "cpu" in target.files
    book = manifest.read(folder)
    for arch in target.archs(tuple(ARCHES)):
        source = render(pipeline.schedule(chain.window, chain.spec, arch), chain.spec)
        assert arch in target.files or book.digests[source.path] == source.digest
        if arch in target.files:
            path = folder / source.path
            assert path.is_file(), f"{source.path} is missing: run `leapgen build`"
            assert path.read_text() == source.text, f"{source.path} differs: run `leapgen build`"


@pytest.mark.parametrize("name", SPECS)
def test_lines_are_short(name: str) -> None:
    text = pipeline.compile(name, "cpu").source.text
    assert max(map(len, text.splitlines())) <= 120


def test_the_file_name_says_what_differs() -> None:
    spec = pipeline.parse("kda", {"gate": "lower_bound"}, "bf16-window")
    assert stem(spec) == "kda-lower_bound"
    assert stem(spec, "leapquant-int8") == "kda-lower_bound-bf16-window"
    assert stem(pipeline.parse("kda"), "leapquant-int8") == "kda"


def test_names_of_templates_are_not_taken_by_inputs() -> None:
    spec = spec_of("read before the token, with a bonus and a skip")
    text = render(plan_of(spec, "cpu"), spec).text
    assert "share_v = scalar(widen(share_in[wide(head) * share_head]))" in text
    assert "share = scalar(" in text


def test_tidy() -> None:
    assert tidy("a = 1  \n\n\n\n\nb = 2\n\n") == "a = 1\n\n\nb = 2\n"
    long = f"    x[i] = f({'a + ' * 30}b)"
    assert tidy(long) == f"    x[i] = f(\n        {'a + ' * 30}b\n    )\n"
    kept = f"# {'long ' * 30}(comment)"
    assert tidy(kept) == kept + "\n"
    quoted = f'x = f("{"(" * 90}", y)'
    assert tidy(quoted) == f'x = f(\n    "{"(" * 90}", y\n)\n'
