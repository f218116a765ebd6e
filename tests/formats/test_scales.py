"""Scales: block quantizers of the MX specification and of NVFP4, modes of E8M0, edges."""

from __future__ import annotations

import numpy as np
import pytest

from leapgen.formats import elements
from leapgen.formats.grids import GRIDS
from leapgen.formats.scales import LEAST_E4M3, SCALES, Scale, e8m0, from_e8m0

ml_dtypes = pytest.importorskip("ml_dtypes")
NAMES = tuple(n for n in SCALES if n != "none")


def payload_of(scale: Scale) -> str:
    return "int8" if scale.kind != "e8m0" else "e2m1"


def restored(name: str, payload: str, x: np.ndarray) -> tuple[np.ndarray, dict, np.ndarray]:
    """(what x is stored as, the stored scales, the codes)."""
    scale, grid = SCALES[name], GRIDS[payload]
    parts, inverse = scale.encode(x, grid)
    codes = grid.encode(x * inverse)
    return grid.decode(codes) * scale.decode(parts, grid, *x.shape[-2:]), parts, codes


# ---- E8M0

# Largest magnitude of a block of E2M1 (largest value 6 = 1.5 * 2^2) and the exponent that it gets.
# OCP MX v1.0 section 6.3: floor(log2 amax) - 2. The others by their definitions in torchao:
# ceil(log2 amax) - 2; as floor, of amax rounded to E2M1's one mantissa bit; ceil(log2(amax / 6)).
CASES = [
    (6.0, 0, 1, 0, 0),
    (4.0, 0, 0, 0, 0),
    (6.5, 0, 1, 0, 1),
    (7.0, 0, 1, 1, 1),
    (7.99, 0, 1, 1, 1),
    (8.0, 1, 1, 1, 1),
    (3.0, -1, 0, -1, -1),
    (3.5, -1, 0, 0, 0),
    (1.0, -2, -2, -2, -2),
    (1.5, -2, -1, -2, -2),
    (2.0**-100, -102, -102, -102, -102),
    (1.5 * 2.0**-126, -127, -127, -127, -127),
    (2.0**100, 98, 98, 98, 98),
]


@pytest.mark.parametrize(("place", "mode"), [(1, "floor"), (2, "ceil"), (3, "even"), (4, "rceil")])
def test_power_of_two_scales(place: int, mode: str) -> None:
    sizes = np.array([case[0] for case in CASES], np.float32)
    expected = [case[place] for case in CASES]
    assert (e8m0(sizes, GRIDS["e2m1"], mode).astype(int) - 127).tolist() == expected


