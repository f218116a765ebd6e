"""Kernels of all shipped specs beside the published recurrences, and a record of their errors:

python tests/recurrences/kernels.py --arch sm90 --out tuning/h200/check/published.json

Each spec, and each alternative that has a reference, runs at a small shape with an FP32 state and
at its published head size with the format that it ships with; each spec also at every other shape
and ratio of heads of the models that it names. Rows of one batch start at different places of a
window, one of them rests now and then, and windows close on the way. Outputs, token by
token, and final states are compared with the reference in float64 (see published.py), which is
itself compared with flash-linear-attention's naive functions where that package is installed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from typing import Any

# Every process has one core: threads of NumPy's products would wait for each other.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]

import draws  # noqa: E402
import fla_naive  # noqa: E402
import numpy as np  # noqa: E402
import published  # noqa: E402
import torch  # noqa: E402

from leapgen import pipeline  # noqa: E402
from leapgen.files import write_atomic  # noqa: E402
from leapgen.oracle.streams import Heads  # noqa: E402
from leapgen.oracle.tolerance import bounds, combined_in, distance  # noqa: E402
from leapgen.report.subjects import one_thread, subject  # noqa: E402
from leapgen.runtime.host import DTYPES  # noqa: E402
from leapgen.spec.model import Spec  # noqa: E402

H, HV, TOKENS = 2, 4, 72
SLOTS = (3, 0, 4)
POSITIONS = (0, 5, 11)
SMALL = Heads(H, HV, 64, 32)
MOST_HEADS = 32  # value heads of a run at a model's shape: the ratio is the model's
EXACT = "fp32-window"

Case = tuple[str, ...]


def module_name(case: Case) -> str:
    """`kda-lower_bound` for ("kda", "gate=lower_bound")."""
    return "-".join([case[0], *(pick.partition("=")[2] for pick in case[1:])])


def picks_of(case: Case) -> dict[str, str]:
    """The alternatives of a case."""
    return dict(pick.split("=") for pick in case[1:])


def start(spec: Spec, heads: Heads) -> Any:
    """Start states [rows, HV, K, V]; positive where the output divides by what is read."""
    kind = "positive" if spec.picks.get("normaliser") == "column" else "normal"
    return draws.states(spec, len(SLOTS), heads, np.random.default_rng(1), kind)


def rests(row: int, token: int) -> bool:
    """Whether a row has no token in this call."""
    return row == 1 and token % 5 == 4


def run_kernel(
    chain: pipeline.Chain, arch: str, heads: Heads, raw: Any, S: Any
) -> tuple[Any, Any, Any, str]:
    """(outputs [T, rows, HV, V], final states [rows, HV, K, V], flushes a row, where it ran)."""
    spec, fixed = chain.spec, {x.name for x in chain.spec.inputs if x.constant}
    where = subject(chain.source, arch)
    module, device = where.module, where.device
    pool = module.allocate(5, H=heads.H, HV=heads.HV, K=heads.K, V=heads.V, device=device)
    slots = torch.tensor(SLOTS, dtype=torch.int32, device=device)
    begin = torch.tensor(POSITIONS, dtype=torch.int32, device=device)
    module.load_state(pool, slots, torch.tensor(S, device=device), begin, layout="KV")
    outputs, count, window = [], np.array(POSITIONS), chain.plan.default_window
    flushes = np.ones(len(SLOTS), int)
    for t in range(TOKENS):
        active = [not rests(row, t) for row in range(len(SLOTS))]
        rows = torch.where(torch.tensor(active, device=device), slots, -1)
        given = [
            torch.tensor(raw[x.name] if x.name in fixed else raw[x.name][:, t])
            .to(DTYPES[x.dtype])
            .to(device)
            for x in spec.inputs
        ]
        out = module.step(pool, rows, *given).double().cpu().numpy()
        assert not out[np.logical_not(active)].any(), "a row that rests gives zero"
        outputs.append(out)
        count = count + np.array(active)
        flushes += np.array(active) * (count % window == 0)
    found = module.materialize(pool, slots, layout="KV").double().cpu().numpy()
    assert not pool.status.any(), "status word"
    return np.stack(outputs), found, flushes, where.how


def own_heads(spec: Spec) -> Heads:
    """The head size that a spec names first."""
    return Heads(H, HV, spec.K, spec.V)


def model_heads(spec: Spec) -> list[Heads]:
    """One for each head size and ratio of heads of the published models that a spec names."""
    found: dict[tuple[int, int, int], Heads] = {}
    for model in spec.models:
        ratio = model.HV // model.H
        keys = min(model.H, max(MOST_HEADS // ratio, 1))
        found.setdefault((model.K, model.V, ratio), Heads(keys, keys * ratio, model.K, model.V))
    return list(found.values())


def check(case: Case, arch: str, format: str | None, heads: Heads | None) -> dict[str, Any]:
    """Errors of one spec, format and shape, each with its bound; all relative to the peak."""
    started = time.perf_counter()
    chain = pipeline.compile(str(ROOT / f"specs/{case[0]}.yaml"), arch, picks_of(case), format)
    spec, plan = chain.spec, chain.plan
    heads = heads or own_heads(spec)
    fixed = frozenset(x.name for x in spec.inputs if x.constant)
    rng = np.random.default_rng(0)
    each = [draws.inputs(spec, TOKENS, heads, rng) for _ in SLOTS]
    raw = {n: each[0][n] if n in fixed else np.stack([e[n] for e in each]) for n in each[0]}
    S = start(spec, heads)
    out, state, flushes, how = run_kernel(chain, arch, heads, raw, S)
    errors: dict[str, list[float]] = {"output": [], "state": [], "output_share": []}
    errors["state_share"] = []
    layer = published.PUBLISHED[case]
    for row in range(len(SLOTS)):
        taken = [t for t in range(TOKENS) if not rests(row, t)]
        mine = {n: raw[n] if n in fixed else raw[n][row][taken] for n in raw}
        expected, last = published.run(layer, mine, S[row].astype(np.float64), fixed)
        limit = bounds(
            plan.format,
            plan.records,
            plan.default_window,
            spec.output.dtype,
            K=heads.K,
            substeps=len(spec.substeps),
            flushes=int(flushes[row]),
            walked=True,
            combined=combined_in(spec),
        )
        for name, gap in (
            ("output", distance(out[taken, row], expected)),
            ("state", distance(state[row], last, axes=2)),
        ):
            errors[name].append(float(gap.max()))
            errors[f"{name}_share"].append(float(gap.max() / limit[name]))
    return {
        "module": chain.source.path,
        "digest": chain.source.digest,
        "format": plan.format.name,
        "shape": f"{heads.K} x {heads.V}",
        "heads": [heads.H, heads.HV],
        "flushes": flushes.tolist(),
        **{name: float(f"{max(values):.3g}") for name, values in errors.items()},
        "how": how,
        "seconds": round(time.perf_counter() - started, 2),
    }


def against_fla(case: Case, device: str) -> dict[str, Any]:
    """How far the package's naive function (FP32) is from our reference, or why it was not run."""
    spec = pipeline.parse(str(ROOT / f"specs/{case[0]}.yaml"), picks_of(case))
    fixed = frozenset(x.name for x in spec.inputs if x.constant)
    raw = draws.inputs(spec, TOKENS, SMALL, np.random.default_rng(2))
    layer, S = published.PUBLISHED[case], start(spec, SMALL)[0]
    expected, last = published.run(layer, raw, S.astype(np.float64), fixed)
    coefficients = layer.prepare(published.spread(raw, HV, fixed))
    try:
        found = fla_naive.run(module_name(case), coefficients, S, device)
    except ImportError as error:
        return {"fla": f"not run: {error}"}
    if found is None:
        return {"fla": "has no such layer"}
    gap = distance(found[0], expected[..., : found[0].shape[-1]]).max()
    return {
        "fla_output": float(f"{gap:.3g}"),
        "fla_state": float(f"{distance(found[1], last, axes=2).max():.3g}"),
    }


