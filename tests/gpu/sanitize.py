"""Every kernel of a spec on a small pool, to run under a checker:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    python tests/gpu/sanitize.py gdn 64 32 leapquant-int8

Each pool tensor is an allocation of its own, as large as its last tile and no larger, so that the
checker sees what lies outside. It holds NaN; with `bare` at the end of the command nobody has
written to it, for the checker of uninitialised memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import leapgen
from leapgen.oracle.streams import Heads, stream
from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.spec import loader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from lab import poison

SLOTS, H, HV = 5, 2, 4


def pool_of(module: Module, bare: bool, **sizes: int) -> Pool:
    shape = module.shape(**sizes)
    tensors = {}
    for buffer in module.buffers:
        extents, strides = (SLOTS, *buffer.sizes(shape)), buffer.strides(shape)
        end = 1 + sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        whole = torch.empty(end, dtype=DTYPES[buffer.dtype], device="cuda")
        tensors[buffer.name] = (whole if bare else poison(whole)).as_strided(extents, strides)
    return module.pool(tensors, **sizes)


def main(spec_name: str, K: int, V: int, format: str, bare: bool) -> None:
    module = leapgen.load(spec_name, format=format)
    spec = loader.load(f"specs/{spec_name}.yaml")
    sizes = {"H": H, "HV": HV, "K": K, "V": V, "window": 5 if module.windowed else 1}
    pool = pool_of(module, bare, **sizes)
    slots = torch.tensor([3, 0, -1, 4], dtype=torch.int32, device="cuda")
    module.reset(pool, slots)
    state = torch.randn(4, HV, V, K, device="cuda")
    module.load_state(pool, slots, state, position=3)
    tokens = stream(spec, 16, Heads(H, HV, K, V), seed=0)
    for t in range(12):
        given = [
            torch.tensor(x if i.constant else x[t : t + 4], dtype=DTYPES[i.dtype], device="cuda")
            for i in spec.inputs
            for x in [tokens[i.name]]
        ]
        out = module.step(pool, slots, *given)
    module.copy(pool, slots[:1], slots[1:2])
    for layout in ("VK", "KV"):
        found = module.materialize(pool, slots, layout=layout)
        assert torch.isfinite(found).all()
    torch.cuda.synchronize()
    assert torch.isfinite(out.float()).all()
    assert not pool.status.any()
    sys.stdout.write(f"{spec_name} {K} x {V}, {format}: all kernels ran\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:] == ["bare"])
