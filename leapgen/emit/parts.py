"""The part of a module's text that decides what one kernel does.

Measurements belong to kernels. One of a step stays true when another kernel of its module changes,
so it is kept with the digest of what the step's builder and its config rule reach, not of the file.
"""

from __future__ import annotations

import ast
import hashlib
import symtable
from collections.abc import Iterable, Mapping
from functools import lru_cache

TUNED = ("step", "flush")
"""Kernels that a token launches: their configs are tuned together."""


def kernel_digest(text: str, kernels: Iterable[str] = TUNED) -> str:
    """16 hexadecimal digits of all top-level statements that kernels of a module's text need.

    text     a generated module
    kernels  names as in `MODULE.kernels`; those that the module does not have count as absent
    """
    parts = _parts(text)
    todo = [f"{kind}_{name}" for name in kernels for kind in ("config", "build")]
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        if name in parts and name not in reached:
            reached.add(name)
            todo += parts[name][1]
    segments = {parts[name][0] for name in reached}
    # In the text's order, which a set does not keep.
    whole = "\n".join(source for _, source in sorted(segments))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


_Part = tuple[tuple[int, str], frozenset[str]]


@lru_cache(maxsize=8)
def _parts(text: str) -> Mapping[str, _Part]:
    """Name -> line and source of the top-level statement that binds it, and the names it uses."""
    lines = text.splitlines()
    found: dict[str, _Part] = {}
    scopes = {s.get_name(): s for s in symtable.symtable(text, "module", "exec").get_children()}
    for node in ast.parse(text).body:
        bound = _bound(node)
        if not bound:
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        # Variables of a function are no names of the module: one may be called `step`.
        used = frozenset(names & _globals(scopes[bound[0]]) if bound[0] in scopes else names)
        for name in bound:
            found[name] = ((first, source), used)
    return found


def _bound(node: ast.stmt) -> list[str]:
    """Names that a top-level statement defines; imports say nothing of a kernel."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return []


def _globals(scope: symtable.SymbolTable) -> set[str]:
    """Names that a function and those inside it take from the module."""
    own = {s.get_name() for s in scope.get_symbols() if s.is_global()}
    return own.union(*(_globals(child) for child in scope.get_children()))
