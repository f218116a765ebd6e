"""Compositions: which make sense, what each stores, and that they stand for what was stored."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
from format_samples import KINDS, squared, states

from leapgen.formats import choices as rules
from leapgen.formats.base import FormatError
from leapgen.formats.choices import Choices
from leapgen.formats.composed import Composed, composed
from leapgen.formats.grids import GRIDS
from leapgen.formats.philox import uniforms
from leapgen.formats.presets import KERNELS, PRESETS
from leapgen.formats.table import FORMATS, INTEGERS, NAMED, chosen, format_named, format_spelled
from leapgen.schedule.buffers import Shape, state_bytes

SPACE = {
    "cadence": ("window", "step"),
    "payload": ("bf16", "fp16", "e4m3", "int8", "int6", "int5", "int4", "e2m3", "e2m1", "levels5"),
    "scale": (
        "none",
        "head",
        "value",
        "key-bf16",
        "keys32-e8m0-even",
        "keys16-e4m3-up",
        "values32-fp32",
    ),
    "transform": ("none", "mean_abs_sqrt", "rms_power", "rotation"),
    "compensators": (0, 3),
    "factors": ("none", "fp16", "bf16", "int8"),
    "rounding": ("nearest", "stochastic"),
}


def pairwise() -> list[Choices]:
    """Valid compositions in which every valid pair of words of two choices occurs."""
    every = (
        Choices(**dict(zip(SPACE, w, strict=True))) for w in itertools.product(*SPACE.values())
    )
    left: dict[tuple[object, ...], Choices] = {}
    for c in every:
        if not rules.refusals(c):
            for a, b in itertools.combinations(SPACE, 2):
                left.setdefault((a, getattr(c, a), b, getattr(c, b)), c)
    return list(dict.fromkeys(left.values()))


SAMPLE = pairwise()


def store(row: Composed, S: np.ndarray, times: int = 1) -> np.ndarray:
    """A state after some stores, the fit warm from the second one on."""
    old = row.no_factors(len(S), row.compensators, S.shape[-1])
    for count in range(times):
        draws = uniforms(np.full(len(S), count), np.arange(len(S)), *S.shape[-2:])
        stored = row.store(S, old, draws if row.stochastic else None)
        old = stored.comp_u
    return row.restore(stored)


def test_the_sample_is_of_use() -> None:
    assert len(SAMPLE) > 40
    for name, words in SPACE.items():
        assert {getattr(c, name) for c in SAMPLE} == set(words)


@pytest.mark.parametrize("c", SAMPLE, ids=lambda c: "-".join(str(v) for v in vars(c).values()))
def test_compositions_stand_for_what_they_stored(c: Choices) -> None:
    """A round trip errs by what the payload's width allows, and stores what it says."""
    row, S = composed("sample", "", c), states("rank4", 64, 32) + states("1", 64, 32)
    assert rules.refusals(row.choices) == ()
    error = squared(store(row, S, 2) - S) / squared(S)
    allowed = {16: 1e-5, 8: 4e-3, 6: 4e-3, 5: 2e-2, 4: 8e-2}[row.bits]
    assert (error < allowed).all()
    shape = Shape(64, 32, 1, 1, 16, row.compensators)
    old = row.no_factors(len(S), row.compensators, 32)
    draws = uniforms(np.zeros(3), np.arange(3), 64, 32)
    stored = row.store(S, old, draws if row.stochastic else None).parts
    packed = row.packed()
    for part in row.parts():
        if part.role == "rounding" or part.name.removesuffix("_high") in packed:
            continue
        assert stored[part.name].size == len(S) * int(np.prod([shape.size(w) for w in part.tile]))


