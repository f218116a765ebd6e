"""Kernels of composed formats: every code through a pool, whole lives of slots, and draws."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from composed_codes import SIZE, chain_of, every_code, subject_of

from leapgen import pipeline
from leapgen.formats import choices as rules
from leapgen.formats.composed import Composed, composed
from leapgen.formats.table import NAMED
from leapgen.oracle.in_place import model_of
from leapgen.oracle.streams import Heads, stream
from leapgen.report.subjects import one_thread, subject
from leapgen.report.verify import operate
from leapgen.runtime.host import DTYPES
from leapgen.schedule.arch import arch_named
from leapgen.schedule.plan import make_plan

SMALL_FLOATS = ("fp8-step", "fp8-window", "mxfp8", "nvfp4", "nvfp6", "mxfp6", "mxfp6[payload=e3m2]")
CODES = ("int4-step", "int8-window[payload=int5]", "int6-step", "fp8-step", "mxfp4", "nvfp6")
CONVERTED = ("mxfp4", *(pytest.param(n, marks=pytest.mark.slow) for n in SMALL_FLOATS))
LIVES = (("kda", "leap5"), ("kda", "nvfp4"), ("gdn", "int8-step-sr"))
STOCHASTIC = ("bf16-step-sr", "int8-step-sr", "int8-window[rounding=stochastic]")
PRODUCTS = ("leap8", "leap6", "leap5", "leap4", "leap4-levels", "leapquant-int6", "leapquant-int4")
EMULATED = (("gdn", "mxfp4"), ("kda", "quarot-4"))


@pytest.mark.parametrize("arch", ["cpu", "sm90"])
@pytest.mark.parametrize("name", CODES)
def test_every_code_is_what_the_model_reads(name: str, arch: str) -> None:
    """Planes of codes over a whole tile, bit for bit: materialize does nothing but decode."""
    every_code(name, arch)


@pytest.mark.parametrize("name", CONVERTED)
def test_every_code_by_instructions(name: str) -> None:
    every_code(name, "sm100")


def life(spec: str, name: str, arch: str, rounds: int) -> None:
    chain = chain_of(spec, name, arch)
    with one_thread():
        section = operate(chain, subject_of(spec, name, arch), chain.plan.shape(*SIZE), rounds)
    assert section.ledger.ok, [c.row for c in section.ledger.checks.values() if not c.ok]


@pytest.mark.parametrize(("spec", "name"), LIVES)
def test_slots_live_on_a_cpu(spec: str, name: str) -> None:
    life(spec, name, "cpu", 25)


def extremes() -> dict[str, np.ndarray]:
    """States [HV, K, V] at which a quantizer may break: faults of scales and codes."""
    rng = np.random.default_rng(8)
    plain = rng.standard_normal((4, 16, 24)).astype(np.float32)
    found = {"zero": np.zeros_like(plain), "plain": plain}
    found |= {f"{e}": (plain * np.float32(e)).astype(np.float32) for e in (1e-30, 1e30)}
    for name, x in (("one hot", 3.0), ("outlier", 1e6), ("nan", np.nan), ("infinity", np.inf)):
        found[name] = (np.zeros_like(plain) if name == "one hot" else plain).copy()
        found[name][:, 5, 7] = x
    found["rank one"] = np.einsum("hk,v->hkv", plain[..., 0], plain[0, 0]).astype(np.float32)
    found["minus largest"] = np.where(plain > 0, np.abs(plain).max(), -np.abs(plain).max())
    return found


@pytest.mark.parametrize(("spec", "name"), LIVES)
def test_extreme_states(spec: str, name: str) -> None:
    """Finite, never far off, and zero stays zero; without compensators, what the model stores."""
    chain, found = chain_of(spec, name, "cpu"), subject_of(spec, name, "cpu")
    format, kinds = chain.plan.format, extremes()
    assert isinstance(format, Composed)
    given = np.stack(list(kinds.values())).astype(np.float32)
    rows = len(given)
    with one_thread():
        pool = found.module.allocate(rows, H=2, HV=4, K=16, V=24)
        slots = torch.arange(rows, dtype=torch.int32)
        found.module.load_state(pool, slots, torch.from_numpy(given), 0, layout="KV")
        back = found.module.materialize(pool, slots, layout="KV").numpy()
    kept = np.clip(np.nan_to_num(given, nan=0.0, posinf=1e36, neginf=-1e36), -1e36, 1e36)
    peak = np.abs(kept).max(axis=(-2, -1), keepdims=True)
    assert np.isfinite(back).all()
    assert (back[list(kinds).index("zero")] == 0).all()
    assert (np.abs(back - kept) <= 1.5 * np.where(peak > 1e-37, peak, 1e-37)).all()
    if format.compensators == 0 and not format.stochastic:
        none = format.no_factors(rows, 4, 0, 24)
        model = format.restore(format.store(given, none))
        assert (np.abs(back - model) <= 1e-6 * peak).all()


def token(chain: pipeline.Chain, slots: int) -> tuple[dict[str, np.ndarray], list[torch.Tensor]]:
    """Of every slot the same one, for the model and for the module."""
    found = stream(chain.spec, 1, Heads(2, 4, 16, 24), 5)
    wide = {
        x.name: found[x.name] if x.constant else np.repeat(found[x.name], slots, axis=0)
        for x in chain.spec.inputs
    }
    tensors = [torch.from_numpy(wide[x.name]).to(DTYPES[x.dtype]) for x in chain.spec.inputs]
    return wide, tensors


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_draws_are_the_models_and_travel_with_a_copy() -> None:
    """The next store of a copy draws what its source would, whatever row and slot it has."""
    chain, found = chain_of("gdn", "int8-step-sr", "cpu"), subject_of("gdn", "int8-step-sr", "cpu")
    model = model_of(chain.spec, chain.plan, chain.plan.shape(*SIZE), 5)
    states = np.random.default_rng(9).standard_normal((2, 4, 24, 16)).astype(np.float32)
    given, tensors = token(chain, 2)
    with one_thread():
        pool = found.module.allocate(5, H=2, HV=4, K=16, V=24)
        found.module.load_state(pool, ints(1, 3), torch.from_numpy(states))
        model.load_state(np.array([1, 3]), np.swapaxes(states, -1, -2))
        for _ in range(2):  # with the load, three stores: each has draws of its own
            found.module.step(pool, ints(1, 3), *tensors)
            model.step(np.array([1, 3]), given)
        data = found.module.export(pool, ints(0, 1, 2, 3, 4))
        assert (data["stores"].numpy() == model.pool["stores"]).all()
        assert (model.pool["stores"][[1, 3]] == 3).all()
        same = data["payload"].numpy() == model.pool["payload"]
        assert same.mean() > 0.99  # a tie of FP32 may fall either way
        found.module.copy(pool, ints(1), ints(4))
        found.module.step(pool, ints(4, 1), *tensors)
        ends = found.module.export(pool, ints(4, 1))["payload"]
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize("arch", ["cpu", pytest.param("sm90", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STOCHASTIC)
def test_draws_do_not_depend_on_what_a_slot_held(name: str, arch: str) -> None:
    """A used slot and a new one, loaded or emptied: equal bits, also after the next store."""
    chain, found = chain_of("gdn", name, arch), subject_of("gdn", name, arch)
    module, last = found.module, chain.plan.shape(*SIZE).P - 1
    model = model_of(chain.spec, chain.plan, chain.plan.shape(*SIZE), 2)
    state = torch.randn(1, 4, 24, 16, generator=torch.Generator().manual_seed(3))
    (given, tensors), pair = token(chain, 2), state.expand(2, 4, 24, 16)
    numbers, both = np.array([0, 1]), np.swapaxes(pair.numpy(), -1, -2)
    with one_thread():
        pool = module.allocate(2, H=2, HV=4, K=16, V=24)

        def alike() -> bool:
            data = module.export(pool, ints(0, 1))
            return all(torch.equal(x[0], x[1]) for n, x in data.items() if n != "header")

        for _ in range(2):
            module.load_state(pool, ints(0), state)
            model.load_state(numbers[:1], both[:1])
        module.load_state(pool, ints(0, 1), pair, last)
        model.load_state(numbers, both, np.array([last, last]))
        assert alike()
        assert (pool.stores == 1).all()
        module.step(pool, ints(0, 1), *tensors)
        model.step(numbers, given)
        assert alike()
        assert (pool.stores == 2).all()
        assert (model.pool["stores"] == 2).all()
        module.load_state(pool, ints(0), state)
        module.reset(pool, ints(0, 1))
        for _ in range(last + 1):
            module.step(pool, ints(0, 1), *tensors)
        assert alike()


def test_draws_go_on_behind_a_checkpoint() -> None:
    """A slot that is put back stores what the one that was kept would have stored."""
    chain, found = chain_of("gdn", "int8-step-sr", "cpu"), subject_of("gdn", "int8-step-sr", "cpu")
    module, sizes, (_, tensors) = found.module, {"H": 2, "HV": 4, "K": 16, "V": 24}, token(chain, 2)
    with one_thread():
        pool = module.allocate(4, **sizes)
        module.load_state(pool, ints(2), torch.randn(1, 4, 24, 16))
        data = module.checkpoint(pool, ints(2))
        kept = [x.nbytes for x in data.values() if isinstance(x, torch.Tensor)]
        assert sum(kept) == module.checkpoint_bytes(**sizes)
        assert sum(kept) == chain.plan.checkpoint_bytes(chain.plan.shape(*SIZE))
        module.import_(pool, ints(3), data)
        module.step(pool, ints(2, 3), *tensors)
        ends = module.export(pool, ints(2, 3))
    assert torch.equal(ends["payload"][0], ends["payload"][1])
    assert (ends["stores"] == 2).all()


@pytest.mark.parametrize(("spec", "name"), EMULATED)
def test_slots_live_on_a_gpu(spec: str, name: str) -> None:
    life(spec, name, "sm90", 4)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["cpu", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
@pytest.mark.parametrize("name", [n for n, f in NAMED.items() if isinstance(f, Composed)])
def test_every_preset_on_every_target(name: str, spec: str, arch: str) -> None:
    if not NAMED[name].kernels_on(arch_named(arch).gpu):
        pytest.skip("in the reference model only")
    life(spec, name, arch, 30)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("spec", ["gdn", "kda"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_codes_as_operands_of_integer_products(name: str, spec: str, arch: str) -> None:
    chain = chain_of(spec, name, arch)
    shape = chain.plan.shape(64, 32, 2, 4)
    assert chain.plan.layout(shape).name == "fragment"
    with one_thread():
        section = operate(chain, subject_of(spec, name, arch), shape, 12)
    assert section.ledger.ok


# ---- compositions that nobody named


def pairs() -> list[rules.Choices]:
    """Valid compositions in which every pair of words of two choices stands that any can have, in
    the order of a fixed shuffle."""
    rng, words = np.random.default_rng(11), rules.words()
    words = {k: w for k, w in words.items() if k != "feedback"}
    words["scale"] = tuple(w for w in words["scale"] if "16" not in w)
    names, left, chosen = list(words), set(), []
    every: list[rules.Choices] = []
    for _ in range(6000):
        picks: dict[str, Any] = {n: words[n][rng.integers(len(words[n]))] for n in names}
        picks["compensators"] = 0 if picks["factors"] == "none" else int(rng.integers(1, 9))
        c = rules.Choices(**picks)
        if not rules.refusals(c):
            every.append(c)
    both = {
        c: {((a, vars(c)[a]), (b, vars(c)[b])) for a, b in combinations(names, 2)} for c in every
    }
    left = set().union(*both.values())
    while left:
        best = max(both, key=lambda c: len(both[c] & left))
        chosen.append(best)
        left -= both[best]
    return chosen


PAIRS = pairs()
FEW = PAIRS[1:2]


def compose(c: rules.Choices, arch: str, rounds: int) -> None:
    row = composed("composition", "", c)
    base = pipeline.compile("kda", "cpu")
    state = replace(base.spec.state, compensators=None, smoothing=None)
    plan = make_plan(base.window, state, arch_named(arch), row)
    chain = replace(base, plan=plan)
    with one_thread():
        ran = operate(chain, subject(chain.source, arch), plan.shape(*SIZE), rounds)
    assert ran.ledger.ok, [k.row for k in ran.ledger.checks.values() if not k.ok]


@pytest.mark.parametrize("c", FEW, ids=str)
def test_a_few_pairs_of_choices(c: rules.Choices) -> None:
    compose(c, "cpu", 25)


@pytest.mark.slow
@pytest.mark.parametrize("c", [*PAIRS[:1], *PAIRS[2:]], ids=str)
def test_all_pairs_of_choices(c: rules.Choices) -> None:
    compose(c, "cpu", 25)
