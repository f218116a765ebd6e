"""The part of a module's text that decides what one kernel does.

Measurements belong to kernels at configs. One of a step stays true when another kernel of its
module changes, or the rule by which a default config is chosen, so it is kept with the config and
with the digest of what the step's builder reaches, not of the file.
"""

from __future__ import annotations

import ast
import hashlib
import symtable
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

TUNED = ("step", "flush")
"""Kernels that a token launches: their configs are tuned together."""


def kernel_digest(text: str, kernels: Iterable[str] = TUNED, configs: bool = False) -> str:
    """16 hexadecimal digits of all top-level statements that kernels of a module's text need;
    lines of comments do not count.

    text     a generated module
    kernels  names as in `MODULE.kernels`; those that the module does not have count as absent
    configs  the rules of default configs count too
    """
    parts = _parts(text)
    # How kernels are compiled stands beside their builders.
    prefixes = ("build", "config") if configs else ("build",)
    todo = ["PASS_CONFIGS", *(f"{prefix}_{name}" for name in kernels for prefix in prefixes)]
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        if name in parts and name not in reached:
            reached.add(name)
            todo += parts[name].used
    # In the text's order, which a set does not keep.
    spans = sorted({parts[name].span for name in reached})
    lines = text.splitlines()
    whole = "\n".join(line for a, b in spans for line in lines[a:b] if not _comment(line))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Part:
    """A top-level statement that binds a name, and the names of the module that it uses."""

    span: tuple[int, int]
    used: frozenset[str]


@lru_cache(maxsize=8)
def _parts(text: str) -> Mapping[str, _Part]:
    """Name -> the top-level statement that binds it."""
    found: dict[str, _Part] = {}
    scopes = {s.get_name(): s for s in symtable.symtable(text, "module", "exec").get_children()}
    for node in ast.parse(text).body:
        bound = _bound(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        # Variables of a function are no names of the module: one may be called `step`.
        if bound and bound[0] in scopes:
            names &= _globals(scopes[bound[0]])
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        span = (first - 1, node.end_lineno or node.lineno)
        for name in bound:
            found[name] = _Part(span, frozenset(names))
    return found


def _comment(line: str) -> bool:
    """With a blank behind the sign: `#pragma` of a string of CUDA is code."""
    return line.lstrip().startswith("# ")


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
