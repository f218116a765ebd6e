"""Spec files to `Spec` values: the door of the compiler.

A file is read whole and checked whole: the form of everything, the sense of the picked
combination, and of every other alternative on its own. All errors are raised together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from leapgen.diagnostics import Diagnostic, Diagnostics, Report
from leapgen.spec import choices, grammar, header, program
from leapgen.spec.check import check
from leapgen.spec.model import Spec
from leapgen.spec.reader import read
from leapgen.spec.tree import Table

StateOptions = Mapping[str, str | int | None]


def load(
    path: str | Path, picks: choices.Picks | None = None, state: StateOptions | None = None
) -> Spec:
    """Load a spec file.

    path    the file; errors show it as given
    picks   choice -> alternative; the first alternative where absent
    state   replaces keys of the file's `state` block (format, window, compensators, smoothing,
            records); None means as in the file

    Raises:
        Diagnostics: everything that is wrong with the file, the picks and the state options.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the file is not UTF-8: byte {error.start} cannot be decoded"
        raise Diagnostics([Diagnostic("yaml-syntax", message, str(path))]) from error
    return loads(text, str(path), picks, state)


def loads(
    text: str,
    path: str = "",
    picks: choices.Picks | None = None,
    state: StateOptions | None = None,
) -> Spec:
    """As `load`, from the text of a file; `path` is what errors call it."""
    report = Report(path, text)
    document = _document(report)
    form = tuple(report.items)
    wanted = choices.resolve(document, picks or {}, report)
    heading = header.build(document, report, state or {})
    parts = _program(document, wanted, report)
    _check_others(document, wanted, report, form)
    report.raise_errors()
    assert heading is not None, "a header was refused without a finding"
    assert parts is not None, "a program was refused without a finding"
    known = {name: tuple(options) for name, options in choices.tables(document).items()}
    return Spec(
        name=heading.name,
        title=heading.title,
        path=path,
        K=heading.K,
        V=heading.V,
        inputs=parts.inputs,
        definitions=parts.definitions,
        native=parts.native,
        substeps=parts.substeps,
        output=parts.output,
        state=heading.state,
        tolerances=heading.tolerances,
        choices=known,
        picks=dict(wanted),
        models=heading.models,
        source=text,
    )


def combinations(path: str | Path) -> tuple[Mapping[str, str], ...]:
    """Picks in which every two alternatives of two choices meet, the defaults first.

    Raises:
        Diagnostics: the file's form is wrong.
    """
    report = Report(str(path), Path(path).read_text(encoding="utf-8"))
    document = _document(report)
    report.raise_errors()
    return tuple(dict(p) for p in choices.pairs(document))


def _document(report: Report) -> Table:
    """The file's tables, checked against the grammar; raises when there is no table at all."""
    document = check(read(report), grammar.SPEC, report)
    if not isinstance(document, Table):
        report.raise_errors()
        raise AssertionError("the grammar refused the file without a finding")
    choices.check_choices(document, report)
    return document


def _program(document: Table, picks: choices.Picks, report: Report) -> program.Program | None:
    reasons = dict(_dropped(document, picks))
    return program.build(choices.apply(document, picks), report, reasons)


def _dropped(document: Table, picks: choices.Picks) -> Iterator[tuple[str, str]]:
    for choice, alternatives in choices.tables(document).items():
        for name in choices.dropped_names(alternatives[picks[choice]]):
            yield name, f"`{choice}: {picks[choice]}` drops it"


def _check_others(
    document: Table, wanted: choices.Picks, report: Report, form: tuple[Diagnostic, ...]
) -> None:
    """Check the defaults and every other alternative on its own; note where errors come from.

    form    findings about the file's form, which hide others in every combination
    """
    others = [choices.defaults(document), *choices.singles(document)]
    base = others[0]
    for picks in others:
        if picks == wanted:
            continue
        trial = Report(report.path, report.source, list(form))
        _program(document, picks, trial)
        seen = {(d.code, d.span, d.message) for d in report.items}
        picked = [f"{c}: {a}" for c, a in picks.items() if a != base[c]]
        note = f"with the choice `{', '.join(picked)}`" if picked else "with the default choices"
        for d in trial.items[len(form) :]:
            if (d.code, d.span, d.message) not in seen:
                report.error(d.code, d.message, d.span, d.label, d.help, (*d.notes, note))