@pytest.mark.parametrize(
    ("changed", "choice", "message"),
    [
        ({"payload": "int7"}, "payload", "unknown payload 'int7'"),
        ({"payload": "bf16", "scale": "value"}, "scale", "range of its own"),
        ({"payload": "int4"}, "scale", "cannot do without"),
        ({"payload": "levels4", "scale": "keys32-e8m0-floor"}, "scale", "needs the RMS"),
        ({"transform": "rotation"}, "transform", "no gain"),
        ({"payload": "int8", "scale": "key", "transform": "rms_power"}, "transform", "smoothing"),
        ({"payload": "e4m3", "transform": "rms_power"}, "transform", "smoothing"),
        ({"compensators": 17}, "compensators", "from 0 to 16"),
        ({"payload": "bf16", "compensators": 2}, "factors", "of some type"),
        ({"cadence": "step", "payload": "bf16", "factors": "fp16"}, "factors", "cadence step"),
        ({"factors": "int8"}, "factors", "nothing"),
        ({"rounding": "stochastic"}, "rounding", "as it is"),
        ({"payload": "levels4", "scale": "value", "rounding": "stochastic"}, "rounding", "nearest"),
        ({"payload": "fitted4", "scale": "value"}, "outliers", "go with"),
        ({"payload": "int8", "scale": "value", "outliers": 1}, "outliers", "go with"),
        ({"payload": "fitted4", "scale": "value", "outliers": 3}, "outliers", "from 1 to 2"),
        ({"payload": "fitted4", "scale": "key", "outliers": 1}, "outliers", "scale value"),
        ({"payload": "int8", "scale": "value", "feedback": "two-level"}, "feedback", "step"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_choice(
    changed: dict[str, object], choice: str, message: str
) -> None:
    c = replace(Choices(), **changed)
    found = {r.choice: r.message for r in rules.refusals(c)}
    assert message in found[choice]
    with pytest.raises(FormatError, match=f"{choice}: .*{message}"):
        composed("bad", "", c)


# ---- named formats


def test_names_are_unique_and_every_row_is_valid() -> None:
    assert len(NAMED) == len(FORMATS) + len(INTEGERS) + len(PRESETS)
    assert set(KERNELS) == {*FORMATS, *INTEGERS}
    assert list(NAMED) == [*FORMATS, *INTEGERS, *PRESETS]
    assert all(rules.refusals(c) == () for c in KERNELS.values())
    reference = {name for name, row in NAMED.items() if not row.has_kernels}
    assert reference == {"kvquant-8", "kvquant-6", "kvquant-4", "int8-step-ef"}
    assert all(row.kernels_on(gpu=True) == row.has_kernels for row in NAMED.values())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_kernels_is_the_composition_that_it_is_called(name: str, kind: str) -> None:
    row, same, S = NAMED[name], composed(name, "", KERNELS[name]), states(kind)
    assert [(p.name, p.tile, p.dtype) for p in row.parts()] == [
        (p.name, p.tile, p.dtype) for p in same.parts()
    ]
    old = row.no_factors(len(S), row.compensators, S.shape[-1])
    ours, theirs = row.store(S, old).parts, same.store(S, old).parts
    assert ours.keys() == theirs.keys()
    for part in ours:
        assert (ours[part] == theirs[part]).all(), part
    left, right = row.restore(row.store(S, old)), same.restore(same.store(S, old))
    peak = np.abs(S).max(axis=(-2, -1), keepdims=True)  # three factors in another order
    assert (np.abs(left - right) <= 1e-6 * peak).all()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_state_breaks_a_preset(name: str, kind: str) -> None:
    row, S = PRESETS[name], states(kind)
    back = store(row, S, 2)
    assert np.isfinite(back).all()
    peak = np.abs(S).max(axis=(-2, -1), keepdims=True)
    assert (np.abs(back - S) <= 1.5 * np.where(peak > 1e-37, peak, 1e-37)).all()
    if kind == "zero":
        assert (back == 0).all()


@pytest.mark.parametrize("name", PRESETS)
def test_nan_and_infinities_do_not_spread(name: str) -> None:
    """NaN is stored as zero and infinity as the largest: the rest of the state stays finite."""
    row, S = PRESETS[name], states("1")
    S[0, 3, 5], S[1, 2, 2], S[2, 1, 1] = np.nan, np.inf, -np.inf
    with np.errstate(over="ignore"):
        back = store(row, S, 2)
    assert np.isfinite(back).all()
    clean = states("1")
    clean[0, 3, 5] = 0
    assert (back[0] == store(row, clean, 2)[0]).all()


def test_a_specs_choices_make_a_composition_or_the_row_itself() -> None:
    row = chosen("leapquant-int8", {"payload": "int6", "scale": None})
    assert isinstance(row, Composed)
    assert (row.choices.payload, row.choices.transform) == ("int6", "mean_abs_sqrt")
    assert row.name == "leapquant-int8[payload=int6]"
    assert row.has_kernels
    same = chosen("leapquant-int8", {"transform": "none", "compensators": 2})
    assert same == FORMATS["leapquant-int8"].with_state("none", 2)
    assert chosen("leap8", {"compensators": 2}).compensators == 2
    assert chosen("leap8", {"smoothing": "none"}).key_scale is None
    with pytest.raises(FormatError, match="no compensators"):
        chosen("int8-window", {"compensators": 2})


def test_a_spelled_format_is_the_one_that_a_spec_would_make() -> None:
    assert format_spelled("leap8") is NAMED["leap8"]
    row = format_spelled("leap8[transform=rotation,compensators=4]")
    assert row == chosen("leap8", {"transform": "rotation", "compensators": 4})
    for text, message in (
        ("leap8[transform]", "write choice=word"),
        ("leap8[cadence=step]", "unknown choice 'cadence'"),
        ("leap8[payload=bf16]", "range of its own"),
        ("leap8[compensators=two]", "must be a number"),
    ):
        with pytest.raises(FormatError, match=message):
            format_spelled(text)


def test_stochastic_formats_ask_for_draws_and_count_their_stores() -> None:
    row = format_named("int8-step-sr")
    assert "stores" in {p.name for p in row.parts()}
    with pytest.raises(FormatError, match="needs draws"):
        row.store(states("1"), row.no_factors(3, 0, 24))


@pytest.mark.parametrize("name", [n for n, row in PRESETS.items() if not row.choices.outliers])
@pytest.mark.parametrize("kind", ["1", "outlier", "mixed_scales", "1e-13", "1e9"])
def test_codes_are_within_the_rows_noise(name: str, kind: str) -> None:
    """Every element, against the largest magnitude of what shares its scale."""
    row, S = PRESETS[name], states(kind)
    draws = uniforms(np.zeros(3), np.arange(3), *S.shape[-2:]) if row.stochastic else None
    x, _ = row.transform.forward(S)
    codes = row.encode(S, draws)
    left, right = row.transform.forward(row.decode(codes))[0], x
    if row.transform.smooths:  # by the same vector
        smooth = codes.key_scale.astype(np.float32)[..., None]
        left, right = row.decode(codes) / smooth, S / smooth
    if row.scale.per == "none":
        peak = np.abs(S) + (2.0**-14 if row.bits == 16 else 2.0**-6)
    else:
        grid = GRIDS["int8"]  # by largest magnitudes, whatever the row's own statistic
        peak = row.scale.spread(row.scale.statistic(right, grid), *S.shape[-2:])
        largest = np.abs(right).max(axis=(-2, -1), keepdims=True)
        peak = np.maximum(peak, largest * (1.0625 * 2.0**-6 / 448))  # below: subnormal
    inside = np.abs(S) <= (row.grid.top if row.scale.per == "none" else np.inf)
    left, right = left * inside, right * inside
    assert (np.abs(left - right) <= row.noise() * peak * 1.001 + 1e-30).all()


# ---- bytes: payload, scales and factors, counted by hand; LeapQuant states 1.19 for its INT8

BYTES = {
    "fp32-step": 65536,
    "bf16-step": 32768,
    "fp8-step": 16896,
    "int8-step": 16896,
    "mxfp8": 16896,
    "kvquant-8": 17792,
    "kvquant-6": 13696,
    "kvquant-4": 9600,
    "quarot-8": 16896,
    "quarot-6": 12800,
    "quarot-4": 8704,
    "turboquant-8": 16640,
    "turboquant-6": 12544,
    "turboquant-4": 8448,
    "int6-step": 12800,
    "mxfp6": 12800,
    "nvfp6": 13316,
    "int4-step": 8704,
    "mxfp4": 8704,
    "nvfp4": 9220,
    "int8-step-ef": 25600,
    "leapquant-int8": 19456,
    "leapquant-int6": 15360,
    "leapquant-int4": 13312,
    "leap8": 19268,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_a_head(name: str) -> None:
    assert state_bytes(NAMED[name], 128, 128) == BYTES[name]


@pytest.mark.parametrize(
    ("ours", "paper"),
    [
        ("leap8", "leapquant-int8"),
        ("leap6", "leapquant-int6"),
        ("leap5", "leapquant-int4"),
        ("leap4", "leapquant-int4"),
        ("leap4-levels", "leap4"),
    ],
)
def test_ours_take_no_more_bytes_than_the_papers(ours: str, paper: str) -> None:
    assert state_bytes(NAMED[ours], 128, 128) <= state_bytes(NAMED[paper], 128, 128)


def test_every_choice_has_a_default_that_is_valid() -> None:
    assert rules.refusals(Choices()) == ()
    assert {f.name for f in fields(Choices)} >= set(SPACE)
