"""Plan -> Source: one generated module as text.

Templates are Jinja with comment-style directives (`#% for`), so that a template still reads as the
Python that it becomes. They get one object, the view, and the filters below; they hold no formulas.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jinja2

from leapgen import paths
from leapgen.diagnostics import LeapgenError
from leapgen.emit import names
from leapgen.emit.formula import Formula, Style
from leapgen.emit.prepare import prepare
from leapgen.emit.program import Item
from leapgen.emit.signature import Kernel, Param
from leapgen.emit.tidy import tidy
from leapgen.emit.view import View, nth
from leapgen.formats.table import NAMED
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

STYLES = {"cpu": Style(K="{}[kk]", V="{}[vv]"), "gpu": Style(K="{}[kk]", V="{}")}
"""How stored vectors are indexed: on a GPU a thread owns the value channel vv."""


@dataclass(frozen=True)
class Source:
    """A rendered module.

    path     where it goes in generated/: `<arch>/<spec>[-<pick>...][-<format>].py`
    digest   16 hexadecimal digits of the text
    """

    path: str
    text: str
    digest: str


def render(plan: Plan, spec: Spec, default_format: str | None = None) -> Source:
    """The module of a plan.

    default_format   the spec file's own format; another one becomes part of the file's name
    Errors: LeapgenError for a format that has no templates.
    """
    if not plan.format.kernels_on(plan.arch.gpu):
        known = ", ".join(n for n, f in NAMED.items() if f.kernels_on(plan.arch.gpu))
        raise LeapgenError(
            f"format {plan.format.name} has no kernels for {plan.arch.name}; "
            f"formats that have: {known}"
        )
    seen = prepare(plan, spec)
    text = render_view(seen)
    compile(text, seen.name, "exec", dont_inherit=True)  # a broken template fails here
    path = f"{plan.arch.name}/{stem(spec, default_format)}.py"
    return Source(path, text, hashlib.sha256(text.encode()).hexdigest()[:16])


def stem(spec: Spec, default_format: str | None = None) -> str:
    """File name of a module without its end: what differs from the spec's defaults is named."""
    format = () if default_format in (None, spec.state.format) else (spec.state.format,)
    return "-".join((spec.name, *spec.nondefault_picks, *format))


def render_view(seen: View) -> str:
    """The text of a module."""
    environment = _environment(seen.directory)
    text = environment.get_template("module.py.j2").render(view=seen, block=_blocks(seen))
    return tidy(text)


def _blocks(seen: View) -> Callable[..., str]:
    """`block(name, columns, **more)`: another template's text, indented by `columns`."""

    def block(name: str, columns: int = 0, **more: object) -> str:
        template = _environment(seen.directory).get_template(name)
        text = template.render({"view": seen, "block": block, **more})
        margin = " " * columns
        return "\n".join(margin + line if line else "" for line in text.strip("\n").split("\n"))

    return block


@functools.lru_cache
def _environment(directory: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.data("templates")),
        undefined=jinja2.StrictUndefined,
        line_statement_prefix="#%",
        line_comment_prefix="##",
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is Python
    )
    style = STYLES[directory]
    environment.filters["code"] = functools.partial(_code, style)
    environment.filters["value"] = functools.partial(_value, style)
    environment.filters["symbol"] = names.symbol
    environment.filters["quick"] = _quick
    environment.globals["params"] = _params
    environment.globals["nth"] = nth
    return environment


def _code(style: Style, formula: Formula, **override: str) -> str:
    """Filter `code`: a formula with its variables written in the target's way, or as told.

    Keywords K, V and S replace the pattern of an axis; all others give the code of one symbol.
    """
    patterns = {"K": style.K, "V": style.V, "S": style.S}
    chosen = Style(**{axis: override.pop(axis, pattern) for axis, pattern in patterns.items()})
    return formula.code(chosen, **override)


def _value(style: Style, item: Item) -> str:
    """Filter `value`: code of an item of the token program (0.0 for the decay before the token)."""
    if item.load is not None:
        return item.load.load
    return "0.0" if item.formula is None else item.formula.code(style)


def _quick(code: str) -> str:
    """Filter `quick`: powers of two whose exponents are <= 0 (a window's are) by `quick_exp2`."""
    return code.replace("T.exp2(", "quick_exp2(")


def _params(kernel: Kernel, columns: int = 8, width: int = 100) -> str:
    """The parameter list of a prim_func: a tensor a line, strides and counts packed."""
    margin = " " * columns
    lines = [f"{margin}{_text(p)}" for p in kernel.tensors]
    for group in (kernel.strides, kernel.counts):
        lines += _packed([_text(p) for p in group], margin, width)
    return "\n".join(lines)


def _text(parameter: Param) -> str:
    return f"{parameter.name}: {parameter.annotation},"


def _packed(words: Sequence[str], margin: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(margin + word)
    return lines
