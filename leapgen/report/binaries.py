"""Kernels as files: compiled in worker processes, with all that a launch needs to know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leapgen.diagnostics import LeapgenError
from leapgen.oracle.emulator.lowering import PASS_CONFIGS, Lowered, lower
from leapgen.oracle.emulator.source import read_signature
from leapgen.report.workers import ERRORS
from leapgen.runtime import assemble
from leapgen.runtime.host import Shape, TileLang
from leapgen.runtime.launches import LENGTH, OPERATIONS

_SCALARS = {"int": "int32", "int32": "int32", "int32_t": "int32", "int64": "int64"} | {
    "int64_t": "int64",
    "uint": "uint32",  # strides, which the host keeps below 2**32
    "uint32_t": "uint32",
}
_NODES = {"Add": "add", "Sub": "sub", "Mul": "mul", "FloorDiv": "floordiv"} | {
    "Min": "min",
    "Max": "max",
}


class NoBinary(LeapgenError):
    """A kernel cannot be compiled ahead of time."""


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    code    a cubin, or a shared library of this machine
    names   of the prim_func's parameters, in order
    entry   see `leapgen.runtime.launches`
    """

    code: bytes
    names: tuple[str, ...]
    entry: dict[str, Any]


def make(
    path: Path, kernel: str, shape: Shape, config: Mapping[str, Any], target: str
) -> tuple[Binary | None, str]:
    """A kernel of the module at `path`, compiled for a target, or why it does not compile."""
    made = assemble.import_module(path).kernels[kernel]
    try:
        func = made.build(*shape.builder_arguments, **config)
        one = _for_cpu if target == "c" else _for_gpu
        return one(func, target, made.pass_configs), ""
    except (NoBinary, *ERRORS) as error:
        return None, f"{type(error).__name__}: {str(error).strip()[:2000]}"


def names_of(func: Any) -> tuple[str, ...]:
    """Names of a prim_func's parameters, in order."""
    buffers = func.buffer_map
    return tuple(buffers[p].name if p in buffers else p.name for p in func.params)


def _for_cpu(func: Any, target: str, pass_configs: Mapping[str, Any]) -> Binary:
    """TileLang's own library: its function takes the parameters, then the sizes of tensors."""
    compiled: Any = TileLang("cpu").compile(func, target, pass_configs)
    code = Path(compiled.adapter.libpath).read_bytes()
    parameters: list[list[str]] = []
    lengths: dict[str, str] = {}
    for p in func.params:
        if p in func.buffer_map:
            buffer = func.buffer_map[p]
            parameters.append([buffer.name, "pointer"])
            lengths |= {size.name: buffer.name for size in buffer.shape if hasattr(size, "name")}
        else:
            parameters.append([p.name, _scalar(p.name, str(p.dtype))])
    for length, name in lengths.items():
        if length not in (LENGTH + name, LENGTH + name.removesuffix("_in")):
            raise NoBinary(f"a size called {LENGTH}{name} is expected, found {length}")
        parameters.append([LENGTH + name, "int64"])
    entry: dict[str, Any] = {"symbol": "call", "parameters": parameters}
    return Binary(code, names_of(func), entry)


def _for_gpu(func: Any, target: str, pass_configs: Mapping[str, Any]) -> Binary:
    """What TileLang's nvcc makes of what TileLang emits: the bits of a kernel that it compiles."""
    from tilelang.backend.module import create_backend_context
    from tilelang.cuda.backend import tilelang_callback_cuda_compile

    configs = {**PASS_CONFIGS, **pass_configs}
    lowered = lower(func, target, configs)
    context = create_backend_context({"kind": "cuda", "arch": target}, None, "auto")
    code = bytes(tilelang_callback_cuda_compile(lowered.source, context.target, configs))
    names = names_of(func)
    return Binary(code, names, entry_of(lowered, names))


def entry_of(lowered: Lowered, names: Sequence[str]) -> dict[str, Any]:
    """How to launch a kernel whose prim_func has parameters of these names. Errors: NoBinary."""
    parameters = []
    for p in read_signature(lowered.source, lowered.kernel).parameters:
        if p.name not in names and p.name.removeprefix(LENGTH) not in names:
            raise NoBinary(f"parameters {', '.join(names)} are expected, found {p.name}")
        parameters.append([p.name, "pointer" if p.pointer else _scalar(p.name, p.type)])
    extents = lowered.device.attrs["thread_extent"]
    return {
        "symbol": lowered.kernel,
        "parameters": parameters,
        "grid": [tree(extents.get(f"blockIdx.{axis}", 1)) for axis in "xyz"],
        "block": list(lowered.threads),
        "shared": lowered.shared_bytes,
    }


def _scalar(name: str, kind: str) -> str:
    if kind not in _SCALARS:
        raise NoBinary(f"{name}: an integer of 32 or 64 bits is expected, found {kind}")
    return _SCALARS[kind]


def tree(expression: Any) -> Any:
    """An integer expression of TIR as plain data, as `leapgen.runtime.launches.number` reads it.

    Errors: NoBinary for an operation that it does not know.
    """
    if isinstance(expression, int):
        return expression
    word = type(expression).__name__
    if word == "IntImm":
        return int(expression.value)
    if word == "Var":
        return str(expression.name)
    if word == "Cast":
        return tree(expression.value)
    if word not in _NODES or _NODES[word] not in OPERATIONS:
        raise NoBinary(f"grid: one of {', '.join(_NODES)} is expected, found {expression}")
    return [_NODES[word], tree(expression.a), tree(expression.b)]


def targets(arch_targets: tuple[tuple[tuple[int, int], str], ...]) -> Iterator[str]:
    """Compile targets of a row of archs, each once: all its GPUs', or `c`."""
    yield from dict.fromkeys(name for _, name in arch_targets) or ("c",)
