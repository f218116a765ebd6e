"""Choices: orthogonal alternatives, each a patch of the file's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from leapgen.diagnostics import Report, Span, listing, suggest
from leapgen.spec.names import RESERVED_CHOICES
from leapgen.spec.tree import Entry, Items, Leaf, Table, Tree

Picks = Mapping[str, str]


def tables(document: Table) -> Mapping[str, Mapping[str, Table]]:
    """choice -> alternative -> patch, for all choices that could be read."""
    choices = document.get("choices")
    result: dict[str, dict[str, Table]] = {}
    for name, entry in choices.entries.items() if isinstance(choices, Table) else ():
        if isinstance(entry.value, Table):
            patches = {a: e.value for a, e in entry.value.entries.items()}
            result[name] = {a: p for a, p in patches.items() if isinstance(p, Table)}
    return {name: alternatives for name, alternatives in result.items() if alternatives}


def defaults(document: Table) -> dict[str, str]:
    """The first alternative of every choice."""
    return {name: next(iter(alternatives)) for name, alternatives in tables(document).items()}


def resolve(document: Table, picks: Picks, report: Report, span: Span | None = None) -> Picks:
    """One alternative of every choice: the picked ones, otherwise the first.

    Unknown choices and alternatives are reported at `span`, or for the file as a whole.
    """
    known, result = tables(document), defaults(document)
    for choice, alternative in picks.items():
        if choice not in known:
            have = f"the choices are {listing(known)}" if known else "this spec has no choices"
            help_text = suggest(choice, known) or have
            report.error("unknown-choice", f"there is no choice `{choice}`", span, help=help_text)
        elif alternative not in known[choice]:
            have = f"the alternatives are {listing(known[choice])}"
            message = f"`{choice}` has no alternative `{alternative}`"
            help_text = suggest(alternative, known[choice]) or have
            report.error("unknown-pick", message, span, help=help_text)
        else:
            result[choice] = alternative
    return result


def singles(document: Table) -> Iterator[Picks]:
    """Every alternative that is not a default, alone."""
    base = defaults(document)
    for choice, alternatives in tables(document).items():
        for alternative in alternatives:
            if alternative != base[choice]:
                yield {**base, choice: alternative}


def pairs(document: Table) -> Iterator[Picks]:
    """Combinations in which every two alternatives of two choices meet; the defaults first."""
    base, seen = defaults(document), [defaults(document)]
    seen += [dict(p) for p in singles(document)]
    for (one, left), (two, right) in combinations(tables(document).items(), 2):
        seen += [{**base, one: a, two: b} for a in left for b in right]
    unique = {tuple(p.items()): p for p in seen}
    yield from unique.values()


def apply(document: Table, picks: Picks) -> Table:
    """The document with the picked alternative of every choice applied, in the file's order."""
    for choice, alternatives in tables(document).items():
        document = _patched(document, alternatives[picks[choice]])
    return document


def _patched(document: Table, patch: Table) -> Table:
    added, new = _entries(patch, "inputs"), _entries(patch, "let")
    dropped = set(dropped_names(patch))
    inputs = _inputs(_entries(document, "inputs"), added, dropped)
    gone = dropped | (set(added) - set(new))  # a value that arrives ready needs no definition
    kept = {n: e for n, e in _entries(document, "let").items() if n not in gone}
    recurrence = {**_entries(document, "recurrence"), **_entries(patch, "recurrence")}
    blocks = {"inputs": inputs, "let": _definitions(kept, new), "recurrence": recurrence}
    entries = dict(document.entries)
    for name, block in blocks.items():
        if block:
            key = document.key(name)
            value = document.get(name)
            entries[name] = Entry(key, Table(block, value.span if value else key))
        elif name in entries and isinstance(entries[name].value, Table):
            del entries[name]
    return Table(entries, document.span)


def _inputs(
    base: Mapping[str, Entry], added: Mapping[str, Entry], dropped: set[str]
) -> dict[str, Entry]:
    """New inputs take the place of the first one that the alternative drops, else the end."""
    result: dict[str, Entry] = {}
    fresh = {n: e for n, e in added.items() if n not in base or n in dropped}
    for name, entry in base.items():
        if name in dropped:
            result.update(fresh)
        else:
            result[name] = added.get(name, entry)
    return {**result, **fresh}


