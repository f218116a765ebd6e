"""Arguments of `leapgen build`. Imports nothing heavy: every command line loads this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def build(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Spec files or names; without any, all that generated/ keeps.", metavar="[SPEC...]"
        ),
    ] = None,
    arch: Annotated[
        str, typer.Option("--arch", help="Archs, separated by commas, or `all`.")
    ] = "all",
    out: Annotated[
        Path, typer.Option("--out", help="Folder to write to; the default is ./generated.")
    ] = Path("generated"),
    format: Annotated[
        str | None, typer.Option("--format", help="State format in place of the spec's.")
    ] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option("--pick", help="choice=alternative of the spec; repeatable.", metavar="C=A"),
    ] = None,
    all_choices: Annotated[
        bool, typer.Option("--all-choices", help="Every alternative of every choice.")
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile too; table of registers and memory.")
    ] = False,
    remeasure: Annotated[
        bool,
        typer.Option("--remeasure", help="Compile: measure again what another nvcc has measured."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail with a diff if a file differs.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", help="Write compiled kernels with their sources to this new folder."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Bundle: for this model only, not for all; repeatable."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", help="Bundle: in place of models, e.g. H=16,HV=32,window=16; repeatable."
        ),
    ] = None,
    kernels: Annotated[
        str,
        typer.Option("--kernels", help="Bundle, --compile: some kernels only, e.g. step,flush."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> bool:
    """Render the kernels of specs for archs: one module each, written only if it changed; or a
    bundle that runs without leapgen and compilers."""
    picks = parsed_picks(pick)
    words = tuple(word.strip() for word in kernels.split(",") if word.strip())
    if bundle is not None:
        _no_others(
            compile=compile, remeasure=remeasure, check=check, all_choices=all_choices, out=out.name
        )
        if not specs:
            raise typer.BadParameter("name the specs of the bundle", param_hint="SPEC")
        if shape and model:
            raise typer.BadParameter("in place of models: leave one out", param_hint="--shape")
        sizes = tuple(_sizes(text) for text in shape or ())
        chosen = {"models": tuple(model or ()), "shapes": sizes, "kernels": words}
        return _bundle(tuple(specs), arch, bundle, format, picks, chosen, as_json)
    if remeasure and not compile:
        raise typer.BadParameter("measures when kernels are compiled", param_hint="--compile")
    if model or shape:
        raise typer.BadParameter("--model and --shape belong to it", param_hint="--bundle")
    if words and not compile:
        raise typer.BadParameter("chooses what is compiled", param_hint="--kernels")
    from leapgen.report import build_report
    from leapgen.report.progress import steps

    request = build_report.Request(
        specs=tuple(specs or ()),
        archs=build_report.archs(arch),
        out=out,
        format=format,
        picks=picks,
        all_choices=all_choices,
        compile=compile,
        kernels=words,
        remeasure=remeasure,
        check=check,
    )
    with steps("build") as step:
        result = build_report.build(request, step)
    typer.echo(json.dumps(result.data(), indent=2) if as_json else build_report.text(result))
    return result.ok


def _bundle(
    specs: tuple[str, ...],
    arch: str,
    out: Path,
    format: str | None,
    picks: dict[str, str],
    chosen: dict[str, Any],
    as_json: bool,
) -> bool:
    from leapgen.report import build_report, bundle
    from leapgen.report.progress import steps

    archs = build_report.archs(arch)
    request = bundle.Request(specs, archs, out, format, picks, **chosen)
    with steps("bundle") as step:
        result = bundle.build(request, step)
    typer.echo(json.dumps(result, indent=2) if as_json else bundle.text(result))
    return True


def _no_others(out: str, **flags: bool) -> None:
    """Options that a bundle has no use for are refused, not ignored."""
    for name, given in {**flags, "out": out != "generated"}.items():
        if given:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"has no meaning with {option}", param_hint="--bundle")


def parsed_picks(values: list[str] | None) -> dict[str, str]:
    """`choice=alternative` words as a mapping. Errors: BadParameter."""
    picks = dict(value.partition("=")[::2] for value in values or ())
    for choice, alternative in picks.items():
        if not choice or not alternative:
            raise typer.BadParameter(f"`{choice}`: write choice=alternative", param_hint="--pick")
    return picks


SIZES = ("H", "HV", "K", "V", "window", "compensators", "drafts")


def _sizes(text: str) -> dict[str, int]:
    sizes = {}
    for word in text.split(","):
        name, _, number = word.strip().partition("=")
        if name not in SIZES or not number.isdigit():
            raise typer.BadParameter(
                f"`{word}`: write numbers of {', '.join(SIZES)} as in H=16,HV=32",
                param_hint="--shape",
            )
        sizes[name] = int(number)
    return sizes
