"""Levels of KVQuant's payload: k-means of states of streams that no study measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from leapgen.files import write_atomic
from leapgen.formats import outliers
from leapgen.formats.lloyd import k_means
from leapgen.oracle.drift import Direct
from leapgen.oracle.evaluate import definitions
from leapgen.oracle.stepwise import token_of
from leapgen.oracle.streams import Heads, stream
from leapgen.spec.model import Spec

SEED = 77
TOKENS = 2048
EVERY = 512
WIDTHS = (8, 6, 4)
DIGITS = 5


def calibration(spec: Spec, heads: Heads) -> np.ndarray:
    """Numbers in [-1, 1] of exact states, every EVERY tokens, without outliers."""
    inputs = stream(spec, TOKENS, heads, SEED)
    token = token_of(spec, definitions(spec, inputs, heads.HV, np.float32))
    direct = Direct((heads.HV, heads.K, heads.V), np.float32, spec, "fp32")
    found = []
    for t in range(TOKENS):
        direct.advance(token.at(t))
        if (t + 1) % EVERY == 0:
            found.append(outliers.normalised(direct.S, 1)[0].ravel())
    return np.concatenate(found)


def write(specs: tuple[Spec, ...], heads: Heads, path: Path) -> None:
    """Fit the levels of every width to the states of these specs, and keep their positive half."""
    data = np.concatenate([calibration(spec, heads) for spec in specs]).astype(np.float64)
    levels = {str(b): np.round(k_means(data, b), DIGITS).tolist() for b in WIDTHS}
    record = {
        "command": f"leapgen drift {' '.join(s.name for s in specs)} --fit-levels",
        "numbers": len(data),
        "levels": levels,
    }
    lines = ",\n".join(f'"{b}": {json.dumps(x)}' for b, x in levels.items())
    head = json.dumps({k: v for k, v in record.items() if k != "levels"})[:-1]
    write_atomic(path, f'{head}, "levels": {{\n{lines}\n}}}}\n')
