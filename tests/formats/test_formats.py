"""The table, the codes of each family, and the state that a stored one stands for."""

from __future__ import annotations

import numpy as np
import pytest
from format_samples import KINDS, states

from leapgen.formats import elements
from leapgen.formats.base import FormatError
from leapgen.formats.integer import ZERO_COLUMN, Integer
from leapgen.formats.table import FORMATS, format_named

INT8 = FORMATS["leapquant-int8"]
ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_says_what_its_codes_are(name: str) -> None:
    row = format_named(name)
    assert row.name == name
    assert row.bits == row.dtype.bits
    assert row.payload_bytes(128, 64) == 128 * 64 * row.bits // 8
    assert (row.factors is not None) or row.compensators == 0


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(FormatError, match=r"'int3'.*leapquant-int8, bf16-window, fp32-window"):
        format_named("int3")


def test_a_specs_choices_override_the_row() -> None:
    assert INT8.with_state(None, None) == INT8
    assert INT8.with_state("none", 2).key_scale is None
    assert INT8.with_state("none", 2).compensators == 2
    assert INT8.with_state("mean_abs_sqrt", None) == INT8


@pytest.mark.parametrize(
    ("name", "smoothing", "compensators", "message"),
    [
        ("leapquant-int8", "max", None, "unknown smoothing 'max'"),
        ("leapquant-int8", None, -1, "0 or more"),
        ("fp32-window", "mean_abs_sqrt", None, "no smoothing"),
        ("bf16-window", None, 2, "no compensators"),
    ],
)
def test_a_row_refuses_what_it_has_not(
    name: str, smoothing: str | None, compensators: int | None, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        format_named(name).with_state(smoothing, compensators)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_within_the_rows_noise(name: str, kind: str) -> None:
    row, S = format_named(name), states(kind)
    codes = row.encode(S)
    back = row.decode(codes)
    assert np.isfinite(back).all()
    if isinstance(row, Integer):
        assert codes.payload.min() >= -row.top
        smooth = np.float32(1) if codes.key_scale is None else codes.key_scale[..., :, None]
        peak = np.abs(S / smooth).max(axis=-2, keepdims=True)
        bound = row.noise() * 1.0001 * peak * smooth + ZERO_COLUMN * smooth
    else:
        bound = row.noise() * np.abs(S)
    assert (np.abs(back - S) <= bound + 1e-37).all()


def test_every_code_occurs_and_decodes_exactly() -> None:
    row = INT8.with_state("none", 0)
    S = np.tile(np.arange(-127, 128, dtype=np.float32)[:, None], (1, 4)) * np.float32(0.5)
    codes = row.encode(S)
    assert (codes.payload[:, 0] == np.arange(-127, 128)).all()
    assert (row.decode(codes) == S).all()


def test_rounding_is_to_nearest_even() -> None:
    row = INT8.with_state("none", 0)
    S = np.array([[127.0], [0.5], [1.5], [2.5], [-0.5], [-1.5]], np.float32)
    assert row.encode(S).payload[:, 0].tolist() == [127, 0, 2, 2, 0, -2]


def test_bf16_agrees_with_ml_dtypes() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.array([0.0, -0.0, np.inf, -np.inf], np.float32)])
    ours = elements.to_bf16(x)
    with np.errstate(invalid="ignore"):
        theirs = x.astype(ml_dtypes.bfloat16)
    nan = np.isnan(x)
    assert (ours[~nan] == theirs.view(np.uint16)[~nan]).all()
    assert np.isnan(elements.from_bf16(ours)[nan]).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_stored_elements_stay_finite(dtype: str) -> None:
    x = np.array([1e30, -1e30, 3.4e38, -70000.0, 1e-30], np.float32)
    back = elements.decode(dtype, elements.encode(dtype, x))
    assert np.isfinite(back).all()
    assert (np.abs(back) <= elements.LARGEST[dtype]).all()
