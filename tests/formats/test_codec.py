"""C functions of composed formats: the same bits as the reference, for every code and many numbers.

Texts are compiled here: a CPU's as it is, a GPU's with its qualifiers defined away; or, where an
arch has instructions for codes, as the emulator takes it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from leapgen.emit.codec import text
from leapgen.emit.codec_scales import power
from leapgen.emit.codec_text import GridText
from leapgen.formats.choices import Choices
from leapgen.formats.composed import Composed, composed
from leapgen.formats.grids import GRIDS
from leapgen.formats.philox import uniforms
from leapgen.formats.scales import SCALES, from_e8m0
from leapgen.oracle.emulator import build, ptx
from leapgen.schedule.arch import ARCHES

QUALIFIERS = ["-D__device__=", "-D__forceinline__=inline"]
VISIBLE = 'extern "C" __attribute__((visibility("default")))'
ARCHS = ("cpu", "sm80")
NARROW = [n for n, g in GRIDS.items() if not g.wide and not n.startswith("fitted")]
SCALED = [n for n, s in SCALES.items() if s.per == "value"]
RNG = np.random.default_rng(5)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def library(format: Composed, arch: str, place: Path) -> ctypes.CDLL:
    """The functions of a format, each behind a name that C sees."""
    source = place / f"{arch}.cpp"
    body = text(format, ARCHES[arch])
    outside = [
        "float o_value(int c) { return leapgen_value(c); }",
        "float o_kept(float x) { return leapgen_kept(x); }",
    ]
    draw = format.stochastic
    arguments = ("float x, float d", "x, d") if draw else ("float x", "x")
    outside.append(f"int o_code({arguments[0]}) {{ return leapgen_code({arguments[1]}); }}")
    if draw:
        outside.append("void o_draws(float* o, int b, int s, int h) { leapgen_draws(o, b, s, h); }")
    if format.scale.per != "none":
        tensor = format.scale.kind == "e4m3"
        head, call = ("float x, float t", "x, t") if tensor else ("float x", "x")
        outside += [
            f"float o_scale({head}) {{ return leapgen_scale({call}); }}",
            f"float o_inverse({head}) {{ return leapgen_inverse({call}); }}",
        ]
        if tensor:
            outside.append("float o_tensor(float x) { return leapgen_tensor(x); }")
        if format.scale.kind in ("e4m3", "e8m0"):
            outside.append("float o_spread(int c) { return leapgen_spread(c); }")
    exported = "\n".join(f'extern "C" {line}' for line in outside)
    source.write_text(f"#include <math.h>\n{body}\n{exported}\n")
    target = source.with_suffix(".so")
    qualifiers = QUALIFIERS if ARCHES[arch].gpu else []
    flags = ["-O2", "-shared", "-fPIC", "-std=c++17", *qualifiers]
    subprocess.run(["g++", *flags, str(source), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def apply(function: object, *arrays: np.ndarray, result: type = ctypes.c_float) -> np.ndarray:
    kinds = {"f": ctypes.c_float, "i": ctypes.c_int, "u": ctypes.c_int}
    function.restype = result  # type: ignore[attr-defined]
    function.argtypes = [kinds[a.dtype.kind] for a in arrays]  # type: ignore[attr-defined]
    rows = zip(*(a.tolist() for a in arrays), strict=True)
    found = [function(*row) for row in rows]  # type: ignore[operator]
    return np.array(found, np.float32 if result is ctypes.c_float else np.int64)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def numbers(top: float) -> np.ndarray:
    """Random ones over many sizes, ties and neighbours of ties, and what saturates."""
    wide = RNG.standard_normal(3000) * top * 10.0 ** RNG.integers(-4, 2, 3000)
    grid = np.linspace(-top, top, 1021)
    ties = np.round(grid * 2) / 2
    ends = np.array([0.0, -0.0, 1e-40, -1e-40, 1e36, -1e36, np.inf, -np.inf])
    return np.concatenate([wide, grid, ties, np.nextafter(ties, 9e9), ends]).astype(np.float32)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NARROW)
def test_every_code_and_many_numbers(name: str, arch: str, tmp_path: Path) -> None:
    grid = GRIDS[name]
    c = library(composed("t", "", Choices(payload=name, scale="value")), arch, tmp_path)
    codes = np.arange(1 << grid.bits)
    stored = codes.astype(np.uint8)
    if grid.dtype == "int8":
        sign = 1 << (grid.bits - 1)
        stored = ((codes ^ sign) - sign).astype(np.int8)
    found, expected = apply(c.o_value, codes), grid.decode(stored)
    same(found, expected)
    x = numbers(3.0 if grid.scaled_by_rms else grid.top)
    with np.errstate(invalid="ignore"):
        mine = grid.encode(x).astype(np.int64)
    assert (apply(c.o_code, x, result=ctypes.c_int) == mine).all()


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_codes_that_instructions_decode(arch: str, tmp_path: Path) -> None:
    """All of them, in both places of a pair, beside any other; none by its bits."""
    row = ARCHES[arch]
    kinds = [k for k in row.converts if k in GRIDS]
    lines = [GridText(GRIDS[kinds[0]], False, row).common()]
    lines += [GridText(GRIDS[k], False, row).value(k) for k in kinds]
    lines += [f'extern "C" float o_{k}(int c, int odd) {{ return {k}_of(c, odd); }}' for k in kinds]
    lines += [f'extern "C" float o1_{k}(int c) {{ return {k}(c); }}' for k in kinds]
    six = GridText(GRIDS["e2m3"], False, row).joined("joined")
    lines += [six, 'extern "C" int o_joined(int low, int high) { return joined(low, high); }']
    if "e8m0" in row.converts:
        lines += [power(GridText(GRIDS["e2m1"], False, row))]
        lines += ['extern "C" float o_e8m0(int c) { return leapgen_spread(c); }']
    assert sum(line.count("asm(") for line in lines) == 2 * len(kinds) + ("e8m0" in row.converts)
    c = ctypes.CDLL(str(build.build(ptx.rewrite("\n".join(lines)).replace('extern "C"', VISIBLE))))
    for kind in kinds:
        every = np.arange(1 << GRIDS[kind].bits)
        expected = GRIDS[kind].decode(every.astype(np.uint8))
        others = RNG.permutation(every)
        shift = 4 if GRIDS[kind].bits == 4 else 8
        for odd in (0, 1):
            pairs = (others << shift | every) if not odd else (every << shift | others)
            same(apply(getattr(c, f"o_{kind}"), pairs, np.full(len(every), odd)), expected)
        same(apply(getattr(c, f"o1_{kind}"), every), expected)
    first, second = (x.ravel() for x in np.meshgrid(np.arange(64), np.arange(64)))
    low, high = first & 15 | (second & 15) << 4, first >> 4 | second >> 4 << 2 | 0xF0
    assert (apply(c.o_joined, low, high, result=ctypes.c_int) == (first | second << 8)).all()
    if "e8m0" in row.converts:
        every = np.arange(256)
        same(apply(c.o_e8m0, every), from_e8m0(every))


def same(found: np.ndarray, expected: np.ndarray) -> None:
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all()
    assert (bits(found[~nan]) == bits(expected[~nan])).all()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("payload", ["int8", "e2m1"])
@pytest.mark.parametrize("name", SCALED)
def test_scales(name: str, payload: str, arch: str, tmp_path: Path) -> None:
    """What is stored for a size, and what numbers are multiplied with: of one-channel states."""
    scale, grid = SCALES[name], GRIDS[payload]
    c = library(composed("t", "", Choices(payload=payload, scale=name)), arch, tmp_path)
    sizes = np.abs(RNG.standard_normal(80)) * 10.0 ** RNG.integers(-38, 36, 80)
    powers = 2.0 ** np.arange(-126.0, 100.0, 7)
    sizes = np.concatenate([sizes, powers, powers * 1.5, [0.0, 1e-42, 1e-31]]).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        for size in sizes:
            other = np.float32(size * np.float32(1.7)) if scale.kind == "e4m3" else size
            x = np.zeros((scale.block or 8, 2), np.float32)
            x[0] = size, other
            parts, inverse = scale.encode(x, grid)
            stored = parts[scale.tiles()[0][0]].ravel()[:1]
            more: tuple[np.ndarray, ...] = ()
            if scale.kind == "e4m3":
                assert bits(apply(c.o_tensor, np.array([other]))) == bits(parts["tensor_scale"])
                more = (np.atleast_1d(parts["tensor_scale"]),)
            wide = stored.astype(np.float32)
            if scale.kind == "bf16":
                wide = (stored.astype(np.uint32) << 16).view(np.float32)
            assert bits(apply(c.o_scale, np.array([size]), *more)) == bits(wide)
            mine = apply(c.o_inverse, np.array([size]), *more)
            assert bits(mine) == bits(np.broadcast_to(inverse, x.shape)[0, :1])
    if scale.kind in ("e4m3", "e8m0"):
        every = np.arange(255 if scale.kind == "e8m0" else 127)
        codes = {scale.tiles()[0][0]: every[None, :].astype(np.uint8)}
        codes["tensor_scale"] = np.ones((), np.float32)
        one = scale.block
        expected = scale.decode(codes, grid, one, len(every))[0]
        assert (bits(apply(c.o_spread, every)) == bits(expected)).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_draws_and_what_is_rounded_by_them(arch: str, tmp_path: Path) -> None:
    for name in ("int8", "e2m3"):
        grid = GRIDS[name]
        choices = Choices(payload=name, scale="value", rounding="stochastic")
        place = tmp_path / name
        place.mkdir()
        c = library(composed("t", "", choices), arch, place)
        expected = uniforms(np.array([3, 70000]), np.array([1, 30]), 8, 4)
        for row, (store, head) in enumerate(((3, 1), (70000, 30))):
            got = np.zeros(32, np.float32)
            for block in range(8):
                c.o_draws(got[4 * block :].ctypes.data_as(ctypes.c_void_p), block, store, head)
            assert (expected[row] == got.reshape(4, 8).T).all()
        x = numbers(grid.top)
        draws = RNG.random(len(x), np.float32)
        mine = grid.encode(x, draws).astype(np.int64)
        assert (apply(c.o_code, x, draws, result=ctypes.c_int) == mine).all()


def test_what_cannot_be_stored(tmp_path: Path) -> None:
    c = library(composed("t", "", Choices(payload="int8", scale="value")), "cpu", tmp_path)
    x = np.array([np.nan, np.inf, -np.inf, 3e36, -2.0, 0.0], np.float32)
    found = apply(c.o_kept, x)
    assert (found == np.array([0, 1e36, -1e36, 1e36, -2, 0], np.float32)).all()
