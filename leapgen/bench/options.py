"""The command line of `leapgen bench`. Imported by every command: the work stands in `command`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leapgen.report.build_options import parsed_picks


def bench(
    specs: Annotated[
        list[str] | None,
        typer.Argument(help="Spec files or names of shipped specs.", metavar="[SPEC...]"),
    ] = None,
    against: Annotated[
        str,
        typer.Option(help="Formats and peers joined by commas, `all`, `none`, or module:name."),
    ] = "all",
    batch: Annotated[str, typer.Option(help="Rows of a launch, joined by commas.")] = (
        "1,8,64,256,512"
    ),
    heads: Annotated[
        str, typer.Option(help="Key and value heads, pairs joined by semicolons.")
    ] = "32,32",
    format: Annotated[str | None, typer.Option(help="State format in place of the spec's.")] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option(help="choice=alternative of the spec; repeatable.", metavar="C=A"),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Default: the one that runs here.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Samples that medians are taken of.")] = 20,
    brief: Annotated[
        bool, typer.Option("--brief", help="Tokens and their parts; not each place and call.")
    ] = False,
    figure7: Annotated[
        bool, typer.Option("--figure7", help="The paper's setting: 32 heads, batches 64 to 512.")
    ] = False,
    dram: Annotated[
        bool, typer.Option("--dram", help="Compare counted bytes with ncu's memory counters.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Result; default: tuning/<gpu>/bench/<name>.json."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture; default: beside the result, if it can be drawn.")
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", help="Show (and plot) a result; measure nothing.")
    ] = None,
) -> bool:
    """Time whole windows of tokens beside peers and the memory ceilings of the same run."""
    from leapgen.bench import command
    from leapgen.report.progress import steps_and_lines

    options = command.Options(
        specs=tuple(specs or ()),
        against=against,
        batch=batch,
        heads=heads,
        format=format,
        picks=parsed_picks(pick),
        arch=arch,
        repeats=repeats,
        brief=brief,
        figure7=figure7,
        dram=dram,
    )
    files = command.Files(json_file, plot, saved)
    with steps_and_lines("bench") as (say, note):
        text, ok = command.execute(options, files, say, note)
    typer.echo(text)
    return ok
