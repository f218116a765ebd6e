"""An explanation as Markdown for people, and single stages of the chain as text."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import sympy

from leapgen import pipeline
from leapgen.algebra.printers import text as formula_text
from leapgen.diagnostics import LeapgenError, Span, listing, suggest
from leapgen.report.explain import BATCHES, Explanation, Item
from leapgen.report.text import configs_text, integer, markdown_table
from leapgen.spec.model import Formula

STAGES = ("spec", "recurrence", "window", "plan", "source")


def markdown(e: Explanation) -> str:
    """The whole explanation."""
    return "\n\n".join(
        (
            f"# {e.title}",
            _choices(e),
            e.description.markdown().rstrip(),
            _state(e),
            _traffic(e),
            _floors(e),
            _tuned(e),
        )
    )


def stage(spec: str, name: str, arch: str, format: str | None, picks: dict[str, str]) -> str:
    """One value of the chain as text. Errors: LeapgenError for an unknown stage."""
    if name not in STAGES:
        hint = suggest(name, STAGES) or f"one of {listing(STAGES)}"
        raise LeapgenError(f"unknown stage `{name}`; {hint}")
    chain = pipeline.compile(spec, arch, picks, format)
    if name == "source":
        return chain.source.text.rstrip("\n")
    if name == "plan":
        return chain.plan.text().rstrip("\n")
    return json.dumps(_plain(getattr(chain, name)), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Frozen values as dicts and lists; formulas as text; places and whole files left out."""
    if isinstance(value, Formula):
        return value.text
    if isinstance(value, sympy.Basic):
        return formula_text(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f.name for f in fields(value) if f.name not in ("source", "span"))
        pairs = ((name, getattr(value, name)) for name in shown)
        return {name: _plain(x) for name, x in pairs if not isinstance(x, Span)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _choices(e: Explanation) -> str:
    lines = [f"`{e.path}`, format `{e.format}` ({e.format_doc}), arch `{e.arch}`.\n"]
    for choice, options in e.choices.items():
        marked = (f"**{o}**" if o == e.picks[choice] else o for o in options)
        lines.append(f"- {choice}: {', '.join(marked)}")
    return "\n".join(lines)


def _shape(e: Explanation) -> str:
    s = e.shape
    heads = f"H = {s.H}, HV = {s.HV}, K = {s.K}, V = {s.V}"
    whose = f"at the shape of {e.model}" if e.model else "of one head"
    kept = f"window {s.P}, {s.R} compensators" if e.windowed else "no window"
    return f"{whose}: {heads}, {kept}"


def _state(e: Explanation) -> str:
    rows = [(b.name, b.dims, b.dtype, b.role, integer(b.bytes), b.doc) for b in e.buffers]
    rows.append(("total", "", "", "", integer(e.bytes_per_slot), "bytes per slot"))
    header = ("buffer", "heads x tile", "type", "role", "bytes", "")
    full = e.shape.K * e.shape.V * e.shape.HV * 4
    return "\n\n".join(
        (
            "## What a slot holds",
            f"One request in one layer, {_shape(e)}. Payload in {e.layout} order.",
            markdown_table(header, rows),
            *_record(e),
            f"State (payload, scales, compensators): **{e.state_bytes_per_element:.4f} bytes per "
            f"element** (FP32: 4). A slot{' with records and cursor' if e.windowed else ''} takes "
            f"{integer(e.bytes_per_slot)} bytes; an FP32 state alone {integer(full)}.",
            *_kinds(e),
        )
    )


def _kinds(e: Explanation) -> tuple[str, ...]:
    """Bytes by what they are for, and of what is made of a slot."""
    roles = ", ".join(f"{role} {integer(size)}" for role, size in e.bytes_by_role.items())
    lines = [
        f"By kind: {roles}. A checkpoint of a closed window takes {integer(e.checkpoint_bytes)}"
    ]
    lines += [f"; a reserve of 8 drafts adds {integer(e.draft_bytes)} to a slot"] * e.windowed
    return (f"{''.join(lines)}.",)


def _record(e: Explanation) -> tuple[str, ...]:
    """What a token adds to a window, where there is one."""
    if not e.windowed:
        return ()
    return (
        f"A token's record: **{e.record} = {e.record_values} values** of a value head, "
        f"{e.record_bytes:.1f} bytes with keys that value heads share counted once.",
    )


def _tuned(e: Explanation) -> str:
    rows = [
        (t.gpu, t.H, t.HV, t.rows, t.us, t.default_us, t.basis, configs_text(t.configs))
        for t in e.tuned
    ]
    header = ("gpu", "H", "HV", "rows", "us", "us, default rule", "", "configs")
    title = "## Configs"
    rule = f"By default a rule of {e.arch} and shape."
    if not rows:
        return f"{title}\n\n{rule} No table of {e.arch} has this shape (`leapgen tune`)."
    text = (
        f"{rule} Tables of devices (`leapgen tune`) take its place at the nearest heads and rows."
    )
    return "\n\n".join((title, text, markdown_table(header, rows)))


def _traffic(e: Explanation) -> str:
    rows = [(i.when, i.way, i.name, i.kind, f"{i.bytes:.1f}") for i in e.items]
    for when in ("step", "flush") if e.windowed and not e.fused else ("step",):
        rows.append(("", "", f"all of {when}", "", f"{_total(e.items, when):.1f}"))
    rows.append(("", "", "token", "", f"{e.bytes_per_token:.1f}"))
    return "\n\n".join(
        (
            "## HBM bytes per token",
            f"{_counted(e)} Tensors per key head count once a group.",
            markdown_table(("when", "way", "tensor", "kind", "bytes"), rows),
        )
    )


def _counted(e: Explanation) -> str:
    if not e.windowed:
        return "Per row and value head: every token reads and writes the state."
    mean = f"Per row and value head: the mean over the {e.shape.P} cursors of a window"
    if e.fused:
        return f"{mean}; the step that fills it writes the state as well."
    return f"{mean}, and the flush that ends it, divided by its tokens."


def _total(items: tuple[Item, ...], when: str) -> float:
    return sum(i.bytes for i in items if i.when == when)


def _floors(e: Explanation) -> str:
    rows = [
        (
            f.arch,
            f.device,
            f"{f.bandwidth / 1e12:.2f}",
            "measured" if f.measured else "datasheet",
            *(f"{f.microseconds[rows]:.2f}" for rows in BATCHES),
        )
        for f in e.floors
    ]
    header = ("arch", "device", "TB/s", "", *(f"us, {rows} rows" for rows in BATCHES))
    return "\n\n".join(
        (
            "## The floor",
            "Bytes over bandwidth: no kernel takes less for a token of one layer.",
            markdown_table(header, rows),
        )
    )
