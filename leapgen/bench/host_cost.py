"""What the host spends on a step: `python -m leapgen.bench.host_cost SPEC`.

The same step through the module's checked call, through torch's operator and bound once; each with
launches that do nothing (the host's own work) and, on a GPU, with the kernels (all that a launch
costs the host; the queue is emptied between samples). Medians in microseconds, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from leapgen.bench import environment
from leapgen.files import write_atomic
from leapgen.runtime.bound import BoundStep
from leapgen.runtime.host import DTYPES, Module
from leapgen.runtime.module import load
from leapgen.runtime.ops import operators
from leapgen.schedule.arch import arch_named

CALLS, SAMPLES = 50, 15
"""Calls of a sample: fewer than a GPU's queue holds; and samples."""


class Nothing:
    """A backend whose kernels return at once."""

    def __init__(self, device: str) -> None:
        self.device = device

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """See `host.Backend`."""
        return lambda *arguments: None


def microseconds(body: Callable[[], object], device: torch.device) -> float:
    """Median of samples of the host's time a call."""
    for _ in range(CALLS):
        body()
    found = []
    for _ in range(SAMPLES):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            body()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
    return median(found)


def costs(module: Module, rows: int, H: int, HV: int) -> dict[str, float]:
    """By way of calling: rows are inactive, so that kernels take no time of their own."""
    pool = module.allocate(rows, H, HV)
    device = pool.device
    slots = torch.full((rows,), -1, dtype=torch.int32, device=device)

    def token() -> list[torch.Tensor]:
        sizes = [(i.sizes((rows,), pool.shape), DTYPES[i.dtype]) for i in module.inputs]
        return [torch.zeros(s, dtype=d, device=device) for s, d in sizes]

    one, two = token(), token()
    out = module.step(pool, slots, *one)
    bound, calls = BoundStep(module, pool, slots, one, out), operators(module, pool)
    turn = [one, two]

    def others() -> None:
        turn.reverse()
        bound.step(slots, *turn[0], out)

    with torch.no_grad():
        ways: dict[str, Callable[[], object]] = {
            "module.step": lambda: module.step(pool, slots, *one, out=out),
            "operator": lambda: calls.step(slots, *one, out=out),
            "bound, other tensors": others,
            "bound, same tensors": lambda: bound.step(slots, *one, out),
            "bound.run": bound.run,
        }
        return {name: round(microseconds(body, device), 2) for name, body in ways.items()}


def measure(spec: str, rows: int, H: int, HV: int, command: str) -> dict[str, Any]:
    """Both kinds, where they can be told apart, with the environment."""
    module = load(spec)
    arch = arch_named(module.arch)
    kind = "cuda" if arch.gpu else "cpu"
    found = {"without kernels": costs(module.with_backend(Nothing(kind)), rows, H, HV)}
    if arch.gpu:
        found["with kernels"] = costs(module, rows, H, HV)
    device = torch.device(kind)
    return {
        "environment": environment.describe(device, arch, command),
        "spec": spec,
        "rows": rows,
        "heads": [H, HV],
        "microseconds": found,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m leapgen.bench.host_cost", description=__doc__)
    parser.add_argument("spec")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--heads", type=int, nargs=2, default=(16, 32), metavar=("H", "HV"))
    parser.add_argument("--json", type=Path, default=None, help="default: tuning/<gpu>/bench/")
    asked = parser.parse_args(arguments)
    H, HV = asked.heads
    command = f"{parser.prog} {asked.spec} --rows {asked.rows} --heads {H} {HV}"
    found = measure(asked.spec, asked.rows, H, HV, command)
    around = found["environment"]
    folder = environment.folder(around["device"], arch_named(around["arch"]))
    path = asked.json or Path("tuning") / folder / "bench" / f"host-{Path(asked.spec).stem}.json"
    text = json.dumps(found, indent=1)
    write_atomic(path, text + "\n")
    print(text)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
