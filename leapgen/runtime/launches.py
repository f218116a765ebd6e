"""Calls of compiled kernels without a compiler: shared libraries on the CPU, cubins on a GPU.

Copied into bundles as `_launches.py`; needs torch, ctypes, and a GPU's driver.

What is known of a binary (an entry of a bundle's manifest):

symbol       name of the function
parameters   [name, type] in its order; types: pointer, int32, uint32, int64. `n_x` is the number
             of elements of tensor x
grid         three numbers of blocks: an integer, a parameter's name, or [operation, a, b]
block        threads along x, y, z
shared       bytes of dynamic shared memory
"""

from __future__ import annotations

import ctypes
import operator
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

LENGTH = "n_"
OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "min": min,
    "max": max,
}
_TYPES = {
    "pointer": ctypes.c_void_p,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
}
_FIELDS = {"pointer": "Q", "int32": "i4x", "uint32": "I4x", "int64": "q"}  # eight bytes each
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_INVALID_CONTEXT = 201


class DriverError(RuntimeError):
    """The GPU's driver refused a call."""


def number(tree: Any, values: Mapping[str, int]) -> int:
    """An integer, a name's value, or an operation on two of them."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    word, a, b = tree
    return OPERATIONS[word](number(a, values), number(b, values))


def _arranged(
    parameters: Sequence[Sequence[str]], names: Sequence[str]
) -> Callable[[Sequence[Any]], list[int]]:
    """From arguments by `names` to a function's own: pointers, lengths and numbers."""
    plan: list[tuple[int, int]] = []
    for name, kind in parameters:
        length = name not in names
        plan.append((names.index(name.removeprefix(LENGTH) if length else name), kind == "pointer"))
        if length:
            plan[-1] = (plan[-1][0], 2)

    def arrange(values: Sequence[Any]) -> list[int]:
        return [
            values[i] if kind == 0 else values[i].data_ptr() if kind == 1 else values[i].numel()
            for i, kind in plan
        ]

    return arrange


def on_cpu(path: Path, entry: Mapping[str, Any], names: Sequence[str]) -> Callable[..., None]:
    """The function of a shared library, with arguments in the order of `names`.

    Errors: OSError, AttributeError for a file that is no such library.
    """
    function = getattr(ctypes.CDLL(str(path)), entry["symbol"])
    function.argtypes = [_TYPES[kind] for _, kind in entry["parameters"]]
    function.restype = ctypes.c_int
    arrange = _arranged(entry["parameters"], names)

    def launch(*values: Any) -> None:
        if code := function(*arrange(values)):
            raise RuntimeError(f"{entry['symbol']}: failed with {code}")

    return launch


# ------------------------------------------------------------------ the driver


@cache
def _driver() -> Any:
    """The functions of the GPU's driver. Errors: DriverError, where there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"no driver of a GPU: {error}") from error
    numbers = [ctypes.c_uint] * 7
    pointers = [ctypes.c_void_p] * 3
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p, *numbers, *pointers]
    return library


def _call(name: str, *arguments: Any) -> None:
    library = _driver()
    if code := getattr(library, name)(*arguments):
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'unknown').decode()} ({code})")


def _enter(device: int) -> None:
    """Makes the device's primary context, which torch uses, this thread's."""
    found = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
    _call("cuCtxSetCurrent", found)


class _Code:
    """A cubin and its function on every device that has used it."""

    def __init__(self, path: Path, entry: Mapping[str, Any]) -> None:
        self._binary = path.read_bytes()
        self._symbol = entry["symbol"].encode()
        self._shared = entry["shared"]
        self._functions: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def on(self, device: int) -> ctypes.c_void_p:
        """The function on a device, loaded by the first call. Errors: DriverError."""
        found = self._functions.get(device)
        if found is not None:
            return found
        with self._lock:
            if device not in self._functions:
                self._functions[device] = self._load(device)
        return self._functions[device]

    def _load(self, device: int) -> ctypes.c_void_p:
        _call("cuInit", 0)
        _enter(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(module), self._binary)
        _call("cuModuleGetFunction", ctypes.byref(function), module, self._symbol)
        # Also where it asks for none: this loads the code, which drivers else put off until the
        # first launch, and that may be one that a graph captures.
        _call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, self._shared)
        return function


class _Arguments(threading.local):
    """Where a thread lays out a launch's arguments; the driver copies them."""

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * count)(*(start + 8 * i for i in range(count)))


def on_gpu(path: Path, entry: Mapping[str, Any], names: Sequence[str]) -> Callable[..., None]:
    """The kernel of a cubin, with arguments in the order of `names`, on torch's current device and
    stream. It is loaded on that device now, on others when they first launch it.

    Errors: DriverError.
    """
    code, parameters = _Code(path, entry), entry["parameters"]
    arrange, place = _arranged(parameters, names), _Arguments(len(parameters))
    pack = struct.Struct("=" + "".join(_FIELDS[kind] for _, kind in parameters)).pack_into
    grid, block, shared = entry["grid"], entry["block"], entry["shared"]
    scalars = [(i, name) for i, name in enumerate(names) if name in _words(grid)]
    launcher = _driver().cuLaunchKernel
    stream_of = torch._C._cuda_getCurrentRawStream
    code.on(torch.cuda.current_device())

    def launch(*values: Any) -> None:
        device = torch.cuda.current_device()
        function, stream = code.on(device), stream_of(device)
        known = {name: values[i] for i, name in scalars}
        blocks = [number(tree, known) for tree in grid]
        pack(place.values, 0, *arrange(values))
        arguments = (function, *blocks, *block, shared, stream, place.pointers, None)
        result = launcher(*arguments)
        if result == _INVALID_CONTEXT:  # a thread in which torch has not used the device yet
            _enter(device)
            result = launcher(*arguments)
        if result:
            raise DriverError(f"{entry['symbol']}: the launch failed with {result}")

    return launch


def _words(tree: Any) -> set[str]:
    """Names in a tree of numbers; operations count, and no parameter is called like one."""
    if isinstance(tree, str):
        return {tree}
    return set().union(*map(_words, tree)) if isinstance(tree, list) else set()
