"""LaTeX of `native:` formulas, as the authors of a model would print them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from leapgen.algebra.printing_latex import symbol_latex
from leapgen.spec.expression import Binary, Call, Name, Node, Number, Transpose, Unary, names

_FUNCTIONS = {"exp": r"\exp", "log": r"\log", "tanh": r"\tanh", "sigmoid": r"\sigma"}
_ADD, _MUL, _POW = 1, 2, 3


def native_latex(node: Node, vectors: Collection[str] = ()) -> str:
    """A native formula without delimiters; the state before the token is S_{t-1}.

    vectors   names of vectors: a product of two of them is shown as elementwise
    """
    return _Writer(frozenset(vectors)).latex(node, 0)


@dataclass(frozen=True)
class _Writer:
    vectors: frozenset[str]

    def latex(self, node: Node, outer: int) -> str:
        match node:
            case Number():
                return node.text
            case Name():
                return {"S": "S_{t-1}", "I": "I"}.get(node.id) or symbol_latex(node.id)
            case Transpose():
                return rf"{self.latex(node.operand, _POW)}^\top"
            case Unary():
                return _bracket(rf"- {self.latex(node.operand, _MUL)}", _ADD, outer)
            case Call():
                return self.call(node)
            case Binary():
                return self.binary(node, outer)

    def call(self, node: Call) -> str:
        inner = ", ".join(self.latex(a, 0) for a in node.arguments)
        if node.function == "diag":
            return rf"\operatorname{{Diag}}({inner})"
        if node.function == "dot":
            left, right = node.arguments
            return rf"({self.latex(left, _POW)}^\top {self.latex(right, _MUL)})"
        name = _FUNCTIONS.get(node.function, rf"\operatorname{{{node.function}}}")
        return rf"{name}({inner})"

    def binary(self, node: Binary, outer: int) -> str:
        if node.operator == "/":
            return rf"\frac{{{self.latex(node.left, 0)}}}{{{self.latex(node.right, 0)}}}"
        if node.operator == "**":
            return rf"{self.latex(node.left, _POW)}^{{{self.latex(node.right, 0)}}}"
        if node.operator in "+-":
            right = self.latex(node.right, _ADD if node.operator == "+" else _MUL)
            return _bracket(f"{self.latex(node.left, _ADD)} {node.operator} {right}", _ADD, outer)
        elementwise = node.operator == "*" and all(self.vector(n) for n in (node.left, node.right))
        gap = r" \odot " if elementwise else r" \, "
        text = f"{self.latex(node.left, _MUL)}{gap}{self.latex(node.right, _MUL)}"
        return _bracket(text, _MUL, outer)

    def vector(self, node: Node) -> bool:
        """Whether a factor is built from vectors element by element."""
        if isinstance(node, Binary) and node.operator == "@":
            return False
        return bool(self.vectors & set(names(node)))


def _bracket(text: str, level: int, outer: int) -> str:
    return rf"\left({text}\right)" if level < outer else text
