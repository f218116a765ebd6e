"""What a spec says beside the recurrence: its name, dimensions, state, tolerances and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leapgen.diagnostics import Diagnostic, Report, Span
from leapgen.spec import choices, grammar
from leapgen.spec.check import check, format_refusals
from leapgen.spec.model import PublishedModel, State
from leapgen.spec.tree import Broken, Entry, Leaf, Table, scalar

CHOICES = ("payload", "scale", "transform", "factors", "rounding")
"""Keys of the state that replace a choice of its format."""


@dataclass(frozen=True)
class Header:
    """Everything of a spec that no choice changes."""

    name: str
    title: str
    K: int
    V: int
    state: State
    tolerances: Mapping[str, float]
    models: tuple[PublishedModel, ...]


def build(
    document: Table, report: Report, options: Mapping[str, str | int | None]
) -> Header | None:
    """The header of a document; None where a part is missing or broken, which was reported.

    options    replaces keys of the file's `state`; None leaves a key as it is
    """
    dims, name, title = document.get("dims"), document.get("name"), document.get("title")
    K = _whole(dims, "key") if isinstance(dims, Table) else None
    V = _whole(dims, "value") if isinstance(dims, Table) else None
    state = _state(document.get("state"), report, options)
    models = _models(document, report, K or 0, V or 0)
    if not isinstance(name, Leaf) or not isinstance(title, Leaf):
        return None
    if K is None or V is None or state is None:
        return None
    return Header(name.text, title.text, K, V, state, _tolerances(document), models)


def _whole(table: Table, name: str) -> int | None:
    leaf = table.get(name)
    return leaf.value if isinstance(leaf, Leaf) and isinstance(leaf.value, int) else None


def _word(table: Table, name: str) -> str | None:
    leaf = table.get(name)
    return leaf.text if isinstance(leaf, Leaf) else None


def _state(block: object, report: Report, options: Mapping[str, str | int | None]) -> State | None:
    changed = _options(report, options)
    if not isinstance(block, Table):
        return None
    table = Table({**block.entries, **changed}, block.span)
    if any(isinstance(entry.value, Broken) for entry in table.entries.values()):
        return None
    name, window = _word(table, "format"), _whole(table, "window")
    if name is None or window is None:
        return None
    state = State(
        format=name,
        window=window,
        compensators=_whole(table, "compensators"),
        smoothing=_word(table, "smoothing"),
        records=_word(table, "records") or grammar.RECORD_DTYPES[0],
        span=block.span,
        **{key: _word(table, key) for key in CHOICES},
    )
    _check_format(report, table, state)
    return state


def _check_format(report: Report, table: Table, state: State) -> None:
    """Options that the format does not have are errors at their keys; where one lacks another,
    which the file does not name, at the first that it does."""
    if state.smoothing is not None and state.transform is not None:
        help_text = "write one of them: a smoothing is a transform"
        message = "`smoothing` and `transform` both say what happens to the residual"
        report.error("format-option", message, table.key("smoothing"), help=help_text)
        return
    given = [key for key, word in state.choices.items() if word is not None]
    for choice, message in format_refusals(state.format, state.choices):
        key = next((k for k in (choice, *given) if k in table.entries), "format")
        key = "smoothing" if choice == "transform" and "smoothing" in given else key
        help_text = f"leave `{key}` out, or choose another format"
        report.error("format-option", message, table.key(key), help=help_text)


def _options(report: Report, options: Mapping[str, str | int | None]) -> Mapping[str, Entry]:
    """State options of the caller, checked as the file's are; their errors have no place."""
    nowhere = Span(1, 1, 2)
    given = {name: value for name, value in options.items() if value is not None}
    leaves = {
        name: Leaf(scalar(value) if isinstance(value, str) else value, str(value), nowhere)
        for name, value in given.items()
    }
    kinds = {n: grammar.Key(k.kind, k.doc) for n, k in grammar.STATE.keys.items()}
    table = Table({name: Entry(nowhere, leaf) for name, leaf in leaves.items()}, nowhere)
    own = Report()
    checked = check(table, grammar.Fields(kinds, "the state"), own, "option `state`")
    for d in own.items:
        report.items.append(Diagnostic(d.code, d.message, help=d.help, notes=d.notes))
    return checked.entries if isinstance(checked, Table) else {}


def _tolerances(document: Table) -> Mapping[str, float]:
    block = document.get("tolerances")
    entries = block.entries if isinstance(block, Table) else {}
    leaves = {name: entry.value for name, entry in entries.items()}
    return {
        name: float(leaf.value)
        for name, leaf in leaves.items()
        if isinstance(leaf, Leaf) and isinstance(leaf.value, (int, float))
    }


def _models(document: Table, report: Report, K: int, V: int) -> tuple[PublishedModel, ...]:
    block = document.get("models")
    entries = block.entries if isinstance(block, Table) else {}
    found = [_model(document, n, e, report, (K, V)) for n, e in entries.items()]
    return tuple(m for m in found if m is not None)


def _model(
    document: Table, name: str, entry: Entry, report: Report, dims: tuple[int, int]
) -> PublishedModel | None:
    table = entry.value
    if not isinstance(table, Table):
        return None
    picks = _picks(document, table, report)
    H, HV = _whole(table, "H"), _whole(table, "HV")
    if H is None or HV is None:
        return None
    if HV % H:
        message = f"HV = {HV} is not a multiple of H = {H}"
        help_text = "consecutive value heads share a key head, the same number for each"
        value = table.get("HV")
        report.error("head-ratio", message, value.span if value else entry.key, help=help_text)
    return PublishedModel(
        name=name,
        H=H,
        HV=HV,
        layers=_whole(table, "layers"),
        kv=_whole(table, "kv"),
        conv=_whole(table, "conv"),
        K=_whole(table, "K") or dims[0],
        V=_whole(table, "V") or dims[1],
        picks=picks,
        source=_word(table, "source") or "",
        span=entry.key,
    )


def _picks(document: Table, table: Table, report: Report) -> choices.Picks:
    """The model's alternatives; unknown ones are reported at their keys and values."""
    picked: dict[str, str] = {}
    known = choices.tables(document)
    fixed = grammar.MODEL.keys
    for key, entry in table.entries.items():
        if key in fixed or not isinstance(entry.value, Leaf):
            continue
        span = entry.value.span if key in known else entry.key
        choices.resolve(document, {key: entry.value.text}, report, span)
        picked[key] = entry.value.text
    return {**choices.defaults(document), **picked}
