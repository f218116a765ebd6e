"""Kind 9: every two options of a spec together, every mode, against the exact rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from lab import PLAIN, WINDOW, Lab, ints
from torch.nn.functional import normalize

from leapgen import paths
from leapgen.spec.loader import combinations

SPECS = ("gdn", "kda")


def cases() -> Iterator[tuple[str, Mapping[str, str]]]:
    for spec in SPECS:
        yield from ((spec, picks) for picks in combinations(paths.spec_file(spec)))


def name(case: object) -> str:
    return "-".join(case.values()) if isinstance(case, Mapping) else str(case)


@pytest.mark.parametrize(("spec", "picks"), list(cases()), ids=name)
def test_picks(make_lab: Callable[..., Lab], spec: str, picks: Mapping[str, str]) -> None:
    lab = make_lab(spec, PLAIN, picks=dict(picks))
    lab.load([0, 4], lab.random_states(2), position=WINDOW - 3)
    lab.reset(2)
    for _ in range(WINDOW + 2):
        given = lab.inputs(3)
        if picks["norm"] == "none":  # they arrive normalised
            given |= {n: normalize(given[n].float(), dim=-1).to(given[n].dtype) for n in "qk"}
        lab.step([2, 4, 0], given, odd=True)
    lab.check_state(0, 2, 4)
    lab.module.copy(lab.pool, ints(4), ints(1), check=True)
    lab.state[1], lab.roundings[1] = lab.state[4], lab.roundings[4]
    lab.check_state(1)


@pytest.mark.parametrize("format", ["leapquant-int8", "fp32-window", "bf16-window"])
@pytest.mark.parametrize("records", ["fp16", "bf16", "fp32"])
def test_formats_and_records(make_lab: Callable[..., Lab], format: str, records: str) -> None:
    lab = make_lab("kda", PLAIN, format=format, records=records)
    lab.load([0, 4], lab.random_states(2), position=3)
    for _ in range(WINDOW + 2):
        lab.step([4, 0])
    lab.check_state(0, 4)