def _definitions(base: Mapping[str, Entry], new: Mapping[str, Entry]) -> dict[str, Entry]:
    """Replaced ones keep their place; new ones stand before the next replaced one, else last."""
    before: dict[str, dict[str, Entry]] = {}
    pending: dict[str, Entry] = {}
    for name, entry in new.items():
        pending[name] = entry
        if name in base:
            before[name], pending = pending, {}
    result: dict[str, Entry] = {}
    for name, entry in base.items():
        result.update(before.get(name, {name: entry}))
    return {**result, **pending}


def _entries(table: Table, name: str) -> Mapping[str, Entry]:
    block = table.get(name)
    return block.entries if isinstance(block, Table) else {}


def _drops(patch: Table) -> tuple[Leaf, ...]:
    block = patch.get("drop")
    leaves: tuple[Tree, ...] = block.values if isinstance(block, Items) else ()
    return tuple(leaf for leaf in leaves if isinstance(leaf, Leaf))


def dropped_names(patch: Table) -> tuple[str, ...]:
    """Names of inputs and definitions that an alternative does without."""
    return tuple(leaf.text for leaf in _drops(patch))


def check_choices(document: Table, report: Report) -> None:
    """Report choices that cannot be told apart, that overlap, and drops of unknown names."""
    known = tables(document)
    block = document.get("choices")
    for choice, alternatives in known.items():
        if choice in RESERVED_CHOICES and isinstance(block, Table):
            message = f"a choice cannot be called `{choice}`"
            help_text = "it is an option of its own in `leapgen.load` or a key of models"
            report.error("reserved-name", message, block.key(choice), help=help_text)
        for patch in alternatives.values():
            _check_drops(document, patch, report)
    _check_names(document, known, report)
    for (one, left), (two, right) in combinations(known.items(), 2):
        _check_overlap((one, left), (two, right), report)


def _check_drops(document: Table, patch: Table, report: Report) -> None:
    names = (*_entries(document, "inputs"), *_entries(document, "let"))
    for leaf in _drops(patch) if names else ():
        if leaf.text not in names:
            message = f"`{leaf.text}` cannot be dropped: there is no such input or definition"
            help_text = suggest(leaf.text, names) or f"there are {listing(names)}"
            report.error("unknown-drop", message, leaf.span, help=help_text)


def _check_names(document: Table, known: Mapping[str, Mapping[str, Table]], report: Report) -> None:
    """Alternatives name modules (`<spec>-<alternative>`), so they are unique over all choices."""
    owner: dict[str, str] = {}
    block = document.get("choices")
    for choice, alternatives in known.items():
        for name in alternatives:
            if owner.setdefault(name, choice) == choice or not isinstance(block, Table):
                continue
            table = block.get(choice)
            span = table.key(name) if isinstance(table, Table) else block.span
            message = f"`{name}` is already an alternative of `{owner[name]}`"
            help_text = "modules are named after alternatives: give it another name"
            report.error("ambiguous-alternative", message, span, help=help_text)


def _touched(patch: Table) -> dict[str, Span]:
    """What an alternative sets or drops, in words, and where."""
    result = {f"the input or definition `{leaf.text}`": leaf.span for leaf in _drops(patch)}
    for block in ("inputs", "let"):
        for name, entry in _entries(patch, block).items():
            result.setdefault(f"the input or definition `{name}`", entry.key)
    for name, entry in _entries(patch, "recurrence").items():
        result[f"`recurrence.{name}`"] = entry.key
    return result


def _check_overlap(
    one: tuple[str, Mapping[str, Table]], two: tuple[str, Mapping[str, Table]], report: Report
) -> None:
    first = {what for patch in one[1].values() for what in _touched(patch)}
    for patch in two[1].values():
        for what, span in _touched(patch).items():
            if what in first:
                message = f"the choices `{one[0]}` and `{two[0]}` both change {what}"
                help_text = "choices must not depend on each other: split it in two definitions"
                report.error("choices-overlap", message, span, help=help_text)
