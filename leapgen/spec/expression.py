"""Formulas as small frozen trees. `parser` makes them; nothing is ever evaluated as Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from leapgen.diagnostics import Span

_NOWHERE = Span(1, 1, 1)

ELEMENTWISE = ("exp", "log", "sqrt", "rsqrt", "softplus", "sigmoid", "silu", "tanh")
"""One argument, any axis; the result has the argument's axis."""

PAIRWISE = ("max", "min")
"""Two arguments, element by element."""

REDUCTIONS = {"sum": 1, "dot": 2}
"""Sum over the axis of the argument(s): sum(x), dot(x, y) = sum(x * y). Results are scalars."""

NORMS = ("l2norm",)
"""l2norm(x, eps=e) = x / sqrt(sum(x ** 2) + e); eps is a number, 0 when absent."""

UNITS = ("unit",)
"""unit(V): the vector over V that is 1 in the last channel and 0 in the others."""

FUNCTIONS = (*ELEMENTWISE, *PAIRWISE, *REDUCTIONS, *NORMS, *UNITS)

NATIVE_FUNCTIONS = ("diag",)
"""diag(x): the diagonal matrix of a vector; only in `native`."""

NATIVE_NAMES = ("S", "I")
"""The state and the identity; only in `native`."""

READ = "o"
"""What the query reads, with `add`; only in the output's `result`."""

DIMENSIONS = ("K", "V")
"""The two dimensions, usable as numbers in every formula."""


@dataclass(frozen=True)
class Number:
    """A non-negative literal. `text` is as written, so that 0.1 can stay an exact rational."""

    value: int | float
    text: str
    span: Span = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Name:
    """An input, a definition, K or V; in `native` also S and I."""

    id: str
    span: Span = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Call:
    """A function of FUNCTIONS (in `native` also diag). The only keyword is l2norm's `eps`."""

    function: str
    arguments: tuple[Node, ...]
    keywords: tuple[tuple[str, Node], ...] = ()
    span: Span = field(default=_NOWHERE, compare=False, repr=False)

    def keyword(self, name: str) -> Node | None:
        """The value of an option, None where it is absent."""
        return dict(self.keywords).get(name)


@dataclass(frozen=True)
class Binary:
    """operator is one of + - * / ** and, in `native`, @."""

    operator: str
    left: Node
    right: Node
    span: Span = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Unary:
    """operator is -."""

    operator: str
    operand: Node
    span: Span = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Transpose:
    """operand.T, only in `native`."""

    operand: Node
    span: Span = field(default=_NOWHERE, compare=False, repr=False)


Node = Number | Name | Call | Binary | Unary | Transpose


HOLE = Name("")
"""Stands where a part of a formula was refused: no name, no type, no further errors."""


def children(node: Node) -> tuple[Node, ...]:
    """The direct operands, left to right."""
    match node:
        case Call():
            return (*node.arguments, *(value for _, value in node.keywords))
        case Binary():
            return (node.left, node.right)
        case Unary() | Transpose():
            return (node.operand,)
        case Number() | Name():
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, depth first."""
    yield node
    for child in children(node):
        yield from walk(child)


def names(node: Node) -> tuple[str, ...]:
    """Names that occur (not function names), each once, in the order of appearance."""
    return tuple(dict.fromkeys(n.id for n in walk(node) if isinstance(n, Name)))


_LEVEL = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 4}


def unparse(node: Node) -> str:
    """The formula as text, with no more parentheses than needed; parses back to an equal tree."""
    return _text(node, 0)


def _text(node: Node, outer: int) -> str:
    match node:
        case Number():
            return f"({node.text})" if outer == 5 else node.text  # (2).T
        case Name():
            return node.id
        case Call():
            arguments = [_text(a, 0) for a in node.arguments]
            arguments += [f"{name}={_text(value, 0)}" for name, value in node.keywords]
            return f"{node.function}({', '.join(arguments)})"
        case Transpose():
            return f"{_text(node.operand, 5)}.T"
        case Unary():
            text, level = f"-{_text(node.operand, 3)}", 3
        case Binary():
            level = _LEVEL[node.operator]
            power = node.operator == "**"  # groups to the right; its exponent may start with -
            left = _text(node.left, level + power)
            right = _text(node.right, 3 if power else level + 1)
            gap = "" if power else " "
            text = f"{left}{gap}{node.operator}{gap}{right}"
    return f"({text})" if level < outer else text
