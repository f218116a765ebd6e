"""What the order of rows saves, and what it would save if it were free:

    python -m leapgen.bench.row_orders SPEC:32/32:64 SPEC:16/64:128 --format F --json FILE

Each case is a spec, its key and value heads, and rows, which stand in random places of the launch
and of their windows. Microseconds a token, flushes included, with the order that the host's rule
gives (or none) and in natural order; and of the step alone, whose windows never close. Both runs
start from the same states and must end with the same bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from leapgen.bench import cases, environment, measure
from leapgen.bench.contender import contender
from leapgen.bench.ours import Ours
from leapgen.bench.timing import timer_for
from leapgen.files import write_atomic
from leapgen.runtime.host.orders import front_of
from leapgen.runtime.module import present_arch


@dataclass(frozen=True)
class Result:
    """One case. front: rows before the launch's back, 0 where the rule leaves rows as they are."""

    spec: str
    H: int
    HV: int
    rows: int
    front: int
    ordered_us: float
    natural_us: float
    step_us: float
    equal: bool


def result(
    spec: str,
    H: int,
    HV: int,
    rows: int,
    device: torch.device,
    repeats: int = 7,
    format: str | None = None,
) -> Result:
    """Times of one case on the present GPU (or a CPU, where no rows have an order), of the spec's
    own format unless one is given, and of its head size."""
    ours_of, timer = contender(spec, present_arch().name, None, format), timer_for(device)
    sizes = ours_of.sizes(H, HV)
    bytes_per_slot = ours_of.module.bytes_per_slot(**sizes)
    sets = cases.set_count(rows, bytes_per_slot, cases.cache_bytes(device))
    case = cases.Draws(ours_of.spec, device).case(ours_of.module.shape(**sizes), rows, sets)
    ours = Ours(ours_of, case)
    ours.shuffle(rows)
    step = measure.step_alone(timer, ours, repeats)
    front = front_of(ours.pool, rows, ours.module.step_kernels(ours.pool, rows))
    ordered = measure.tokens(timer, ours, case, repeats)
    bits = {name: tensor.clone() for name, tensor in ours.pool.items()}
    ours.natural()
    natural = measure.tokens(timer, ours, case, repeats)
    equal = all(
        torch.equal(bits[name].view(torch.uint8), tensor.view(torch.uint8))
        for name, tensor in ours.pool.items()
    )
    us = [round(t.median, 2) for t in (ordered, natural, step) if t is not None]
    return Result(spec, H, HV, rows, front, us[0], us[1], us[2], equal)


def main() -> int:
    """Prints a line a case, writes the record; 3 where bits differ, 4 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="SPEC:H/HV:ROWS")
    parser.add_argument("--format")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("error: rows have an order on GPUs only, and there is none\n")
        return 4
    found, device = [], torch.device("cuda", 0)
    for words in options.cases:
        spec, heads, rows = words.split(":")
        H, HV = map(int, heads.split("/"))
        found.append(result(spec, H, HV, int(rows), device, format=options.format))
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
    if options.json:
        said = [*options.cases, *(["--format", options.format] if options.format else [])]
        command = "python -m leapgen.bench.row_orders " + " ".join(said)
        head = environment.describe(device, present_arch(), command)
        write_atomic(options.json, json.dumps({**head, "rows": list(map(asdict, found))}, indent=1))
    return 0 if all(r.equal for r in found) else 3


if __name__ == "__main__":
    sys.exit(main())
