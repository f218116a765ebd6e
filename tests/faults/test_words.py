"""Windows that are closed with the state as words of two FP16 numbers: by the step itself, and by a
flush of its own. The emitted CUDA in the emulator; test_device.py runs it on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, WINDOW, Lab, ints, numpy
from test_extremes import KINDS, states
from test_stale_records import poison_beyond_cursor

from leapgen.oracle.tolerance import distance

Make = Callable[..., Lab]
Inputs = dict[str, torch.Tensor]
FUSED, APART = "fused", "tiles"


@pytest.fixture
def arch() -> str:
    """Of the modules that are tested; test_device.py puts the present GPU's here."""
    return "sm90"


def closing(lab: Lab, knob: str, tiles: int) -> Lab:
    """The lab at configs with which windows are closed so: `tiles` of a warp's two in registers."""
    shape = lab.pool.shape
    step = {"threads": lab.V, "min_blocks": 1, "staged": True, "fused": 0}
    flush = {"threads": lab.V, "tiles": tiles if knob == APART else 1, "min_blocks": 1}
    if knob == FUSED:
        step["fused"] = tiles
    step = {**lab.module.config("step", shape), **step}
    lab.module = lab.module.with_configs(step=step, flush=flush)
    return lab


def windows(lab: Lab, tokens: int, rounded: Callable[[list[int]], None] | None = None) -> None:
    """Rows in changing order and of different phases, over stale records; each output and all
    states are checked. `rounded` is called with slots that were just loaded or flushed."""
    P, slots = lab.window, [4, 1, 0, 2]
    for row, slot in enumerate(slots):
        lab.load([slot], lab.random_states(1), position=(row * (P // 3 + 1)) % P)
    if rounded is not None:
        rounded(slots)
    for token in range(tokens):
        poison_beyond_cursor(lab)
        rows = (slots[token % 4 :] + slots[: token % 4])[: 4 - (token % 5 == 2)]
        lab.step(rows)
        closed = [slot for slot in rows if not lab.pool.cursor[slot].any()]
        if rounded is not None and closed:
            rounded(closed)
        if token % 7 == 3:
            lab.check_state(*slots)
    lab.check_state(*slots)


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_a_flush_of_its_own(make_lab: Make, arch: str, spec: str) -> None:
    """By default the step closes windows: test_emulated.py has that."""
    lab = closing(make_lab(spec, MATRIX, arch=arch, seed=1), APART, 1)
    windows(lab, WINDOW + WINDOW // 2)


SIZES = [
    (1, 0),
    (1, 4),
    (5, 1),
    (5, 8),
    (16, 0),
    (16, 1),
    (16, 4),
    (16, 8),
    (34, 0),
    (34, 4),
    (34, 8),
]
WAYS = [
    *product(SIZES, [(FUSED, 1), (APART, 1)]),
    *product([(16, 4), (34, 8)], [(FUSED, 2), (APART, 2)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "way"), WAYS)
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_windows_and_ranks(
    make_lab: Make, arch: str, spec: str, size: tuple[int, int], way: tuple[str, int]
) -> None:
    """Records in one group of 32 and in two; compensators or none."""
    window, rank = size
    lab = make_lab(spec, MATRIX, arch=arch, window=window, compensators=rank, seed=window + rank)
    windows(closing(lab, *way), 2 * window + 3)


@pytest.mark.slow
@pytest.mark.parametrize("way", [(FUSED, 1), (FUSED, 2), (APART, 1), (APART, 2)])
@pytest.mark.parametrize("dims", [(32, 64), (96, 32), (96, 192), (128, 64), (32, 256)])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_dimensions(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int], way: tuple[str, int]
) -> None:
    """Keys of 1, 3 and 4 blocks, warps of 1 to 8."""
    lab = closing(make_lab(spec, dims, arch=arch, window=5, seed=sum(dims)), *way)
    windows(lab, 12)


@pytest.mark.parametrize(
    ("spec", "format", "dims"),
    [
        ("gdn", "leap5", (64, 64)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(
                ("gdn", "kda", "rwkv7"),
                (
                    "leapquant-int8",
                    "leap8",
                    "leap6",
                    "leap5",
                    "leap4",
                    "leap4-levels",
                    "leapquant-int4",
                ),
                ((32, 64), (96, 192), (128, 128)),
            )
        ),
    ],
)
def test_two_value_channels_a_thread(
    make_lab: Make, arch: str, spec: str, format: str, dims: tuple[int, int]
) -> None:
    """Records are held by half as many threads as there are value channels."""
    lab = make_lab(spec, dims, format=format, arch=arch, window=5, seed=sum(dims))
    config = lab.module.config("step", lab.pool.shape)
    half = {"threads": lab.V // 2, "min_blocks": 1, "staged": True, "held": True, "fused": 0}
    lab.module = lab.module.with_configs(step={**config, **half})
    windows(lab, 7)


# ---- extremes


def closes(lab: Lab, slot: int, given: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The state [K, V] of each head as a closing step leaves it, and as it should be: one exact
    token after what the slot held."""
    before = numpy(lab.module.materialize(lab.pool, ints(slot), layout="KV"))
    lab.module.step(lab.pool, ints(slot), *lab.ordered(given))
    assert not lab.pool.cursor[slot].any()
    exact = {name: numpy(x) for name, x in given.items()}
    want = lab.oracle.step(before, exact)[0]
    found = numpy(lab.module.materialize(lab.pool, ints(slot), layout="KV"))
    for name, tensor in lab.module.export(lab.pool, ints(slot)).items():
        assert name == "header" or torch.isfinite(tensor.float()).all(), name
    return found[0], want[0]


Change = Callable[[Inputs, int], None]


def values(factor: float) -> Change:
    """Makes all values of a token, so corrections too, that much larger."""

    def change(given: Inputs, token: int) -> None:
        given["v"] *= factor

    return change


def one_small_channel(given: Inputs, token: int) -> None:
    """One value channel at a millionth of the others."""
    given["v"][..., 5] *= 1e-6


def decays(*numbers: float) -> Change:
    """Log decays by token, the last number for all that follow."""

    def change(given: Inputs, token: int) -> None:
        given["g"].fill_(numbers[min(token, len(numbers) - 1)])

    return change


def constant(given: Inputs, token: int) -> None:
    """The same token over and over, but for the gates."""
    if token == 0:
        constant.first = {n: given[n].clone() for n in ("q", "k", "v")}  # type: ignore[attr-defined]
    given.update(constant.first)  # type: ignore[attr-defined]


STATES = [*KINDS, "small channel", "alternating"]
CHANGES: Mapping[str, Change] = {
    "huge corrections": values(3e3),
    "tiny corrections": values(1e-6),
    "a small channel": one_small_channel,
    "all gone at once": decays(-1e4),
    "all but the last token gone": decays(0.0, 0.0, 0.0, -1e4),
    "the stored state gone": decays(float("-inf"), 0.0),
    "the stored state nearly gone": decays(-60.0, -1e-3),
    "the stored state below FP16": decays(-20.0, -1e-3),
    "each token below FP32's least": decays(-30.0),
    "no decay": decays(0.0),
    "one token over and over": constant,
}


def start(kind: str, K: int, V: int) -> np.ndarray:
    if kind == "small channel":
        return states("rank 8", K, V) * np.where(np.arange(V) == 5, 1e-6, 1.0)
    if kind == "alternating":
        return np.ones((1, HV, K, V)) * (-1.0) ** np.add.outer(np.arange(K), np.arange(V))
    return states(kind, K, V)


def closing_error(lab: Lab, state: np.ndarray, change: Change | None = None) -> np.ndarray:
    """Errors [3, HV] of a state that is loaded, and of two windows of four tokens that close:
    against its peak in a head."""
    lab.load([2], state)
    loaded = numpy(lab.module.materialize(lab.pool, ints(2), layout="KV"))
    errors = [distance(loaded, lab.state[[2]], axes=2)[0]]
    for token in range(8):
        given = lab.inputs(1)
        if change is not None:
            change(given, token % 4)
        if token % 4 == 3:
            errors.append(distance(*closes(lab, 2, given), axes=2))
        else:
            lab.module.step(lab.pool, ints(2), *lab.ordered(given))
    return np.array(errors)


def pair(make_lab: Make, arch: str, spec: str, way: tuple[str, int], **more: object) -> list[Lab]:
    """Labs with compensators and without, which draw the same tokens."""
    return [
        closing(make_lab(spec, MATRIX, arch=arch, window=4, compensators=r, seed=3, **more), *way)
        for r in (4, 0)
    ]


each_way = pytest.mark.parametrize("way", [(FUSED, 1), (APART, 2)])


@pytest.mark.slow
@each_way
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_states_that_close(make_lab: Make, arch: str, spec: str, way: tuple[str, int]) -> None:
    """Never worse than without compensators; a huge state's records do not reach as far as it."""
    labs = pair(make_lab, arch, spec, way)
    for kind in STATES:
        with_, without = (closing_error(lab, start(kind, *MATRIX)) for lab in labs)
        last = 1 if kind == "huge" else 3
        assert (with_[:last] <= 1.05 * without[:last].max() + 2e-3).all(), (kind, with_, without)
        assert (with_[:last] < 0.02).all(), (kind, with_)


@pytest.mark.slow
@each_way
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_constant_input_for_long(
    make_lab: Make, arch: str, spec: str, way: tuple[str, int]
) -> None:
    """The state keeps a rank of one, over 300 windows: it stays finite and right."""
    picks = {"gate": "log_decay"}
    lab = closing(make_lab(spec, MATRIX, arch=arch, window=4, seed=5, picks=picks), *way)
    lab.reset(1)
    given = lab.inputs(1)
    exact = {name: numpy(x) for name, x in given.items()}
    for token in range(1200):
        lab.module.step(lab.pool, ints(1), *lab.ordered(given))
        lab.state[[1]] = lab.oracle.step(lab.state[[1]], exact)[0]
        if token % 200 == 199:
            found = numpy(lab.module.materialize(lab.pool, ints(1), layout="KV"))
            assert (distance(found, lab.state[[1]], axes=2) < 0.02).all(), token


@pytest.mark.slow
@each_way
@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_records_that_close(make_lab: Make, arch: str, spec: str, way: tuple[str, int]) -> None:
    """Records of extremes: each closing against the slot's own state before it."""
    picks = {"gate": "log_decay"}
    labs = pair(make_lab, arch, spec, way, picks=picks)
    state = labs[0].random_states(1)
    for name, change in CHANGES.items():
        with_, without = (closing_error(lab, state, change) for lab in labs)
        assert (with_ <= 1.05 * without.max() + 2e-3).all(), (name, with_, without)
        assert (with_ < 0.02).all(), (name, with_)
    for lab in labs:  # beyond what records can hold: finite
        closing_error(lab, state, values(1e6))


@pytest.mark.parametrize("spec", ["gdn", "kda"])
def test_equal_tokens_do_not_add_up(make_lab: Make, arch: str, spec: str) -> None:
    """A state of rank one that no longer changes: what a window loses of it, it loses anew each
    time. Old compensators whose keys are held in one FP16 number are enough to fail this."""
    lab = make_lab(spec, MATRIX, arch=arch, seed=1)
    lab.reset(1)
    token = lab.inputs(1)
    for _ in range(6 * WINDOW):
        lab.step([1], token)
    found = numpy(lab.module.materialize(lab.pool, ints(1), layout="KV"))[0]
    error = ((found - lab.state[1]) ** 2).sum((1, 2)) / (lab.state[1] ** 2).sum((1, 2))
    assert error.max() < 5e-7
