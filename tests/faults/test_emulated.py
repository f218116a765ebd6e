"""The GPU's code under the same rules: emitted CUDA in the emulator, on both payload orders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lab import HV, MATRIX, PLAIN, WINDOW, Lab, ints, numpy, shaken
from test_extremes import KINDS, states
from test_rows import everywhere
from test_stale_records import poison_beyond_cursor
from test_windows import act

from leapgen.oracle.tolerance import distance

Make = Callable[..., Lab]


@pytest.fixture
def arch() -> str:
    """Of the modules that are tested; test_device.py puts the present GPU's here."""
    return "sm90"


each_path = pytest.mark.parametrize("dims", [PLAIN, MATRIX])
each_spec = pytest.mark.parametrize("spec", ["gdn", "kda"])


@each_path
def test_which_path_is_taken(make_lab: Make, arch: str, dims: tuple[int, int]) -> None:
    lab = make_lab("gdn", dims, arch=arch)
    order = lab.module.layout.order(lab.pool.shape).numpy()
    plain = np.arange(order.size).reshape(order.shape[::-1]).T
    assert np.array_equal(np.sort(order, axis=None), np.arange(order.size))
    assert np.array_equal(order, plain) == (dims == PLAIN)


@each_path
@each_spec
def test_random_calls(make_lab: Make, arch: str, spec: str, dims: tuple[int, int]) -> None:
    """Modes in random order over stale records, each checked, with odd input views."""
    lab = make_lab(spec, dims, arch=arch, seed=7)
    rng = np.random.default_rng(7)
    lab.reset(*range(lab.slots))
    position = np.zeros(lab.slots, int)
    for _ in range(120):
        poison_beyond_cursor(lab)
        act(lab, rng, position)
        assert (numpy(lab.pool.phase + lab.pool.cursor) == position[:, None]).all()
    for _ in range(WINDOW):
        lab.step([1, 3])
    lab.check_state(*range(lab.slots))


@each_path
def test_no_compensators(make_lab: Make, arch: str, dims: tuple[int, int]) -> None:
    """Rank 0, with a window of one token: every step flushes."""
    lab = make_lab("gdn", dims, arch=arch, compensators=0, window=1)
    lab.load([1, 3], lab.random_states(2))
    for _ in range(4):
        lab.step([3, 1])
    lab.check_state(1, 3)


@each_path
@each_spec
def test_rows_that_are_not_active(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int]
) -> None:
    lab = make_lab(spec, dims, arch=arch)
    lab.reset(*range(5))
    for slots, first_slot in ((ints(-1, -7), 0), (ints(0, -1, 1), 2), (ints(5, 2**31 - 1), 0)):
        with lab.untouched([]):
            for result in everywhere(lab, slots, first_slot):
                assert not result.any()
    assert lab.pool.status.tolist() == [1, 0, 0, 0]
    lab.pool.cursor[3] = WINDOW + 1
    with lab.untouched([]):
        out = lab.module.step(lab.pool, ints(3), *lab.ordered(lab.inputs(1)))
    assert not out.any()
    assert lab.pool.status.tolist() == [1, 1, 0, 0]


@each_path
@each_spec
def test_extreme_states(make_lab: Make, arch: str, spec: str, dims: tuple[int, int]) -> None:
    lab = make_lab(spec, dims, arch=arch)
    for kind in KINDS:
        lab.load([2], states(kind, *dims), position=WINDOW - 2)
        found = numpy(lab.module.materialize(lab.pool, ints(2), layout="KV"))
        assert (distance(found, lab.state[[2]], axes=2) < 0.02).all(), kind
        for _ in range(4):
            lab.module.step(lab.pool, ints(2), *lab.ordered(lab.inputs(1)))
        for name, tensor in lab.module.export(lab.pool, ints(2)).items():
            assert name == "header" or torch.isfinite(tensor.float()).all(), (kind, name)


def test_a_singular_fit_is_no_noise(make_lab: Make, arch: str) -> None:
    """Nearly all directions of a window are one: what products leave out of their Gram matrix must
    not be taken for others, which are then as long as one likes."""
    lab = make_lab("kda", MATRIX, arch=arch)
    for _ in range(60):
        lab.load([2], states("one row", *MATRIX), position=WINDOW - 2)
        for _ in range(2):
            lab.module.step(lab.pool, ints(2), *lab.ordered(lab.inputs(1)))
        slot = lab.module.export(lab.pool, ints(2))
        assert all(torch.isfinite(slot[name].float()).all() for name in ("key_scale", "comp_u"))
        assert slot["comp_key"].float().abs().max() < 128


@each_path
@each_spec
def test_pools_of_two_archs_exchange_slots(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int]
) -> None:
    """Export and import go from one payload order to the other and back, bit for bit."""
    gpu = make_lab(spec, dims, arch=arch)
    gpu.load([1, 4], gpu.random_states(2), position=5)
    for _ in range(3):
        gpu.step([4, 1])
    data = gpu.module.export(gpu.pool, ints(4, 1))
    with torch.device("cpu"):
        cpu = make_lab(spec, dims)
        with cpu.untouched([0, 2]):
            cpu.module.import_(cpu.pool, ints(0, 2), data)
        back = cpu.module.export(cpu.pool, ints(0, 2))
        found = [numpy(cpu.module.materialize(cpu.pool, ints(0, 2)))]
    assert back["header"] == data["header"]
    for name, values in back.items():
        assert name == "header" or torch.equal(values, data[name].cpu()), name
    with gpu.untouched([3, 0]):
        gpu.module.import_(gpu.pool, ints(3, 0), back)
    for slots in ((4, 1), (3, 0)):
        found.append(numpy(gpu.module.materialize(gpu.pool, ints(*slots))))
    assert np.array_equal(found[1], found[2])
    assert (distance(found[0], found[1], axes=2) < 1e-5).all()


