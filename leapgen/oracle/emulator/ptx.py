"""Inline assembly of a CUDA source, rewritten as calls of the functions in shim/ptx.h."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from leapgen.oracle.emulator.errors import UnsupportedSource

_START = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_REGISTERS = {
    "pred": "bool",
    "b8": "std::uint8_t",
    "b16": "std::uint16_t",
    "b32": "std::uint32_t",
    "u32": "std::uint32_t",
    "s32": "int",
    "f32": "float",
}
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\(')


@dataclass(frozen=True)
class _Operand:
    constraint: str
    expression: str


def rewrite(source: str) -> str:
    """The source with each ``asm`` statement replaced by C++.

    Raises UnsupportedSource for labels, branches and instructions that shim/ptx.h does not have.
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
    registers: dict[str, str] = {}
    calls = [_instruction(line, operands, registers) for line in _lines(template)]
    declared = "".join(f"{kind} {name}{{}}; " for name, kind in registers.items())
    return "{ " + declared + " ".join(calls) + " } ((void)0)"


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


def _lines(template: str) -> list[str]:
    text = " ".join(template.split())
    if text.startswith("{") and text.endswith("}") and not text.startswith("{%"):
        text = text[1:-1]  # the braces of a scope, not those of an operand list
    return [line.strip() for line in text.split(";") if line.strip()]


def _instruction(line: str, operands: list[_Operand], registers: dict[str, str]) -> str:
    """One PTX instruction as C++; a declaration of registers adds to ``registers``."""
    found = re.fullmatch(r"\.reg \.(\w+) (.*)", line)
    if found and found.group(1) in _REGISTERS:
        kind = _REGISTERS[found.group(1)]
        registers.update({name.strip(): kind for name in found.group(2).split(",")})
        return ""
    condition = ""
    if found := re.fullmatch(r"@(!?)(\w+) (.*)", line):
        condition, line = f"if ({found.group(1)}{found.group(2)}) ", found.group(3)
    name, _, arguments = line.partition(" ")
    if not re.fullmatch(r"[a-z0-9.]+", name):
        raise UnsupportedSource(f"inline assembly is not emulated: {line}")
    function = name.replace(".", "_")
    if function not in _known():
        raise UnsupportedSource(f"the instruction {name} is not emulated (shim/ptx.h)")
    bare = arguments.replace("{", "").replace("}", "")
    values = [_value(a.strip(), operands, registers) for a in bare.split(",") if a.strip()]
    return f"{condition}ptx::{function}({', '.join(values)});"


def _value(argument: str, operands: list[_Operand], registers: dict[str, str]) -> str:
    if found := re.fullmatch(r"%(\d+)", argument):
        return operands[int(found.group(1))].expression
    if argument in registers or re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", argument):
        return argument
    raise UnsupportedSource(f"an operand of inline assembly is not emulated: {argument}")


@functools.cache
def _known() -> frozenset[str]:
    """Names of the functions of shim/ptx.h, those that its macros define included."""
    text = (Path(__file__).parent / "shim" / "ptx.h").read_text()
    names = set(re.findall(r"inline void (\w+)\(", text))
    names.update(re.findall(r"^LG_(?:MMA_FULL|SMALL)\((\w+),", text, re.MULTILINE))
    stems = re.findall(r"inline void (\w+_)##SUFFIX\(", text)
    suffixes = re.findall(r"^LG_PACKED\((\w+),", text, re.MULTILINE)
    names.update(stem + suffix for stem in stems for suffix in suffixes)
    return frozenset(names)