@pytest.mark.parametrize("mode", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("payload", ["e4m3", "e2m3", "e3m2", "e2m1", "int8"])
def test_modes_keep_what_they_promise(mode: str, payload: str) -> None:
    grid = GRIDS[payload]
    sizes = (2.0 ** np.linspace(-60, 60, 40_001)).astype(np.float32)
    over = sizes / from_e8m0(e8m0(sizes, grid, mode)) / grid.top
    binade = 2.0 ** (grid.binade + 1) / grid.top  # how far floor may overshoot
    bounds = {"floor": (0.5 * binade, binade), "ceil": (0.25 * binade, 0.5 * binade)}
    low, high = bounds.get(mode, (0.25, binade if mode == "even" else 1.0))
    assert (over >= low * 0.999).all()
    assert (over <= high * (1 + 1e-6)).all()
    if mode == "rceil":
        assert over.min() > 0.4999


def test_e8m0_is_that_of_ml_dtypes() -> None:
    codes = np.arange(256).astype(np.uint8)
    ours, theirs = from_e8m0(codes), codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert ((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all()
    assert np.isnan(ours[255])


def test_a_block_of_zeros_has_the_least_scale() -> None:
    assert e8m0(np.zeros(1, np.float32), GRIDS["e2m1"], "floor").tolist() == [0]


def test_mx_block_by_hand() -> None:
    """A block of 32 with amax 7: scale 1 (floor), 7 saturates to 6, 2.5 ties to 2, 5 ties to 4."""
    x = np.zeros((32, 1), np.float32)
    x[:7, 0] = [7, -2.5, 5, 3.5, 0.25, -0.2, 0.75]
    back, parts, codes = restored("keys32-e8m0-floor", "e2m1", x)
    assert parts["block_scale"].tolist() == [[127]]
    assert back[:7, 0].tolist() == [6, -2, 4, 4, 0, 0, 1]
    assert codes[:7, 0].tolist() == [7, 0xC, 6, 6, 0, 8, 2]


def test_nv_block_by_hand() -> None:
    """Two blocks of 16: the larger one gets the scale 448, the other one 448/7 = 64."""
    x = np.zeros((32, 1), np.float32)
    x[0, 0], x[1, 0], x[16, 0], x[17, 0] = 42.0, 21.0, 6.0, -0.8
    back, parts, _ = restored("keys16-e4m3", "e2m1", x)
    assert GRIDS["e4m3"].decode(parts["block_scale"])[:, 0].tolist() == [448.0, 64.0]
    assert parts["tensor_scale"] == np.float32(42.0 / 6 / 448)
    assert np.allclose(back[[0, 1, 16, 17], 0], [42, 21, 6, -1], rtol=1e-6)


# ---- every scale


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(40, 24), (128, 64)])
def test_scales_have_the_tiles_that_they_say_and_bound_the_error(
    name: str, size: tuple[int, int]
) -> None:
    scale, grid = SCALES[name], GRIDS[payload_of(SCALES[name])]
    x = np.random.default_rng(0).standard_normal((2, *size)).astype(np.float32)
    back, parts, _ = restored(name, grid.name, x)
    words = {"K": size[0], "V": size[1]}
    for part, tile, dtype, _ in scale.tiles():
        dims = [-(-words[w.partition("/")[0]] // int(w.partition("/")[2] or 1)) for w in tile]
        assert parts[part].shape == (2, *dims)
        stored = {**elements.STORAGE, "uint8": np.uint8}[dtype]
        assert parts[part].dtype == stored
    step = scale.decode(parts, grid, *size) * grid.top
    inside = np.abs(x) <= step
    error = np.abs(back - x)
    assert (error <= np.where(inside, grid.gap, 0.34) * step * (1 + 1e-5)).all()
    if scale.rounding in ("up", "ceil", "rceil") or scale.kind == "fp32":
        assert (np.abs(x) <= step * (1 + 1e-6)).all()  # nothing is clipped


@pytest.mark.parametrize("name", NAMES)
def test_zeros_tiny_and_huge_numbers_stay_finite(name: str) -> None:
    grid = payload_of(SCALES[name])
    for size in (0.0, 1e-45, 1e-38, 1e-36, 1e-30, 1e-20, 1e20, 1e36):
        x = np.zeros((2, 40, 24), np.float32)
        x[0, 3, 5], x[0, 4, 5], x[1] = size, -size, size
        with np.errstate(all="raise", under="ignore"):
            back, _, _ = restored(name, grid, x)
        assert np.isfinite(back).all()
        assert (np.abs(back - x) <= 1.01 * size).all()
        assert (back[0, :3] == 0).all()
        if size > 1e-28:
            assert np.abs(back[0, 3, 5] - size) <= 0.3 * size


def test_nearest_e4m3_scales_clip_and_those_rounded_up_do_not() -> None:
    x = np.random.default_rng(1).standard_normal((4, 128, 128)).astype(np.float32)
    error = {}
    for name in ("keys32-e4m3", "keys32-e4m3-up"):
        back, parts, _ = restored(name, "int8", x)
        error[name] = ((back - x) ** 2).mean()
        assert GRIDS["e4m3"].decode(parts["block_scale"]).min() >= LEAST_E4M3
    assert error["keys32-e4m3"] > 2.5 * error["keys32-e4m3-up"]


def test_levels_are_scaled_by_the_rms() -> None:
    x = np.random.default_rng(2).standard_normal((3, 40, 24)).astype(np.float32) * 7
    parts, _ = SCALES["value"].encode(x, GRIDS["levels4"])
    assert np.allclose(parts["value_scale"], np.sqrt((x * x).mean(axis=-2)), rtol=1e-5)
    parts, _ = SCALES["keys32-fp32"].encode(x, GRIDS["levels4"])
    last = np.sqrt((x[:, 32:] ** 2).mean(axis=-2))  # the short block counts its own numbers
    assert np.allclose(parts["block_scale"][:, 1], last, rtol=1e-5)


def test_bf16_scales_round_up() -> None:
    x = np.random.default_rng(3).standard_normal((2, 40, 24)).astype(np.float32)
    parts, _ = SCALES["value-bf16"].encode(x, GRIDS["int8"])
    stored, exact = elements.from_bf16(parts["value_scale"]), np.abs(x).max(axis=-2) / 127
    assert (stored >= exact).all()
    assert (stored <= exact * (1 + 2.0**-7)).all()


# ---- against torchao, where it is installed


@pytest.mark.parametrize("mode", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("payload", ["e4m3", "e2m3", "e3m2", "e2m1"])
def test_mx_is_torchaos(mode: str, payload: str) -> None:
    torch = pytest.importorskip("torch")
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    names = {"e2m3": "fp6_e2m3", "e3m2": "fp6_e3m2"}
    types = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.float4_e2m1fn_x2}
    x = _wide()
    modes = config.ScaleCalculationMode
    rows = torch.from_numpy(np.ascontiguousarray(x.T))
    element = types.get(payload, names.get(payload))
    scale, data = mx.to_mx(rows, element, 32, getattr(modes, mode.upper()))
    _, parts, codes = restored(f"keys32-e8m0-{mode}", payload, x)
    assert (scale.view(torch.uint8).numpy() == parts["block_scale"].T).all()
    theirs = data.view(torch.uint8).numpy()
    if payload == "e2m1":
        theirs = np.stack([theirs & 15, theirs >> 4], axis=-1).reshape(x.T.shape)
    same = theirs == codes.T
    assert same.all() if payload != "e2m1" else same.mean() == 1


def test_nvfp4_is_torchaos() -> None:
    torch = pytest.importorskip("torch")
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = _wide(2.0)
    rows = torch.from_numpy(np.ascontiguousarray(x.T))
    _, parts, codes = restored("keys16-e4m3", "e2m1", x)
    tensor = torch.tensor(float(parts["tensor_scale"]))
    scale, data = nv.nvfp4_quantize(rows, per_tensor_scale=tensor)
    # torchao keeps block scales at or above 2^-6, the smallest normal; ours go down to 2^-9.
    ours, theirs = parts["block_scale"].T, scale.view(torch.uint8).numpy()
    normal = GRIDS["e4m3"].decode(ours) >= 2.0**-6
    assert normal.mean() > 0.9
    assert (ours == theirs)[normal].all()
    packed = data.view(torch.uint8).numpy()
    packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(x.T.shape)
    assert (packed == codes.T)[np.repeat(normal, 16, axis=-1)].mean() > 0.9999


def _wide(spread: float = 6.0) -> np.ndarray:
    """128 x 128 numbers whose blocks differ in size by orders of magnitude."""
    rng = np.random.default_rng(4)
    size = np.exp(spread * rng.standard_normal((8, 128)) / 3).repeat(16, axis=0)
    return (rng.standard_normal((128, 128)) * size).astype(np.float32)
