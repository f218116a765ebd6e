"""Long windows and many compensators, as a study of the method needs them: checked as all others.

A window of 64 tokens with 4 compensators and one of 16 with 16, on the CPU and emulated; both at
once at the published head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from generated_modules import (
    SPECS,
    derived,
    file_of,
    in_words,
    lower_once,
    module_at,
    plan_of,
)

from leapgen.report.ledger import Ledger
from leapgen.report.operations import random_operations, step
from leapgen.report.subjects import Subject, one_thread
from leapgen.report.trial import Trial
from leapgen.runtime import emulated
from leapgen.schedule.arch import arch_named

SMALL, PUBLISHED = (64, 32), (128, 128)
WINDOWS = ((64, 4), (16, 16))  # (P, R)
ROUNDS = {"cpu": 150, "sm90": 40}
QUICK = ("cpu", "gdn", SMALL, (64, 4))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(emulated, "lower", lower_once)
    with one_thread():
        yield


def cases() -> Iterator[object]:
    some = itertools.product(ROUNDS, SPECS, [SMALL], WINDOWS)
    for case in [*some, *((arch, "kda", PUBLISHED, (64, 16)) for arch in ROUNDS)]:
        yield pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("arch", "name", "dims", "window"), list(cases()), ids=in_words)
def test_random_operations(
    arch: str, name: str, dims: tuple[int, int], window: tuple[int, int]
) -> None:
    module, row = module_at(file_of(name, arch)), arch_named(arch)
    if row.gpu:
        module = module.with_backend(emulated.Emulator())
    subject = Subject(module, row, "emulated" if row.gpu else "compiled", "cpu")
    plan, ledger = plan_of(name, arch), Ledger()
    run = Trial(derived(name)[0], plan, subject, plan.shape(*dims, 2, 4, *window), ledger)
    random_operations(run, ROUNDS[arch])
    for _ in range(5 * window[0]):  # a long window may still be open everywhere
        if not run.flushed:
            step(run)
    assert not [c for c in ledger.checks.values() if not c.ok]
    assert len(ledger.checks) > 20
    assert run.flushed