def runs_of(case: Case) -> list[tuple[str | None, Heads | None]]:
    """Format and shape of each run of a case; None: what the spec ships with."""
    found: list[tuple[str | None, Heads | None]] = [(EXACT, SMALL), (None, None)]
    if len(case) == 1:
        spec = pipeline.parse(str(ROOT / f"specs/{case[0]}.yaml"))
        found += [(None, heads) for heads in model_heads(spec)]
    return found


def work(case: Case, arch: str, run: tuple[str | None, Heads | None] | None) -> dict[str, Any]:
    """One run of a case, or, without one, how far the package's function is."""
    with one_thread():
        if run is None:
            return against_fla(case, "cuda" if torch.cuda.is_available() else "cpu")
        return check(case, arch, *run)


def size(run: tuple[str | None, Heads | None] | None) -> int:
    """What a run takes, to begin with the longest."""
    heads = run[1] if run else None
    return heads.HV * heads.K * heads.V if heads else 0


def every(arch: str, workers: int, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """All runs, in processes: compiling takes most of the time. Each is printed as it ends."""
    tasks = [(case, run) for case in cases for run in (None, *runs_of(case))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        futures = {}
        for at in sorted(range(len(tasks)), key=lambda at: -size(tasks[at][1])):
            case, run = tasks[at]
            futures[executor.submit(work, case, arch, run)] = at
        found: dict[int, dict[str, Any]] = {}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            sys.stdout.write(json.dumps(found[futures[future]]) + "\n")
            sys.stdout.flush()
    theirs = {case: found[at] for at, (case, run) in enumerate(tasks) if run is None}
    return [{**found[at], **theirs[case]} for at, (case, run) in enumerate(tasks) if run]


def wrong(row: dict[str, Any]) -> list[str]:
    """What is over its bound in a row of the record."""
    found = [f"{n} {row[n]}" for n in ("output_share", "state_share") if not row[n] <= 1]
    # FP32 over tens of tokens, in another order of summation.
    theirs = [n for n in ("fla_output", "fla_state") if n in row]
    found += [f"{n} {row[n]}" for n in theirs if not row[n] <= 1e-4]
    return [f"{row['module']} {row['format']} {row['shape']}: {what}" for what in found]


def record(rows: list[dict[str, Any]], command: str, seconds: float) -> str:
    """The JSON of a run: where, with what, and the rows, one a line."""
    names = ("torch", "tilelang", "numpy", "fla-core", "triton")
    versions = {"python": sys.version.split()[0], "cuda": str(torch.version.cuda)}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    gpu = torch.cuda.is_available()
    head = {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "driver": _driver() if gpu else None,
        "versions": versions,
        "seconds": round(seconds, 1),
        "tokens": TOKENS,
        "positions": list(POSITIONS),
        "modules": {row["module"]: row["digest"] for row in rows},
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return found.strip().splitlines()[0] if found.strip() else "unknown"


def main() -> int:
    """Runs everything, prints each row, writes the record; 3 where something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("specs", nargs="*", help="names of specs; all of them if absent")
    options = parser.parse_args()
    cases = tuple(c for c in published.PUBLISHED if not options.specs or c[0] in options.specs)
    started = time.perf_counter()
    rows = every(options.arch, options.workers, cases)
    command = f"python tests/recurrences/kernels.py --arch {options.arch} --out FILE"
    if options.out:
        write_atomic(options.out, record(rows, command, time.perf_counter() - started))
    faults = [what for row in rows for what in wrong(row)]
    sys.stdout.write("\n".join([*faults, f"{len(rows)} runs, {len(faults)} over a bound\n"]))
    return 3 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
