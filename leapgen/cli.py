"""The command line. Arguments and exit codes only: each command calls one function of `report`.

stdout carries the result, stderr progress and errors. Exit codes: 0 fine, 1 diagnostics, 2 usage,
3 verification (or `--check`) failed, 4 something needed is missing here. Commands import inside
their bodies, so that `leapgen --help` does not pay for SymPy, torch or TileLang.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer

from leapgen.bench.options import bench
from leapgen.diagnostics import Diagnostics, LeapgenError, MissingTool
from leapgen.report.build_options import build, parsed_picks
from leapgen.study.options import drift
from leapgen.tune.options import tune

app = typer.Typer(
    name="leapgen",
    help="Compile YAML specs of linear-attention recurrences to TileLang kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
P = ParamSpec("P")

SpecArgument = Annotated[str, typer.Argument(help="A spec file, or the name of a shipped spec.")]
SpecsArgument = Annotated[
    list[str], typer.Argument(help="Spec files, or names of shipped specs.", metavar="SPEC...")
]
ArchOption = Annotated[str, typer.Option("--arch", help="One arch (see `leapgen list archs`).")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="State format in place of the spec's.")
]
PickOption = Annotated[
    list[str] | None,
    typer.Option("--pick", help="choice=alternative of the spec; repeatable.", metavar="C=A"),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A published model of the spec: shape and choices.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class Exit(IntEnum):
    """Exit codes; `USAGE` is also what the argument parser itself uses."""

    FINE = 0
    DIAGNOSTICS = 1
    USAGE = 2
    FAILED = 3
    MISSING = 4


def reported(command: Callable[P, Exit]) -> Callable[P, None]:
    """Turns the errors that a user can cause into text on stderr and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except Diagnostics as error:
            _fail(error.render(colour=_colours()), Exit.DIAGNOSTICS)
        except MissingTool as error:
            _fail(f"error: {error}", Exit.MISSING)
        except LeapgenError as error:
            _fail(f"error: {error}", Exit.DIAGNOSTICS)
        except BrokenPipeError:  # the reader has seen enough: typer ends quietly
            raise
        except OSError as error:  # a file that cannot be read or written
            _fail(f"error: {error}", Exit.DIAGNOSTICS)
        raise typer.Exit(code)

    return run


def judged(command: Callable[P, bool]) -> Callable[P, Exit]:
    """For commands of other files, which only say whether all was right."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> Exit:
        return Exit.FINE if command(*args, **kwargs) else Exit.FAILED

    return run


def _fail(message: str, code: Exit) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _colours() -> bool:
    """A terminal that was not told otherwise (NO_COLOR, see no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


@app.command()
@reported
def new(
    name: Annotated[str, typer.Argument(help="Name of the recurrence, e.g. `my_rule`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("."),
) -> Exit:
    """Write NAME.yaml, a commented spec to start from; nothing is ever overwritten."""
    from leapgen.report import starter

    typer.echo(starter.new(name, out))
    return Exit.FINE


app.command(name="build")(reported(judged(build)))


@app.command()
@reported
def explain(
    spec: SpecArgument,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="Print one value: spec, recurrence, window, plan or source."),
    ] = None,
    arch: ArchOption = "sm90",
    format: FormatOption = None,
    pick: PickOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Show what leapgen derives from a spec: equations, proofs, buffers, bytes and the floor."""
    from leapgen.report import explain as report
    from leapgen.report import explain_text

    if stage is not None:
        typer.echo(explain_text.stage(spec, stage, arch, format, parsed_picks(pick)))
        return Exit.FINE
    explanation = report.explain(spec, arch, format, parsed_picks(pick), model)
    if as_json:
        _print_json(explanation.data())
    else:
        typer.echo(explain_text.markdown(explanation))
    return Exit.FINE


@app.command()
@reported
def verify(
    specs: SpecsArgument,
    arch: ArchOption = "cpu",
    tokens: Annotated[
        int, typer.Option("--tokens", min=512, help="Tokens of the drift check.")
    ] = 4096,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Random operations a shape; less if emulated."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help="State format in place of the spec's; `all`: each in turn."),
    ] = None,
    pick: PickOption = None,
    model: ModelOption = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Note what passed in this file of evidence."),
    ] = None,
    as_json: JsonOption = False,
) -> Exit:
    """Compile and run a spec's kernels against its oracles; print each error and its bound."""
    from leapgen.report import verify as report
    from leapgen.report.progress import steps

    requests = [
        report.Request(name, arch, row, parsed_picks(pick), model, tokens, rounds)
        for name in specs
        for row in report.formats(format, arch)
    ]
    if record is not None:
        report.require_whole(requests)
    results = []
    with steps("verify") as step:
        for request in requests:
            results.append(report.verify(request, step))
            if record is not None:
                report.record(record, results[-1:])
    if as_json:
        _print_json([result.data() for result in results])
    else:
        typer.echo("\n\n".join(report.text(result) for result in results))
    return Exit.FINE if all(result.ok for result in results) else Exit.FAILED


app.command(name="tune")(reported(judged(tune)))
app.command(name="bench")(reported(judged(bench)))
app.command(name="drift")(reported(judged(drift)))


@app.command(name="list")
@reported
def list_(
    what: Annotated[
        str | None, typer.Argument(help="specs, formats, archs or models; all of them if absent.")
    ] = None,
    as_table: Annotated[
        bool, typer.Option("--table", help="What a token of each spec stores and moves.")
    ] = False,
    as_formats: Annotated[
        bool, typer.Option("--formats", help="What each format is made of, and its bytes.")
    ] = False,
    as_memory: Annotated[
        bool, typer.Option("--memory", help="What prefix caches of published models take.")
    ] = False,
    as_json: JsonOption = False,
) -> Exit:
    """List the specs, formats, archs and published models that leapgen knows."""
    from leapgen.report import costs, format_bytes, listing, memory

    if as_table or as_formats or as_memory:
        option = "--table" if as_table else "--formats" if as_formats else "--memory"
        if what is not None:
            raise typer.BadParameter("a table has every row: leave WHAT out", param_hint=option)
        report = {"--table": costs, "--formats": format_bytes, "--memory": memory}[option]
        if as_json:
            _print_json(report.data())
        else:
            typer.echo(report.text())
        return Exit.FINE
    if what is not None and what not in listing.TOPICS:
        raise typer.BadParameter(f"`{what}`: one of {', '.join(listing.TOPICS)}", param_hint="WHAT")
    topics = (what,) if what else tuple(listing.TOPICS)
    if as_json:
        _print_json({topic: listing.data(topic) for topic in topics})
    else:
        typer.echo("\n\n".join(listing.text(topic) for topic in topics))
    return Exit.FINE


@app.command()
@reported
def doctor(as_json: JsonOption = False) -> Exit:
    """Report what is installed, what each arch needs, and how to get what is missing."""
    from leapgen.report import doctor as report

    health = report.examine()
    if as_json:
        _print_json(health.data())
    else:
        typer.echo(report.text(health))
    return Exit.FINE if health.ok else Exit.MISSING


@app.command()
@reported
def version() -> Exit:
    """Print leapgen's version and that of the TileLang it is pinned to."""
    from importlib import metadata

    from leapgen.report.doctor import pin

    typer.echo(f"leapgen {metadata.version('leapgen')} (tilelang {pin('tilelang')})")
    return Exit.FINE


def main() -> None:
    """The console script."""
    app(prog_name="leapgen")


if __name__ == "__main__":
    main()
