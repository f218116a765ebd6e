"""`leapgen build`: modules of specs for archs, written if they changed, or only compared."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leapgen import paths, pipeline
from leapgen.emit.render import Source, render
from leapgen.files import write_atomic, write_folder
from leapgen.formats.table import FORMATS, NAMED
from leapgen.report import manifest, targets
from leapgen.report.progress import Step
from leapgen.report.text import table
from leapgen.report.usage import Usage
from leapgen.report.usage import text as usage_text
from leapgen.schedule.arch import ARCHES, arch_named
from leapgen.spec.model import Spec

SHOWN = ("cpu", "sm90")
"""Archs for which generated/ keeps a file of every format. What a format changes can be read there;
on the other archs these modules differ in names, and the manifest keeps their digests."""


@dataclass(frozen=True)
class Request:
    """What to build; see the command's options. Without specs: everything that generated/ keeps."""

    specs: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    out: Path = Path("generated")
    format: str | None = None
    picks: Mapping[str, str] = field(default_factory=dict)
    all_choices: bool = False
    compile: bool = False
    kernels: tuple[str, ...] = ()
    remeasure: bool = False
    check: bool = False


@dataclass(frozen=True)
class Row:
    """One file. state: new, changed, same, missing, different, stale; diff only with --check."""

    path: str
    lines: int
    digest: str
    state: str
    diff: str = ""

    @property
    def ok(self) -> bool:
        """Whether a check is content with it."""
        return self.state not in ("missing", "different", "stale")


@dataclass
class Result:
    """All files, and the resources of compiled kernels; nvcc: the version that is here."""

    rows: list[Row] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    nvcc: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing differs and no step spills."""
        return all(row.ok for row in self.rows) and all(u.ok for u in self.usage)

    def data(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "ok": self.ok,
            "modules": [asdict(r) for r in self.rows],
            "kernels": [asdict(u) for u in self.usage],
        }


@dataclass(frozen=True)
class Wanted:
    """A module that a request names. kept: as a file, or as a digest in the manifest only; own: of
    the spec's own format; compiled: by `--compile`."""

    spec: Spec
    source: Source
    arch: str
    kept: bool
    own: bool = True
    compiled: bool = True


def archs(words: str) -> tuple[str, ...]:
    """`sm90,sm100`, or `all`. Errors: ArchError."""
    if words == "all":
        return tuple(ARCHES)
    return tuple(arch_named(word.strip()).name for word in words.split(","))


def build(request: Request, step: Step) -> Result:
    """Renders and compiles, then writes or compares; nothing is written before all that is done.

    Errors: Diagnostics, LeapgenError, MissingTool.
    """
    book = manifest.read(request.out)
    wanted = [_as_noted(w, request, book) for w in _wanted(request, step)]
    result = _compile(wanted, request, book, step) if request.compile else Result()
    for arch in sorted({w.arch for w in wanted if w.kept}):
        result.rows += _host(request, arch)
    for w in wanted:
        if w.kept:
            result.rows.append(_file(request, w.source.path, w.source.text, w.source.digest))
        elif request.check and book.digests.get(w.source.path) != w.source.digest:
            lines = _lines(w.source.text)
            result.rows.append(Row(w.source.path, lines, w.source.digest, "different"))
    if result.usage:
        book.measured(result.usage)
    _note(book, wanted, {u.path for u in result.usage if u.kernel == "step"})
    if not request.specs:
        book.forget_all_but({w.source.path for w in wanted}, request.archs)
        result.rows += _stale(request, {r.path for r in result.rows})
    result.rows.append(_file(request, manifest.NAME, book.text(), ""))
    return result


def text(result: Result) -> str:
    """A line a file, diffs of those that differ, and the count."""
    rows = [r for r in result.rows if r.state != "same"] or result.rows
    parts = [
        table(
            ("file", "lines", "digest", "state"),
            [(r.path, r.lines, r.digest or "-", r.state) for r in rows],
        )
    ]
    parts += [r.diff for r in result.rows if r.diff]
    parts += [usage_text(result.usage, result.nvcc)] if result.usage else []
    same = sum(r.state == "same" for r in result.rows)
    parts.append(f"{len(result.rows)} files, {same} unchanged")
    return "\n".join(parts)


def _wanted(request: Request, step: Step) -> Iterator[Wanted]:
    if request.specs:
        for name in request.specs:
            for picks in _picks(name, request):
                yield from _modules(name, request.archs, picks, (request.format,), True, step)
        return
    table = targets.read(request.out)
    for path in map(str, paths.shipped_specs()):
        spec = pipeline.parse(path)
        target = targets.target_of(table, spec.name)
        archs = target.archs(request.archs)
        formats = tuple(FORMATS) if target.every else (None,)
        for w in _modules(path, archs, {}, formats, True, step):
            default = w.spec.state.format == spec.state.format
            kept = w.arch in (target.files if default else SHOWN)
            yield replace(w, kept=kept, compiled=kept or default)
        for arch in target.presets:
            named = [n for n, f in NAMED.items() if f.kernels_on(arch_named(arch).gpu)]
            rest = tuple(n for n in named if arch in request.archs and n not in FORMATS)
            for w in _modules(path, (arch,), {}, rest, False, step):
                yield replace(w, compiled=False)
        for choice, options in spec.choices.items() if target.every else ():
            for option in options[1:]:
                for w in _modules(path, archs, {choice: option}, (None,), False, step):
                    yield replace(w, compiled=False)


