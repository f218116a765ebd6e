"""Inline assembly of a CUDA source, rewritten as calls of the functions in shim/ptx.h."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leapgen.oracle.emulator.errors import UnsupportedSource

_START = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\(')


@dataclass(frozen=True)
class _Operand:
    constraint: str
    expression: str


def rewrite(source: str) -> str:
    """The source with each ``asm`` statement replaced by C++.

    Raises UnsupportedSource for assembly with labels, predicates or registers of its own.
    """
    parts: list[str] = []
    at = 0
    while found := _START.search(source, at):
        end = closing(source, found.end() - 1)
        parts += [source[at : found.start()], _statement(source[found.end() : end])]
        at = end + 1
    return "".join([*parts, source[at:]])


def closing(text: str, opening: int) -> int:
    """Index of the parenthesis that closes the one at ``opening``; strings are skipped."""
    depth = 0
    at = opening
    while at < len(text):
        char = text[at]
        if char == '"' and (string := _STRING.match(text, at)):
            at = string.end()
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
        at += 1
    raise UnsupportedSource("a parenthesis is never closed")


def _statement(body: str) -> str:
    template, operands = _split(body)
    if not template.strip():
        return "((void)0)"
    calls = [_call(line, operands) for line in _instructions(template)]
    return "{ " + " ".join(calls) + " } ((void)0)"


def _split(body: str) -> tuple[str, list[_Operand]]:
    template = ""
    at = 0
    while literal := re.compile(r"\s*" + _STRING.pattern).match(body, at):
        template += literal.group(1)
        at = literal.end()
    operands: list[_Operand] = []
    while found := _OPERAND.search(body, at):
        end = closing(body, found.end() - 1)
        operands.append(_Operand(found.group(1), body[found.end() : end]))
        at = end + 1
    return template.replace("\\n", "\n").replace("\\t", " "), operands


def _instructions(template: str) -> list[str]:
    lines = [" ".join(line.split()) for line in template.replace("\n", " ").split(";")]
    lines = [line for line in lines if line]
    for line in lines:
        if line.startswith("@") or line.startswith("{ .") or line.startswith(".reg") or ":" in line:
            raise UnsupportedSource(f"inline assembly is not emulated: {line}")
    return lines


def _call(line: str, operands: list[_Operand]) -> str:
    name, _, arguments = line.partition(" ")
    if not re.fullmatch(r"[a-z0-9.]+", name):
        raise UnsupportedSource(f"inline assembly is not emulated: {line}")
    bare = arguments.replace("{", "").replace("}", "")
    values = [_value(argument.strip(), operands) for argument in bare.split(",") if argument.strip()]
    return f"ptx::{name.replace('.', '_')}({', '.join(values)});"


def _value(argument: str, operands: list[_Operand]) -> str:
    found = re.fullmatch(r"%(\d+)", argument)
    if found:
        return operands[int(found.group(1))].expression
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", argument):
        return argument
    raise UnsupportedSource(f"an operand of inline assembly is not emulated: {argument}")
