"""The command line of `leapgen drift`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def drift(
    specs: Annotated[
        list[str], typer.Argument(help="Spec files, or names of shipped specs.", metavar="SPEC...")
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format", help="Formats, separated by commas, or `all`; `leap8[scale=value]` too."
        ),
    ] = "all",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a stream.")] = 4096,
    seeds: Annotated[int, typer.Option(min=1, help="Streams of each spec.")] = 2,
    json_file: Annotated[
        Path | None,
        typer.Option("--file", help="Complete this file of records, and the table beside it."),
    ] = None,
    fit_levels: Annotated[
        bool, typer.Option("--fit-levels", help="Fit KVQuant's levels to these specs instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> bool:
    """Measure state and output errors of formats on the same streams of tokens, against float64."""
    from leapgen import pipeline
    from leapgen.files import write_atomic
    from leapgen.formats.lloyd import FITTED
    from leapgen.formats.table import NAMED
    from leapgen.oracle.streams import Heads
    from leapgen.report.progress import steps
    from leapgen.study import errors, levels

    chosen = tuple(pipeline.parse(name) for name in specs)
    if fit_levels:
        levels.write(chosen, Heads(errors.HEADS, errors.HEADS, chosen[0].K, chosen[0].V), FITTED)
        typer.echo(f"{FITTED.name} written")
        return True
    names = (
        tuple(NAMED) if format == "all" else tuple(re.findall(r"[^,\[]+(?:\[[^\]]*\])?", format))
    )
    known = errors.read(json_file) if json_file else ()
    with steps("drift") as step:
        records = errors.measure(chosen, range(seeds), names, tokens, known, step)
    if json_file:
        command = f"leapgen drift {' '.join(s.name for s in chosen)} --tokens {tokens}"
        every = errors.merged(known, records)
        errors.write(json_file, f"{command} --seeds {seeds} --format {format}", every)
        write_atomic(json_file.with_suffix(".txt"), f"{errors.text(every)}\n")
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in records], indent=2))
    else:
        typer.echo(errors.text(records))
    return True
