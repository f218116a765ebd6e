"""A tree against the grammar: everything that is wrong with a file's form, all at once."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from leapgen.diagnostics import Report, listing, suggest
from leapgen.spec import beyond
from leapgen.spec import grammar as g
from leapgen.spec.tree import Broken, Entry, Items, Leaf, Table, Tree, scalar


def format_names() -> tuple[str, ...]:
    """Names of the storage formats. Asked late: formats are built on specs, not below them."""
    return tuple(importlib.import_module("leapgen.formats.table").NAMED)


def format_words(choice: str) -> tuple[str, ...]:
    """Words for one choice of a format."""
    return tuple(importlib.import_module("leapgen.formats.choices").words()[choice])


def format_refusals(name: str, changed: Mapping[str, object]) -> list[tuple[str, str]]:
    """Why a format cannot have these choices, as (choice, sentence); empty when it can."""
    table = importlib.import_module("leapgen.formats.table")
    return [(r.choice, r.message) for r in table.refusals(name, changed)]


def check(tree: Tree, kind: g.Kind, report: Report, what: str = "the file") -> Tree:
    """The tree with `Broken` in place of what was reported, and without unknown keys.

    what    words for messages: what the tree stands for, e.g. "`state`"
    """
    return _Checker(report).tree(tree, kind, what)


@dataclass(frozen=True)
class _Checker:
    report: Report

    def tree(self, tree: Tree, kind: g.Kind, what: str) -> Tree:
        if isinstance(tree, Broken):
            return tree
        match kind:
            case g.Fields():
                return self._fields(tree, kind, what)
            case g.MapOf():
                return self._map(tree, kind, what)
            case g.ListOf():
                return self._list(tree, kind, what)
        if isinstance(kind, g.AxisName) and self._other_axes(tree, what):
            return Broken(tree.span)
        if not isinstance(tree, Leaf):
            self._type(tree, what, kind)
            return Broken(tree.span)
        return tree if self._leaf(tree, kind, what) else Broken(tree.span)

    def _type(self, tree: Tree, what: str, kind: g.Kind) -> None:
        message = f"{what} must be {_wanted(kind)}, not {_found(tree)}"
        self.report.error("wrong-type", message, tree.span, help=_example(tree, kind))

    def _other_axes(self, tree: Tree, what: str) -> bool:
        """Report axes that no input has, and why."""
        leaves = tree.values if isinstance(tree, Items) else (tree,)
        words = tuple(w for t in leaves if isinstance(t, Leaf) for w in beyond.axis_words(t.text))
        why = beyond.axes_help(words)
        if why:
            message = f"{what} must be `K` or `V`, not {' and '.join(words)}"
            self.report.error("input-axes", message, tree.span, help=why)
        return bool(why)

    def _fields(self, tree: Tree, kind: g.Fields, what: str) -> Tree:
        if not isinstance(tree, Table):
            self._type(tree, what, kind)
            return Broken(tree.span)
        entries = {}
        for name, entry in tree.entries.items():
            known = kind.keys.get(name)
            inner = known.kind if known else kind.others
            if inner is None:
                self._unknown(name, entry, kind)
                continue
            entries[name] = Entry(entry.key, self.tree(entry.value, inner, _child(what, name)))
        for name, key in kind.keys.items():
            if key.required and name not in tree.entries:
                message = f"{what} has no `{name}`"
                self.report.error(
                    "missing-key", message, tree.span, help=f"add `{name}`: {key.doc}"
                )
        return Table(entries, tree.span)

    def _unknown(self, name: str, entry: Entry, kind: g.Fields) -> None:
        if name in beyond.SECOND_STATE_KEYS:
            message = f"`{name}`: a second state beside `S` cannot be declared"
            self.report.error("second-state", message, entry.key, help=beyond.CARRIED)
            return
        known = f"the keys of {kind.title} are {listing(kind.keys)}"
        message = f"unknown key `{name}` in {kind.title}"
        self.report.error("unknown-key", message, entry.key, help=suggest(name, kind.keys) or known)

    def _map(self, tree: Tree, kind: g.MapOf, what: str) -> Tree:
        if not isinstance(tree, Table):
            self._type(tree, what, kind)
            return Broken(tree.span)
        if not tree.entries:
            self.report.error("wrong-type", f"{what} is empty", tree.span, help="list at least one")
        entries = {}
        for name, entry in tree.entries.items():
            if kind.name.pattern and not kind.name.pattern.fullmatch(name):
                help_text = f"use {kind.name.form}"
                self.report.error("bad-name", f"`{name}` is not a name", entry.key, help=help_text)
            value = self.tree(entry.value, kind.value, _child(what, name))
            entries[name] = Entry(entry.key, value)
        return Table(entries, tree.span)

    def _list(self, tree: Tree, kind: g.ListOf, what: str) -> Tree:
        if not isinstance(tree, Items):
            self._type(tree, what, kind)
            return Broken(tree.span)
        if not tree.values:
            self.report.error("wrong-type", f"{what} is empty", tree.span, help="list at least one")
            return Broken(tree.span)
        item = f"an item of {what}" if not isinstance(kind.item, g.Fields) else kind.item.title
        return Items(tuple(self.tree(v, kind.item, item) for v in tree.values), tree.span)

    def _leaf(self, leaf: Leaf, kind: g.Kind, what: str) -> bool:
        match kind:
            case g.Text():
                return self._text(leaf, kind, what)
            case g.Word():
                return self._word(leaf, kind.options, what, "bad-value")
            case g.FormatName():
                return self._word(leaf, format_names(), what, "unknown-format")
            case g.FormatWord():
                return self._word(leaf, format_words(kind.choice), what, "bad-value")
            case g.Integer():
                return self._integer(leaf, kind, what)
            case g.Positive():
                return self._positive(leaf, what)
            case g.Flag():
                good = isinstance(leaf.value, bool)
            case _:
                return self._formula(leaf, what)
        if not good:
            self._type(leaf, what, kind)
        return good

    def _text(self, leaf: Leaf, kind: g.Text, what: str) -> bool:
        if not isinstance(leaf.value, str):
            self._type(leaf, what, kind)
            return False
        if kind.pattern and not kind.pattern.fullmatch(leaf.value):
            message = f"`{leaf.value}` is not a name"
            self.report.error("bad-name", message, leaf.span, help=f"use {kind.form}")
            return False
        return True

    def _word(self, leaf: Leaf, options: tuple[str, ...], what: str, code: str) -> bool:
        if leaf.value in options:
            return True
        near = suggest(leaf.text, options)
        message = f"{what} must be {_one_of(options)}, not {_found(leaf)}"
        self.report.error(code, message, leaf.span, help=near or f"write {_one_of(options)}")
        return False

    def _integer(self, leaf: Leaf, kind: g.Integer, what: str) -> bool:
        value = leaf.value
        if isinstance(value, bool) or not isinstance(value, int):
            self._type(leaf, what, kind)
            return False
        steps = f" in steps of {kind.step}" if kind.step > 1 else ""
        if not kind.low <= value <= kind.high or value % kind.step:
            message = f"{what} must be {kind.low} to {kind.high}{steps}, not {value}"
            down = value - value % kind.step
            near = sorted({min(max(n, kind.low), kind.high) for n in (down, down + kind.step)})
            help_text = f"the nearest is {' or '.join(map(str, near))}"
            self.report.error("out-of-range", message, leaf.span, help=help_text)
            return False
        return True

    def _positive(self, leaf: Leaf, what: str) -> bool:
        value = leaf.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._type(leaf, what, g.Positive())
            return False
        if not 0 < value < math.inf:
            message = f"{what} must be a finite number above 0, not {leaf.text}"
            self.report.error("out-of-range", message, leaf.span, help="write it like 1e-3")
            return False
        return True

    def _formula(self, leaf: Leaf, what: str) -> bool:
        if leaf.value is None or isinstance(leaf.value, bool):
            self._type(leaf, what, g.FormulaText())
            return False
        if leaf.place is None:
            message = f"the formula of {what} stands on several lines"
            help_text = "write it on one line, or split it into `let` definitions"
            self.report.error("multiline-formula", message, leaf.span, help=help_text)
            return False
        return True


def _child(what: str, name: str) -> str:
    """`dims.key` inside `dims`; just `key` inside what has no name of its own."""
    return f"{what[:-1]}.{name}`" if what.endswith("`") else f"`{name}`"


def _one_of(options: tuple[str, ...]) -> str:
    """`a`, `b` or `c`."""
    return listing(options).replace(" and ", " or ")


def _wanted(kind: g.Kind) -> str:
    match kind:
        case g.Text():
            return "text"
        case g.Word():
            return _one_of(kind.options)
        case g.FormatName():
            return "the name of a format"
        case g.FormatWord():
            return _one_of(format_words(kind.choice))
        case g.Integer():
            return "a whole number"
        case g.Positive():
            return "a number"
        case g.Flag():
            return "true or false"
        case g.FormulaText():
            return "a formula"
        case g.ListOf():
            return "a list"
        case g.Fields():
            return "a mapping"
        case g.MapOf():
            return "a mapping of names"


def _example(tree: Tree, kind: g.Kind) -> str:
    """What to write instead."""
    quoted = isinstance(tree, Leaf) and isinstance(tree.value, str)
    match kind:
        case g.Fields():
            return f"its keys are {listing(kind.keys)}"
        case g.MapOf():
            return "write one `name: ...` a line"
        case g.ListOf():
            return "put a `-` before it" if isinstance(tree, Table) else "write it as [..]"
        case g.Text():
            return "put it in quotes" if isinstance(tree, Leaf) and tree.text else "write a text"
        case g.Integer() | g.Positive() if quoted and _number(tree):
            return "take off the quotes"
        case g.Integer():
            return f"write a number from {kind.low} to {kind.high}"
        case g.FormulaText():
            return "write it on one line, like exp(g) * k"
    return f"write {_wanted(kind)}"


def _number(tree: Tree) -> bool:
    return isinstance(tree, Leaf) and not isinstance(scalar(tree.text), str)


def _found(tree: Tree) -> str:
    match tree:
        case Items():
            return "a list"
        case Table():
            return "a mapping"
        case Leaf(value=None):
            return "empty"
        case Leaf(value=str()):
            return f'"{tree.text}"'
        case Leaf(value=bool()):
            return f"the flag {tree.text}"
        case Leaf():
            return f"the number {tree.text}"
        case Broken():
            return "something that was refused"