def _as_noted(w: Wanted, request: Request, book: manifest.Manifest) -> Wanted:
    """What the folder keeps as a digest is compared and measured as one, also if it is named."""
    digest_only = (request.check or request.compile) and w.source.path in book.digests
    return replace(w, kept=w.kept and not digest_only)


def _compile(
    wanted: Iterable[Wanted], request: Request, book: manifest.Manifest, step: Step
) -> Result:
    # Only here, since these need torch and TileLang: rendering needs neither.
    from leapgen.report.compiled import usage
    from leapgen.report.resources import nvcc_version

    modules = [(w.spec, w.source, w.arch, w.own) for w in wanted if w.compiled]
    nvcc = nvcc_version() if any(arch_named(arch).gpu for _, _, arch, _ in modules) else ""
    known = book.known(nvcc if request.remeasure else "")
    return Result(usage=usage(modules, known, step, request.kernels), nvcc=nvcc)


def _picks(name: str, request: Request) -> Iterable[dict[str, str]]:
    """The picks of the request, or every combination of alternatives that agrees with them."""
    if not request.all_choices:
        return [dict(request.picks)]
    choices = pipeline.parse(name, request.picks).choices
    options = [(request.picks[c],) if c in request.picks else o for c, o in choices.items()]
    return [
        dict(zip(choices, combination, strict=True)) for combination in itertools.product(*options)
    ]


def _modules(
    name: str,
    archs: tuple[str, ...],
    picks: Mapping[str, str],
    formats: tuple[str | None, ...],
    kept: bool,
    step: Step,
) -> Iterator[Wanted]:
    window = None
    default = pipeline.parse(name, picks).state.format
    for format in formats:
        spec = pipeline.parse(name, picks, format)
        # The window does not depend on the format or the arch: derive and prove it once.
        window = window or pipeline.derive(pipeline.lower(spec))
        for arch in archs:
            source = render(pipeline.schedule(window, spec, arch), spec, default)
            step(source.path)
            yield Wanted(spec, source, arch, kept, spec.state.format == default)


def _file(request: Request, path: str, text: str, digest: str) -> Row:
    target = request.out / path
    row = _compared(request, path, text, digest)
    if not request.check:
        write_atomic(target, text)
    return row


def _host(request: Request, arch: str) -> Iterator[Row]:
    """The package beside an arch's modules; all of its files are written at once."""
    place = f"{arch}/{paths.HOST}"
    files = paths.host_files()
    rows = [_compared(request, f"{place}/{name}", text, "") for name, text in files.items()]
    for name in paths.python_files(request.out / place).keys() - files.keys():
        rows.append(Row(f"{place}/{name}", 0, "", "stale" if request.check else "removed"))
    if not request.check:
        write_folder(request.out / place, files)
    yield from rows


def _compared(request: Request, path: str, text: str, digest: str) -> Row:
    """A file before it is written, or in place of that."""
    target = request.out / path
    old = target.read_text() if target.is_file() else None
    if request.check:
        state = "missing" if old is None else "same" if old == text else "different"
        return Row(path, _lines(text), digest, state, _diff(path, old or "", text))
    state = "new" if old is None else "same" if old == text else "changed"
    return Row(path, _lines(text), digest, state)


def _diff(path: str, old: str, new: str, limit: int = 60) -> str:
    lines = list(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), path, f"{path} (rendered)", lineterm=""
        )
    )
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more)


def _stale(request: Request, known: set[str]) -> list[Row]:
    """Modules in the folder that nothing makes any more; a build removes them."""
    rows = []
    for path in sorted(p for arch in request.archs for p in (request.out / arch).glob("*.py")):
        name = path.relative_to(request.out).as_posix()
        if name not in known:
            state = "stale" if request.check else "removed"
            rows.append(Row(name, _lines(path.read_text()), "", state))
            if not request.check:
                path.unlink()
    return rows


def _note(book: manifest.Manifest, wanted: Iterable[Wanted], compiled: set[str]) -> None:
    for w in wanted:
        path, digest = w.source.path, w.source.digest
        book.renew(path, w.source.text, path in compiled)
        if not w.kept:
            book.digests[path] = digest
            book.modules.pop(path, None)  # of when it was
            continue
        book.digests.pop(path, None)
        book.modules[path] = {
            "digest": digest,
            "spec": w.spec.name,
            "picks": dict(w.spec.picks),
            "format": w.spec.state.format,
            "arch": w.arch,
        }


def _lines(text: str) -> int:
    return text.count("\n")
