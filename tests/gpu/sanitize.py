"""Every kernel of a spec on a small pool, to run under a checker:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    python tests/gpu/sanitize.py gdn 64 32 leapquant-int8

With `tuned` in place of K and V, as in `sanitize.py gdn tuned leapquant-int8`: at the sizes of the
present GPU's table, once with each set of configs that stands there.

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
from leapgen.runtime.host.configs import key_of
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


def run(module: Module, spec_name: str, bare: bool, **sizes: int) -> None:
    """Every kernel of a module, over the end of a window or of several."""
    spec = loader.load(f"specs/{spec_name}.yaml")
    pool = pool_of(module, bare, **sizes)
    H, HV, K, V, window = (sizes[name] for name in ("H", "HV", "K", "V", "window"))
    slots = torch.tensor([3, 0, -1, 4], dtype=torch.int32, device="cuda")
    module.reset(pool, slots)
    state = torch.randn(4, HV, V, K, device="cuda")
    module.load_state(pool, slots, state, position=max(3, window - 7))
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


def main(spec_name: str, K: int, V: int, format: str, bare: bool) -> None:
    module = leapgen.load(spec_name, format=format)
    sizes = {"H": H, "HV": HV, "K": K, "V": V, "window": 5 if module.windowed else 1}
    run(module, spec_name, bare, **sizes)
    sys.stdout.write(f"{spec_name} {K} x {V}, {format}: all kernels ran\n")


def main_tuned(spec_name: str, format: str) -> None:
    module = leapgen.load(spec_name, format=format)
    assert module.table, f"no table of {spec_name} with {format} for this GPU"
    picked = {key_of(configs=t.configs, shape=vars(t.shape)): t for t in module.table}
    for tuned in picked.values():
        K, V, P = tuned.shape.K, tuned.shape.V, tuned.shape.P
        run(module.with_table([tuned]), spec_name, False, H=2, HV=2, K=K, V=V, window=P)
    sys.stdout.write(f"{spec_name}, {format}, {len(picked)} tuned: all kernels ran\n")


if __name__ == "__main__":
    if sys.argv[2] == "tuned":
        main_tuned(sys.argv[1], sys.argv[3])
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:] == ["bare"])
