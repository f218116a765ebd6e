"""Every kernel of a spec on a small pool, to run under a checker:

compute-sanitizer --tool memcheck python tests/gpu/sanitize.py gdn 64 32
"""

from __future__ import annotations

import sys

import torch

import leapgen
from leapgen.oracle.streams import Heads, stream
from leapgen.runtime.host import DTYPES
from leapgen.spec import loader


def main(spec_name: str, K: int, V: int) -> None:
    H, HV, window = 2, 4, 5
    module = leapgen.load(spec_name)
    spec = loader.load(f"specs/{spec_name}.yaml")
    pool = module.allocate(5, H=H, HV=HV, K=K, V=V, window=window)
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
    found = module.materialize(pool, slots)
    torch.cuda.synchronize()
    assert torch.isfinite(out.float()).all()
    assert torch.isfinite(found).all()
    assert not pool.status.any()
    sys.stdout.write(f"{spec_name} {K} x {V}: all kernels ran\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
