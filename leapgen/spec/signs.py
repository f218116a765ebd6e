"""Which signs a formula can take, as far as that is certain: finds decays that grow."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leapgen.spec import expression as ex

Signs = frozenset[int]  # a subset of {-1, 0, 1}

ANY: Signs = frozenset((-1, 0, 1))
_POSITIVE: Signs = frozenset((1,))
_POSITIVE_VALUED = ("exp", "softplus", "sigmoid", "rsqrt")
_ODD = ("tanh", "silu", "l2norm")  # the sign of the argument


def constant(node: ex.Node) -> float | None:
    """Value of a formula of numbers alone; None where it has names or no finite value."""
    try:
        value = _value(node)
    except (ArithmeticError, ValueError):
        return None
    return value if value is not None and math.isfinite(value) else None


def signs(node: ex.Node, known: Mapping[str, Signs]) -> Signs:
    """Signs that the formula can take; `known` has those of names, others can take any."""
    value = constant(node)
    if value is not None:
        return frozenset(((value > 0) - (value < 0),))
    match node:
        case ex.Name():
            return _POSITIVE if node.id in ex.DIMENSIONS else known.get(node.id, ANY)
        case ex.Unary():
            return frozenset(-s for s in signs(node.operand, known))
        case ex.Call():
            return _call(node, known)
        case ex.Binary():
            return _binary(node, known)
    return ANY


def _call(node: ex.Call, known: Mapping[str, Signs]) -> Signs:
    arguments = [signs(a, known) for a in node.arguments]
    name = node.function
    if name in _POSITIVE_VALUED:
        return _POSITIVE
    if name == "sqrt":
        return frozenset(s for s in arguments[0] if s >= 0) or ANY
    if name in ("max", "min"):
        choose = max if name == "max" else min
        return frozenset(choose(a, b) for a in arguments[0] for b in arguments[1])
    if name in _ODD or (name == "sum" and len(arguments[0]) == 1):
        return arguments[0]
    return ANY


def _binary(node: ex.Binary, known: Mapping[str, Signs]) -> Signs:
    left, right = signs(node.left, known), signs(node.right, known)
    match node.operator:
        case "*" | "/":
            return frozenset(a * b for a in left for b in right)
        case "+":
            return _sum(left, right)
        case "-":
            return _sum(left, frozenset(-s for s in right))
        case "**" if left == _POSITIVE:
            return _POSITIVE
    return ANY


def _sum(left: Signs, right: Signs) -> Signs:
    result: set[int] = set()
    for a in left:
        for b in right:
            result |= ANY if a * b < 0 else {a or b}
    return frozenset(result)


def _value(node: ex.Node) -> float | None:
    match node:
        case ex.Number():
            return float(node.value)
        case ex.Unary():
            inner = _value(node.operand)
            return None if inner is None else -inner
        case ex.Binary():
            left, right = _value(node.left), _value(node.right)
            return None if left is None or right is None else _apply(node.operator, left, right)
        case ex.Call(function="exp" | "log" | "sqrt" | "tanh"):
            inner = _value(node.arguments[0])
            functions = {"exp": math.exp, "log": math.log, "sqrt": math.sqrt, "tanh": math.tanh}
            return None if inner is None else functions[node.function](inner)
    return None


def _apply(operator: str, left: float, right: float) -> float | None:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "**":
            return math.pow(left, right)
    return None
