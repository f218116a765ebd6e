"""Formulas of a spec over NumPy arrays, straight from the parsed tree.

A quantity of all value heads is an array [..., HV, n] with n = 1, K or V: leading axes are free
(rows, tokens), so that one call serves a token or a whole sequence. What a spec declares per key
head is repeated: value head hv uses key head hv // (HV / H).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.spec.expression import (
    UNITS,
    Binary,
    Call,
    Name,
    Node,
    Number,
    Transpose,
    Unary,
    names,
)
from leapgen.spec.model import Input, Spec
from leapgen.tensors import Axis, Per

Array = npt.NDArray[np.floating[Any]]


def evaluate(node: Node, scope: Mapping[str, Any]) -> Any:
    """The value of a formula; names come from `scope`.

    Errors: ValueError, for matrix notation, which stands only in `native`.
    """
    match node:
        case Number():
            return float(node.value)
        case Name():
            return scope[node.id]
        case Unary():
            return -evaluate(node.operand, scope)
        case Binary() if node.operator in _OPERATORS:
            left, right = evaluate(node.left, scope), evaluate(node.right, scope)
            return _OPERATORS[node.operator](left, right)
        case Call() if node.function == "l2norm":
            return _l2norm(node, scope)
        case Call() if node.function in UNITS:
            return np.arange(int(scope["V"])) == scope["V"] - 1
        case Call() if node.function in _FUNCTIONS:
            return _FUNCTIONS[node.function](*(evaluate(a, scope) for a in node.arguments))
        case Call() | Binary() | Transpose():
            raise ValueError(f"not an elementwise formula: {node}")


def definitions(spec: Spec, inputs: Mapping[str, Array], HV: int, dtype: Any) -> dict[str, Any]:
    """Every name of the spec: inputs, then the `let` block; K and V too.

    inputs   [..., heads, axis] or [..., heads] as declared; constants without leading axes
    dtype    the arithmetic: np.float64 or np.float32
    """
    scope: dict[str, Any] = {}
    for declared in spec.inputs:
        x = spread(declared, np.asarray(inputs[declared.name]), HV).astype(dtype)
        scope[declared.name] = x
        if declared.axis is not Axis.SCALAR:
            scope[declared.axis.value] = x.shape[-1]
    for axis, size in (("K", spec.K), ("V", spec.V)):
        scope.setdefault(axis, size)
    for definition in spec.definitions:
        scope[definition.name] = evaluate(definition.formula.node, scope)
    return scope


def log_decay_of(spec: Spec, key: Array) -> Array:
    """The log decay of tokens whose key is known, where the key tells it: its formula with `key`
    in place of what the sub-step calls its key.

    key   [..., K]
    """
    (step,) = spec.substeps
    if step.decay.log is None or not isinstance(step.key.node, Name):
        raise ValueError(f"no key of {spec.name} tells its decay")
    scope: dict[str, Any] = {"K": key.shape[-1], "V": spec.V, step.key.node.id: key}
    place = [d.name for d in spec.definitions].index(step.key.node.id)
    for definition in spec.definitions[place + 1 :]:
        if set(names(definition.formula.node)) <= set(scope):
            scope[definition.name] = evaluate(definition.formula.node, scope)
    return np.asarray(evaluate(step.decay.log.node, scope))


def spread(declared: Input, x: Array, HV: int) -> Array:
    """A raw input as [..., HV, n], n = 1 for a scalar a head."""
    x = x[..., None] if declared.axis is Axis.SCALAR else x
    return np.repeat(x, HV // x.shape[-2], axis=-2) if declared.per is Per.KEY else x


def value_heads(spec: Spec, inputs: Mapping[str, Array]) -> int:
    """The number of value heads that these inputs have (of key heads, where none is per value)."""
    for per in (Per.VALUE, Per.KEY):
        for declared in spec.inputs:
            if declared.per is per:
                shape = np.asarray(inputs[declared.name]).shape
                return int(shape[-1] if declared.axis is Axis.SCALAR else shape[-2])
    raise ValueError("a spec without inputs")


def _softplus(x: Any) -> Any:
    """log(1 + exp(x)), linear above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _log(x: Any) -> Any:
    with np.errstate(divide="ignore"):  # of 0: a decay that empties the state
        return np.log(x)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _total(x: Any) -> Any:
    return x.sum(axis=-1, keepdims=True)


def _l2norm(node: Call, scope: Mapping[str, Any]) -> Any:
    x = evaluate(node.arguments[0], scope)
    keyword = node.keyword("eps")
    eps = evaluate(keyword, scope) if keyword is not None else 0.0
    return x / np.sqrt(_total(x * x) + eps)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": _log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "softplus": _softplus,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "max": np.maximum,
    "min": np.minimum,
    "sum": _total,
    "dot": lambda x, y: _total(x * y),
}
