"""TileLang's lowering of one prim_func to CUDA text and device TIR, without nvcc or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PASS_CONFIGS: Mapping[str, object] = {"tl.disable_safe_memory_legalize": True}


@dataclass(frozen=True)
class Lowered:
    """What lowering gives.

    source       the CUDA text of the module
    kernel       the CUDA kernel's name
    threads      threads of one block along x, y, z
    shared_bytes dynamic shared memory of one block
    device       the kernel's device TIR (tilelang's PrimFunc)
    """

    source: str
    kernel: str
    threads: tuple[int, int, int]
    shared_bytes: int
    device: Any


def lower(func: Any, arch: str, pass_configs: Mapping[str, object] = PASS_CONFIGS) -> Lowered:
    """Lower a TileLang prim_func for a CUDA arch such as ``sm_90a``.

    Raises ValueError if it does not come out as exactly one CUDA kernel of fixed block size.
    """
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import lower_with_context

    context = create_backend_context({"kind": "cuda", "arch": arch}, None, "auto")
    with tvm.transform.PassContext(opt_level=3, config=dict(pass_configs)), context.target:
        artifact = lower_with_context(func, context)
    kernels = list(artifact.device_mod.functions.items())
    if len(kernels) != 1:
        raise ValueError(f"one kernel expected, found {[str(name) for name, _ in kernels]}")
    name, device = kernels[0]
    extent = device.attrs["thread_extent"]
    threads = tuple(int(extent[f"threadIdx.{axis}"]) for axis in "xyz")
    shared = device.attrs.get("dyn_shared_memory_buf", 0)
    return Lowered(
        source=artifact.kernel_source,
        kernel=name.name_hint,
        threads=(threads[0], threads[1], threads[2]),
        shared_bytes=int(shared),
        device=device,
    )
