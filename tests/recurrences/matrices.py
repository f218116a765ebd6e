"""The native update of a spec as a paper means it: matrices of one head, nothing of the algebra.

Vectors are columns, scalars plain numbers, the state a K x V array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from leapgen.oracle.stepwise import Stepwise
from leapgen.spec import expression as ex
from leapgen.spec.model import Spec

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "max": np.maximum,
    "min": np.minimum,
    "sum": np.sum,
    "dot": lambda x, y: np.sum(x * y),
    "diag": lambda x: np.diag(x[:, 0]),
}


def evaluate(node: ex.Node, names: Mapping[str, Any]) -> Any:
    """A formula in matrices; `names` has S, the identity I and all coefficients."""
    match node:
        case ex.Number():
            return float(node.value)
        case ex.Name():
            return names[node.id]
        case ex.Transpose():
            return evaluate(node.operand, names).T
        case ex.Unary():
            return -evaluate(node.operand, names)
        case ex.Call(function="unit"):
            return np.eye(names["V"])[:, -1:]
        case ex.Call():
            return FUNCTIONS[node.function](*(evaluate(a, names) for a in node.arguments))
        case ex.Binary():
            left, right = evaluate(node.left, names), evaluate(node.right, names)
            match node.operator:
                case "@":
                    return left @ right
                case "+":
                    return left + right
                case "-":
                    return left - right
                case "*":
                    return left * right
                case "/":
                    return left / right
                case "**":
                    return left**right
    raise ValueError(f"no matrix formula: {node}")


def update(spec: Spec, S: Any, inputs: Mapping[str, Any]) -> Any:
    """The native update of all heads: S [HV, K, V], inputs of one token as the spec declares."""
    scope = Stepwise(spec).coefficients(inputs, S.shape[0])
    found = np.empty_like(S)
    for head in range(S.shape[0]):
        names: dict[str, Any] = {"S": S[head], "I": np.eye(S.shape[1])}
        for name, x in scope.items():
            here = np.asarray(x)[head] if np.ndim(x) > 1 else x
            names[name] = float(here[0]) if np.shape(here) == (1,) else _column(here)
        found[head] = evaluate(spec.native.node, names)
    return found


def _column(x: Any) -> Any:
    return x[:, None] if np.ndim(x) == 1 else x
