"""Arguments of `leapgen tune`. Imports nothing heavy: every command line loads this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from leapgen.report.build_options import parsed_picks


def tune(
    spec: Annotated[str, typer.Argument(help="A spec file, or the name of a shipped spec.")],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", help="auto, cpu, or an arch or product (`sm100`, `b200`): predicted, not run."
        ),
    ] = "auto",
    format: Annotated[
        str | None, typer.Option("--format", help="State format in place of the spec's.")
    ] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option("--pick", help="choice=alternative of the spec; repeatable.", metavar="C=A"),
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", help="Numbers of rows, separated by commas.")
    ] = "1,8,64,256,512",
    heads: Annotated[
        str, typer.Option("--heads", help="Key and value heads: `H,HV`, separated by semicolons.")
    ] = "32,32;16,32",
    budget: Annotated[
        float, typer.Option("--budget", min=1, help="Seconds; what is left is for the next run.")
    ] = 240,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of tables; the default is ./tuning.")
    ] = Path("tuning"),
    again: Annotated[
        bool, typer.Option("--again", help="Forget what earlier runs have measured.")
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Only compile the candidates, on a machine without the GPU too; its journal saves "
            "the run there that work.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> bool:
    """Find the fastest configs of a spec's kernels for a GPU; a killed run is resumed."""
    batches, pairs, picks = _numbers(batch, "--batch"), _pairs(heads), parsed_picks(pick)
    from leapgen.report.progress import bar
    from leapgen.tune import command

    request = command.Request(
        spec=spec,
        gpu=gpu,
        format=format,
        picks=picks,
        batches=batches,
        heads=pairs,
        budget=budget,
        out=out,
        again=again,
        compile=compile,
    )
    with bar(f"tune {spec}", command.units(request)) as notice:
        tuned = command.tune(request, notice)
    typer.echo(json.dumps(tuned.data(), indent=2) if as_json else command.text(tuned))
    return True


def _numbers(text: str, option: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise typer.BadParameter(f"`{text}`: write numbers as in 1,8,64", param_hint=option)
    return tuple(int(word) for word in words)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    option = "--heads"
    pairs = [_numbers(part, option) for part in text.split(";") if part.strip()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise typer.BadParameter(f"`{text}`: write pairs as in 32,32;16,32", param_hint=option)
    return tuple((pair[0], pair[1]) for pair in pairs)
