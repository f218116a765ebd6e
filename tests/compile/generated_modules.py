"""The modules of generated/, their plans, and their kernels lowered once a session."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leapgen import paths, pipeline
from leapgen.algebra.derive import derive
from leapgen.algebra.window import Window
from leapgen.emit.render import render
from leapgen.oracle.emulator.lowering import PASS_CONFIGS, Lowered, lower
from leapgen.report import manifest, targets
from leapgen.report.subjects import prepare
from leapgen.report.tir_machine import SECTOR, Machine, Touches
from leapgen.report.tir_program import Program
from leapgen.report.tir_traffic import Amount, Traffic
from leapgen.runtime.assemble import import_module, store
from leapgen.runtime.host import DTYPES, Module, Pool
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

GENERATED = paths.data("generated")
ARCHES = tuple(sorted(p.name for p in GENERATED.glob("sm*")))
# Those of which a module for a GPU lies there as a file; test_digest_modules.py has the others.
SPECS = tuple(
    path.stem
    for path in paths.shipped_specs()
    if set(ARCHES) & set(targets.target_of(targets.read(GENERATED), path.stem).files)
)
H, HV = 2, 4
FRAGMENT, PLAIN = (128, 128), (16, 24)  # (K, V): one for each payload order
KNOWN = ("slots", "cursor", "phase", "source", "target", "position", "order")  # the host's integers
COLD, WARM = 4, 1  # rounds of the fit, which a kernel decides by its old factors


def in_words(value: object) -> str:
    """A parameter in the name of a test: 16x24 for dimensions."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@functools.cache
def derived(name: str) -> tuple[Spec, Window]:
    spec = pipeline.parse(name)
    return spec, derive(pipeline.lower(spec), prove=False)


def plan_of(name: str, arch: str) -> Plan:
    spec, window = derived(name)
    return pipeline.schedule(window, spec, arch)


@functools.cache
def file_of(name: str, arch: str) -> Path:
    """A module of SPECS; where generated/ keeps a digest in its place, rendered and compared."""
    path = GENERATED / arch / f"{name}.py"
    if path.is_file():
        return path
    source = render(plan_of(name, arch), derived(name)[0])
    assert manifest.read(GENERATED).digests[source.path] == source.digest, "run `leapgen build`"
    return store(name, source.text)


def module_at(path: Path) -> Module:
    prepare()
    return import_module(path)


_LOWERED: dict[tuple[Any, ...], Lowered] = {}


def lower_once(func: Any, arch: str, pass_configs: Mapping[str, object] = PASS_CONFIGS) -> Lowered:
    """`lower`, once a session for equal programs: it takes seconds, and tests share them."""
    from tilelang import tvm

    key = (tvm.ir.structural_hash(func), arch, tuple(sorted(pass_configs.items())))
    if key not in _LOWERED:
        _LOWERED[key] = lower(func, arch, pass_configs)
    return _LOWERED[key]


@dataclass
class Counted:
    """A kernel that counts instead of running, lowered when it is first asked for.

    on      whether launches count
    most    blocks of a launch
    rounds  of the fit
    blocks  of the latest launch: what each block touches
    union   of the latest launch: what all blocks touch together
    fetched of the latest launch: what they read and do not write, by buffer
    """

    lower: Callable[[], Lowered]
    names: tuple[str, ...]
    on: bool = False
    most: int = HV
    rounds: int = WARM
    blocks: list[Traffic] = field(default_factory=list)
    union: dict[tuple[str, str], Amount] = field(default_factory=dict)
    fetched: dict[str, Amount] = field(default_factory=dict)

    @functools.cached_property
    def lowered(self) -> Lowered:
        return self.lower()

    def __call__(self, *arguments: Any) -> None:
        if not self.on:  # a step launches the flush too
            return
        values = dict(zip(self.names, arguments, strict=True))
        tensors = {n: x for n, x in values.items() if isinstance(x, torch.Tensor)}
        scalars = {n: x for n, x in values.items() if n not in tensors}
        scalars |= {f"n_{n}": x.numel() for n, x in tensors.items()}
        known: dict[str, Any] = {
            "scalars": scalars,
            "ints": {n: x.numpy() for n, x in tensors.items() if n in KNOWN},
            # How many rows were found before this one decides where it is written, not whether.
            "assumed": {"rounds": self.rounds, "s_found": 0},
        }
        grid = range(min(scalars["num_rows"] * HV, self.most))
        touched = [self._touches(b, **known) for b in grid]
        self.blocks = [Traffic(_amounts(block)) for block in touched]
        merged = _merged(touched)
        self.union = _amounts(merged)
        self.fetched = {name: _fetched(name, merged) for name, way in merged if way == "read"}

    def _touches(
        self, block: int, *, scalars: Any, ints: Any, assumed: Any
    ) -> Mapping[tuple[str, str], Touches]:
        machine = Machine(self.lowered.threads, {"x": block}, scalars, ints, assumed)
        program = Program(machine, False)
        program.parameters(self.lowered.device)
        run = program.statement(self.lowered.device.body)
        assert run is not None
        run(~machine.stopped)
        return machine.touches


