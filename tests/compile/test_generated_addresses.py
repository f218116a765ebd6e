"""No address of a generated kernel contains a product that 32 bits may not hold."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from generated_modules import ARCHES, FRAGMENT, GENERATED, PLAIN, SPECS, bench, file_of, in_words

from leapgen import paths
from leapgen.report.tir_narrow import narrow_products_lowered

DEFAULT = {("sm90/kda.py", FRAGMENT), ("sm90/gdn.py", PLAIN)}
MODULES = sorted(
    {p.relative_to(GENERATED).as_posix() for p in GENERATED.glob("sm*/*.py")}
    | {f"{arch}/{name}.py" for arch, name in itertools.product(ARCHES, SPECS)}
)


def findings(path: Path, dims: tuple[int, int], *kernels: str) -> list[str]:
    """Of all kernels unless some are named."""
    at = bench(path, dims)
    return [
        f"{kernel}: {found}"
        for kernel in kernels or at.module.kernels
        for found in narrow_products_lowered(at.counted(kernel).lowered.device)
    ]


@pytest.mark.parametrize(
    ("path", "dims"),
    [
        pytest.param(*which, marks=() if which in DEFAULT else pytest.mark.slow)
        for which in itertools.product(MODULES, (FRAGMENT, PLAIN))
    ],
    ids=in_words,
)
def test_addresses_are_wide_enough(path: str, dims: tuple[int, int]) -> None:
    arch, file = path.split("/")
    assert findings(file_of(file.removesuffix(".py"), arch), dims) == []


def test_narrow_slots_and_strides_are_noticed(tmp_path: Path) -> None:
    text = (GENERATED / "sm90" / "gdn.py").read_text()
    (tmp_path / "gdn.py").write_text(text.replace("int64", "int32"))
    shutil.copytree(GENERATED / "sm90" / paths.HOST, tmp_path / paths.HOST)
    found = findings(tmp_path / "gdn.py", PLAIN, "reset")
    assert any(line.startswith("reset: payload: slot") for line in found), found
