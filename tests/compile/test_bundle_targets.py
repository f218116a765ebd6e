"""Bundles for GPUs, compiled by nvcc: cubins of every target, all configs that may be chosen."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leapgen
from leapgen.cli import app
from leapgen.report import bundle
from leapgen.runtime import tables
from leapgen.runtime.bundled import BundleError, Loader, key_of

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]
NUMBERS = {"sm_90a": 90, "sm_100a": 100, "sm_120a": 120, "sm_121a": 121}


RECORDS = tuple(
    tables.Record(
        K=128, V=128, H=H, HV=32, P=16, R=4, rows=rows, us=1.0, default_us=1.0,
        configs={name: {"number": H * 1000 + rows}},
    )
    for H, rows, name in ((32, 1, "step"), (32, 64, "step"), (16, 8, "step"), (16, 512, "flush"))
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("targets") / "gpus"
    words = ["build", "gdn", "--arch", "sm90,sm100,sm120", "--shape", "H=1,HV=2,K=16,V=24"]
    more = ["--format", "fp32-step", "--kernels", "reset", "--bundle", str(out)]
    result = CliRunner().invoke(app, [*words, *more])
    assert result.exit_code == 0, result.output
    return out / "gpus"


def kernels(root: Path) -> list[dict[str, Any]]:
    book = json.loads((root / "manifest.json").read_text())
    return [k for m in book["modules"] for k in m["kernels"]]


def test_cubins_are_of_their_targets(built: Path) -> None:
    found = set()
    for kernel in kernels(built):
        for target, binary in kernel["binaries"].items():
            code = (built / binary["file"]).read_bytes()
            assert code[:4] == b"\x7fELF"
            assert struct.unpack_from("<H", code, 18) == (190,)  # EM_CUDA
            flags = struct.unpack_from("<I", code, 48)[0]
            assert NUMBERS[target] in (flags & 0xFF, flags >> 8 & 0xFF), hex(flags)
            assert binary["symbol"].encode() in code
            assert len(binary["block"]) == len(binary["grid"]) == 3
            found.add((kernel["kernel"], target))
    assert found == {(k, t) for k in ("reset",) for t in NUMBERS}


def test_versions_are_those_of_the_compilers(built: Path) -> None:
    book = json.loads((built / "manifest.json").read_text())
    assert {"leapgen", "tilelang", "torch", "nvcc"} == set(book["versions"])
    assert book["versions"]["nvcc"][0].isdigit()


def test_another_target_is_refused(built: Path) -> None:
    from leapgen.runtime.bundled import Built

    first = kernels(built)[0]["binaries"]
    loader = Loader(built, "cuda")
    with pytest.raises(BundleError, match="target: expected one of sm_90a, found sm_80"):
        loader.compile(Built((), first), {"kind": "cuda", "arch": "sm_80"}, {})


@pytest.mark.parametrize("heads", [(16, 32), (32, 32), (16, 64)])
def test_every_config_that_may_be_chosen_is_compiled(
    heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tuned table of any product, for any number of rows."""
    monkeypatch.setattr(bundle, "_records", lambda *_: {"h200": RECORDS})
    request = bundle.Request(
        ("gdn",), ("sm90",), Path("unused"), shapes=({"H": heads[0], "HV": heads[1]},)
    )
    (made,) = bundle._modules(request, lambda _: None)
    wanted = {key_of(j.kernel, vars(j.shape), j.config) for j in bundle._jobs(made)}
    (shape,) = made.shapes
    found = set()
    for records in made.records.values():
        tuned = leapgen.load("gdn", arch="sm90").with_table([r.tuned for r in records])
        for rows in (None, *range(1, 65), 100, 256, 500, 512, 1000, 4096):
            for kernel in tuned.plain_kernels:
                found.add(key_of(kernel, vars(shape), tuned.config(kernel, shape, rows)))
    assert found <= wanted
    assert len(found) > len(made.module.plain_kernels)