def _fetched(name: str, merged: Mapping[tuple[str, str], Touches]) -> Amount:
    """Of one buffer: what is read and not written, and the sectors of that."""
    read, written = merged[name, "read"], merged.get((name, "write"), Touches())
    left = np.setdiff1d(_bytes(read), _bytes(written))
    return Amount(read.total, left.size, np.unique(left // SECTOR).size)


def _bytes(touches: Touches) -> Any:
    pieces = [
        start + np.arange(n) for n, many in touches.starts.items() for x in many for start in x
    ]
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)


def _merged(blocks: list[Mapping[tuple[str, str], Touches]]) -> dict[tuple[str, str], Touches]:
    merged: dict[tuple[str, str], Touches] = {}
    for block in blocks:
        for key, touches in block.items():
            whole = merged.setdefault(key, Touches())
            whole.total += touches.total
            for size, starts in touches.starts.items():
                whole.starts[size] += starts
    return merged


def _amounts(touched: Mapping[tuple[str, str], Touches]) -> dict[tuple[str, str], Amount]:
    return {k: Amount(t.total, t.units(1), t.units(SECTOR)) for k, t in touched.items()}


@dataclass(frozen=True)
class Counting:
    """A backend that lowers, and counts what launches would touch."""

    device: str = "cpu"

    def compile(self, func: Any, target: Any, pass_configs: Mapping[str, Any]) -> Counted:
        configs = {**PASS_CONFIGS, **pass_configs}
        make = functools.partial(lower_once, func, target["arch"], configs)
        names = [func.buffer_map[p].name if p in func.buffer_map else p.name for p in func.params]
        return Counted(make, tuple(names))


@dataclass
class Bench:
    """One row on one module: the host's own calls, counted.

    shape  of the plan's kind
    """

    module: Module
    K: int
    V: int
    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = self.module.allocate(3, H=H, HV=HV, K=self.K, V=self.V)

    @property
    def shape(self) -> Shape:
        return Shape(**vars(self.pool.shape))

    def config(self, kernel: str) -> dict[str, Any]:
        """The present one; the default unless `configured`."""
        default = self.module.kernels[kernel].config(*self.pool.shape.builder_arguments)
        return dict(self.module.configs.get(kernel, default))

    def configured(self, kernel: str, **changes: Any) -> Bench:
        """The same bench and lowered kernels, but for a kernel with another config."""
        config = {**self.config(kernel), **changes}
        return Bench(self.module.with_configs(**{kernel: config}), self.K, self.V)

    def counted(self, kernel: str) -> Counted:
        call: Counted = self.module.kernel(kernel, self.pool).call
        return call

    def launch(
        self, kernel: str, cursor: int = 0, phase: int = 0, slot: int = 1, rounds: int = WARM
    ) -> Counted:
        """What a row of this kernel touches, the window of all slots at `cursor`."""
        self.pool.cursor.fill_(cursor)
        self.pool.phase.fill_(phase)
        found = self.counted(kernel)
        found.most = self.config(kernel).get("blocks", HV)
        found.on, found.rounds = True, COLD if kernel == "load_state" else rounds
        ids = torch.tensor([slot], dtype=torch.int32)
        match kernel:
            case "step":
                self.module.step(self.pool, ids, *self.inputs())
            case "load_state":
                state = torch.zeros(1, HV, self.V, self.K)
                self.module.load_state(self.pool, ids, state, ids)
            case "copy":
                self.module.copy(self.pool, ids, ids + 1)
            case _:
                getattr(self.module, kernel)(self.pool, ids)
        found.on = False
        return found

    def inputs(self) -> list[torch.Tensor]:
        sizes = [(x.sizes(1, self.pool.shape), DTYPES[x.dtype]) for x in self.module.inputs]
        return [torch.zeros(size, dtype=dtype) for size, dtype in sizes]


@functools.cache
def bench(path: Path, dims: tuple[int, int]) -> Bench:
    """A bench for a file, at the default configs."""
    return Bench(module_at(path).with_backend(Counting()), *dims)
