"""What calls on pools with drafts compile, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_pools import Spy, ints

import leapgen
from leapgen.runtime import host
from leapgen.schedule import buffers

SIZES = {"H": 2, "HV": 4, "K": 16, "V": 24}


class NoFlush(Spy):
    """A backend that cannot compile a flush."""

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., None]:
        if func.attrs["global_symbol"] == "flush":
            raise RuntimeError("no room")
        return super().compile(func, target, pass_configs)


def drafts(tokens: int) -> list[torch.Tensor]:
    H, HV, K, V = SIZES.values()
    varying = [(H, K), (H, K), (HV, V), (HV,), (HV,)]
    given = [torch.zeros(1, tokens, *size, dtype=torch.bfloat16) for size in varying]
    return [*given, torch.zeros(HV), torch.zeros(HV)]


def test_a_call_compiles_all_before_it_launches_any() -> None:
    """What does not compile leaves no cursor moved without its flush."""
    spy = NoFlush()
    module = leapgen.load("gdn", arch="cpu").with_backend(spy)
    pool, token = module.allocate(2, **SIZES, drafts=2), [x[:, 0] for x in drafts(1)[:5]]
    module.verify(pool, ints(0), *drafts(2))
    assert spy.launched == ["verify"]
    calls: list[Callable[[], object]] = [
        lambda: module.commit(pool, ints(0), ints(1)),
        lambda: module.verify(pool, ints(0), *drafts(2), accepted=ints(1)),
        lambda: module.step(pool, ints(0), *token, *drafts(1)[5:]),
    ]
    for call in calls:
        with pytest.raises(host.CompileError, match=r"flush.*no room"):
            call()
    assert spy.launched == ["verify"]


def test_all_tuned_flushes_are_prepared() -> None:
    """Of every number of rows: none is compiled while requests wait."""
    spy = Spy()
    module = leapgen.load("gdn", arch="sm90").with_backend(spy)
    module = replace(module, kernels={n: module.kernels[n] for n in ("verify", "flush")})
    pool = module.allocate(64, **SIZES, drafts=2)
    flush = module.config("flush", pool.shape)
    table = [
        host.Tuned(pool.shape, rows, {"flush": {**flush, "min_blocks": blocks}})
        for rows, blocks in ((1, 2), (64, 4))
    ]
    module = module.with_table(table)
    module.prepare(pool)
    compiled = len(spy.compiled)
    for rows in (1, 64):
        module.commit(pool, ints(*range(rows)), ints(*[1] * rows))
    assert len(spy.compiled) == compiled
    one, many = (module.kernel("flush", pool, rows) for rows in (1, 64))
    assert one is not many


@pytest.mark.parametrize("format", ["leapquant-int8", "leap8"])
def test_calls_launch_what_they_need(format: str) -> None:
    """A commit is the flush that may follow it; a verify that accepts launches that one first."""
    spy = Spy()
    module = leapgen.load("gdn", arch="cpu", format=format).with_backend(spy)
    pool, plain = (module.allocate(2, **SIZES, drafts=n) for n in (2, 0))
    token, state = [x[:, 0] for x in drafts(1)[:5]] + drafts(1)[5:], torch.zeros(1, 4, 24, 16)
    row = ints(0)
    calls: dict[str, tuple[Callable[[], object], list[str]]] = {
        "verify": (lambda: module.verify(pool, row, *drafts(2)), ["verify"]),
        "verify and commit": (
            lambda: module.verify(pool, row, *drafts(2), accepted=row),
            ["flush", "verify"],
        ),
        "commit": (lambda: module.commit(pool, row, row), ["flush"]),
        "step": (lambda: module.step(pool, row, *token), ["step", "flush"]),
        "step without drafts": (lambda: module.step(plain, row, *token), ["step", "flush"]),
        "reset": (lambda: module.reset(pool, row), ["reset", "flush"]),
        "load": (lambda: module.load_state(pool, row, state), ["load_state", "flush"]),
        "copy": (lambda: module.copy(pool, row, ints(1)), ["copy", "flush"]),
        "materialize": (lambda: module.materialize(pool, row), ["materialize"]),
    }
    for name, (call, launched) in calls.items():
        spy.launched.clear()
        call()
        assert spy.launched == launched, name


def test_roles_of_a_stored_state_are_the_plans() -> None:
    """The host imports nothing of the compiler."""
    assert host.STORED == buffers.STORED
    assert host.CHECKPOINT == buffers.CHECKPOINT