def test_a_copy_in_rounds(make_lab: Make, arch: str) -> None:
    """A tile of more vectors than a block has in flight at once, records up to the cursor."""
    lab = make_lab("kda", MATRIX, arch=arch, format="fp32-window")
    lab.module = lab.module.with_configs(copy={"threads": 32})
    lab.load([1, 3], lab.random_states(2))
    for _ in range(5):
        lab.step([1, 3])
    poison_beyond_cursor(lab)
    with lab.untouched([0, 4]):
        lab.module.copy(lab.pool, ints(1, 3), ints(4, 0), check=True)
    first, second = (lab.module.export(lab.pool, ints(*slots)) for slots in ((1, 3), (4, 0)))
    for name, values in first.items():
        assert name == "header" or torch.equal(values, second[name]), name
    assert lab.pool.record_u[4, :, 5:].isnan().all()


def room(*sizes: int, more: tuple[int, ...], first: int = 0) -> torch.Tensor:
    """NaN of these sizes in a larger tensor, its last axes `more` longer."""
    whole = torch.full([n + m for n, m in zip(sizes, more, strict=True)], float("nan"))
    return whole[..., first : first + sizes[-1]][..., : sizes[-2], :][:, : sizes[1]]


@pytest.mark.parametrize(
    ("spec", "dims", "format"),
    [
        ("gdn", PLAIN, None),
        ("kda", MATRIX, None),
        ("gdn", MATRIX, "fp32-step"),
        pytest.param("kda", PLAIN, "bf16-window", marks=pytest.mark.slow),
        pytest.param("kda", PLAIN, "int8-step", marks=pytest.mark.slow),
    ],
)
def test_states_of_any_stride(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int], format: str | None
) -> None:
    """Whole vectors along either axis, and element by element: the same bits, and no other."""
    K, V = dims
    lab = make_lab(spec, dims, arch=arch, format=format)
    lab.load([1, 3], lab.random_states(2))
    for _ in range(5):
        lab.step([1, 3])
    slots = ints(3, -1, 1)
    want = lab.module.materialize(lab.pool, slots)
    assert not want[1].any()
    lab.check_state(3, 1)
    for layout, (rows, columns) in {"VK": (V, K), "KV": (K, V)}.items():
        sizes = (3, HV, rows, columns)
        results = {
            "contiguous": torch.full(sizes, float("nan")),
            "turned": torch.full((3, HV, columns, rows), float("nan")).mT,
            "odd strides": shaken(torch.full(sizes, float("nan")), seed=2),
            "padded by vectors": room(*sizes, more=(0, 1, 2, 4)),
            "an odd base": room(*sizes, more=(0, 1, 2, 4), first=1),
            "padded by elements": room(*sizes, more=(0, 0, 0, 1)),
        }
        for name, out in results.items():
            gaps = out._base.isnan().sum() if out._base is not None else torch.tensor(out.numel())
            lab.module.materialize(lab.pool, slots, layout=layout, out=out)
            assert torch.equal(out if layout == "VK" else out.mT, want), (layout, name)
            if out._base is not None:
                assert out._base.isnan().sum() == gaps - out.numel(), (layout, name)


WINDOWS, STEPS = ("bf16-window", "fp32-window"), ("fp32-step", "bf16-step", "int8-step")


@pytest.mark.parametrize(
    ("spec", "dims", "format"),
    [
        pytest.param(*case, marks=() if case[2] == "bf16-window" else pytest.mark.slow)
        for case in [
            *(("gdn", MATRIX, f) for f in (*WINDOWS, *STEPS)),
            *(("kda", PLAIN, f) for f in ("fp32-window", "int8-step")),
        ]
    ],
)
def test_other_formats(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int], format: str
) -> None:
    """Every call, over a flush where there is one."""
    lab = make_lab(spec, dims, arch=arch, format=format, window=4, seed=3)
    lab.load([3, 1], lab.random_states(2), position=2)
    lab.reset(4)
    for _ in range(7):
        poison_beyond_cursor(lab)
        lab.step([4, 3, -1, 1], odd=True)
    lab.check_state(1, 3, 4)
    with lab.untouched([0]):
        lab.module.copy(lab.pool, ints(3), ints(0), check=True)
    lab.state[0], lab.roundings[0] = lab.state[3], lab.roundings[3]
    lab.step([0, 4])
    lab.check_state(0, 4)


@pytest.mark.parametrize(
    ("spec", "dims"), [("gdn", PLAIN), pytest.param("kda", MATRIX, marks=pytest.mark.slow)]
)
def test_three_value_heads_a_key_head(
    make_lab: Make, arch: str, spec: str, dims: tuple[int, int]
) -> None:
    """The group is no power of two."""
    lab = make_lab(spec, dims, arch=arch, window=5, heads=(2, 6), seed=11)
    rng = np.random.default_rng(11)
    lab.reset(*range(lab.slots))
    position = np.zeros(lab.slots, int)
    for _ in range(30):
        poison_beyond_cursor(lab)
        act(lab, rng, position)
        assert (numpy(lab.pool.phase + lab.pool.cursor) == position[:, None]).all()
    lab.check_state(*range(lab.slots))
