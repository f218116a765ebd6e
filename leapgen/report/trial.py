"""One module under test: the same operations on its pool, on the NumPy model and in float64.

Two comparisons run side by side. *In lockstep*: before each operation the model takes over the
module's pool, so that any difference is of this operation, and bounds are FP32 noise. *In float64*:
the spec's interpreter goes its own way from the start, and bounds grow with the flushes since a
slot was loaded; where every step rounds the state it starts again from the module's own after each
one, since those errors are no random walk (a decay of less than half a code does nothing). What no
tolerance excuses is compared for equality: cursors, phases, bystanders, gaps between tiles, the
bits of a repeated call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leapgen.formats.base import Codes
from leapgen.oracle import in_place, tolerance
from leapgen.oracle.pool import Pool
from leapgen.oracle.stepwise import Stepwise
from leapgen.oracle.streams import Heads, stream
from leapgen.report.ledger import Ledger
from leapgen.report.poison import Poisoned, poisoned
from leapgen.report.subjects import Subject
from leapgen.runtime import host
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec

Ints = npt.NDArray[np.integer[Any]]
Array = npt.NDArray[Any]


@dataclass
class Trial:
    """A pool of `slots` slots of one module, and its two references. Slots start empty.

    exact    float64 states [slots, HV, K, V]
    flushes  boundary roundings of each (slot, head) since `exact` and the pool were equal
    scale    peak of each (slot, head) that these are relative to: see `follow`
    flushed  flushes that steps have done in all, over slots and heads
    """

    spec: Spec
    plan: Plan
    subject: Subject
    shape: Shape
    ledger: Ledger
    slots: int = 5
    seed: int = 0
    tokens: int = 128
    exact: Array = field(init=False)
    flushes: Ints = field(init=False)
    flushed: int = field(init=False, default=0)
    _token: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        s = self.shape
        self.rng = np.random.default_rng(self.seed)
        self.model = in_place.model_of(self.spec, self.plan, s, self.slots)
        self.interpreter = Stepwise(self.spec)
        heads = Heads(s.H, s.HV, s.K, s.V)
        self.stream = stream(self.spec, self.tokens, heads, self.seed)
        self.exact = np.zeros((self.slots, s.HV, s.K, s.V))
        self.flushes = np.zeros((self.slots, s.HV), int)
        self.scale = np.zeros((self.slots, s.HV))
        self.all = np.arange(self.slots)
        self.home = self.fresh_pool()
        self.module.reset(self.pool, self.ids(self.all))
        self.ledger.compare("reset: state of an empty slot", np.abs(self.states(self.all)), 0.0)

    # ---- the module's side

    @property
    def module(self) -> host.Module:
        """What is tested."""
        return self.subject.module

    @property
    def pool(self) -> host.Pool:
        """Its pool; `operations.move` replaces it."""
        return self.home.pool

    def fresh_pool(self) -> Poisoned:
        """A pool full of poison, of the trial's shape."""
        s = self.shape
        shape = host.Shape(s.K, s.V, s.H, s.HV, s.P, s.R)
        return poisoned(self.module, shape, self.slots, self.subject.device)

    def ids(self, slots: Ints) -> torch.Tensor:
        """Slot numbers as the module takes them: int32 with a stride of 2."""
        wide = torch.full((2 * len(slots),), 2**20, dtype=torch.int32)
        wide[::2] = torch.tensor(slots, dtype=torch.int32)
        return wide.to(self.subject.device)[::2]

    def states(self, slots: Ints) -> Array:
        """materialize, as [rows, HV, K, V], into a result full of NaN."""
        s = self.shape
        out = torch.full((len(slots), s.HV, s.V, s.K), torch.nan, device=self.subject.device)
        self.module.materialize(self.pool, self.ids(slots), out=out)
        return np.swapaxes(out.cpu().numpy(), -1, -2)

    def export(self) -> dict[str, Array]:
        """All slots in canonical order, as the model stores them."""
        data = self.module.export(self.pool, self.ids(self.all))
        return {b.name: _array(data[b.name]) for b in self.plan.buffers}

    def inputs(self, rows: int) -> dict[str, Array]:
        """One token a row, from different places of the stream; constants as they are."""
        places = [(self._token + 37 * r) % self.tokens for r in range(rows)]
        self._token += 1
        return {
            x.name: self.stream[x.name] if x.constant else self.stream[x.name][places]
            for x in self.spec.inputs
        }

    def tensors(self, inputs: Mapping[str, Array]) -> list[torch.Tensor]:
        """The inputs with odd strides: every other element of a tensor full of NaN."""
        found = []
        for x in self.spec.inputs:
            value = torch.from_numpy(np.ascontiguousarray(inputs[x.name]))
            value = value.to(host.DTYPES[x.dtype])
            wide = torch.full((*value.shape, 2), torch.nan, dtype=value.dtype)
            wide[..., 0] = value
            found.append(wide.to(self.subject.device)[..., 0])
        return found

    def anchor(self, slots: Ints) -> None:
        """Starts float64 again from the module's states, if every step rounds them."""
        if not self.plan.windowed and self.plan.format.noise() > 0:
            self.exact[slots], self.flushes[slots] = self.states(slots), 0
            self.scale[slots] = np.abs(self.exact[slots]).max(axis=(-2, -1))

    def follow(self, slots: Ints, inputs: Mapping[str, Array]) -> None:
        """The scale after a token, of which `exact` does not know yet. What was rounded while the
        state was large is off by as much, less what decays, after later tokens, or later sub-steps
        of the same, have erased most of the state: they erase what they read, not the errors."""
        kept = self.interpreter.kept(inputs, self.shape.HV) * self.scale[slots]
        self.scale[slots] = np.maximum(kept, self.interpreter.peak(self.exact[slots], inputs))

    def run_step(self, pool: host.Pool, slots: Ints, inputs: Mapping[str, Array]) -> torch.Tensor:
        """The module's step, into a result full of NaN."""
        size = (len(slots), self.shape.HV, self.shape.V)
        dtype = host.DTYPES[self.spec.output.dtype]
        out = torch.full(size, torch.nan, dtype=dtype, device=self.subject.device)
        return self.module.step(pool, self.ids(slots), *self.tensors(inputs), out=out)

    # ---- comparisons

    def adopt(self) -> dict[str, Array]:
        """Puts the module's pool into the model; its content."""
        data = self.export()
        for name, values in data.items():
            self.model.pool[name][...] = values
        return data

    def bounds(self, output: str, flushes: int = 0, walked: bool = False) -> dict[str, float]:
        """Bounds with this many flushes between the two sides; see `tolerance.bounds`."""
        return tolerance.bounds(
            self.plan.format,
            self.plan.records,
            self.shape.P,
            output,
            K=self.shape.K,
            compensators=self.shape.R,
            substeps=self.plan.records_per_token,
            flushes=flushes,
            walked=walked,
            combined=tolerance.combined_in(self.spec),
            tighter=self.spec.tolerances,
        )

    def bound(self, what: str, slots: Ints) -> Array:
        """Bounds against float64 for each (slot, head), by its flushes."""
        output, most = self.spec.output.dtype, int(self.flushes.max())
        table = [self.bounds(output, f, walked=True)[what] for f in range(most + 1)]
        return np.asarray(table)[self.flushes[slots]]

    def check_state(
        self,
        name: str,
        slots: Ints,
        truth: Array,
        rounded: Array,
        after: Mapping[str, Array],
        within: Array | None = None,
    ) -> None:
        """States after an operation against what they must be, element by element.

        truth     [rows, HV, K, V]
        rounded   [rows, HV] true where the operation has quantized the state once
        after     the pool's content
        within    [rows, HV] peaks that the operation has gone through, of the state if absent: what
                  a sub-step writes is rounded as it is, however little the next one leaves of it
        """
        found = self.states(slots)
        peak = np.abs(truth).max(axis=(-2, -1))
        noise = self.bounds("fp32")["state"] * np.maximum(peak, 0 if within is None else within)
        noise = noise[..., None, None]
        codes = self.codes(slots, after)
        half = tolerance.half_steps(self.plan.format, codes)
        allowed = noise + np.where(rounded[..., None, None], half, 0)
        error = np.abs(found - truth)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(error == 0, 0, error / allowed)
        self.ledger.compare(f"{name}: error over half a code and FP32 noise", share, 1.0)

    def codes(self, slots: Ints, data: Mapping[str, Array]) -> Codes:
        """What an export stores of some slots."""
        pool = Pool(self.plan, self.shape, self.slots)
        for name, values in data.items():
            pool[name][...] = values
        return pool.stored(slots).codes

    def check_exact(self, slots: Ints) -> None:
        """States against float64."""
        found = tolerance.distance(self.states(slots), self.exact[slots], axes=2)
        peak = np.abs(self.exact[slots]).max(axis=(-2, -1))
        stretch = np.divide(self.scale[slots], peak, out=np.ones(peak.shape), where=peak > 0)
        # No further than peaks and RMS may be apart: more would let through what is all error.
        allowed = self.bound("state", slots) * np.clip(stretch, 1, tolerance.CREST)
        self.ledger.compare("state against float64", found, allowed)

    def check_bystanders(
        self,
        name: str,
        touched: Ints,
        before: Mapping[str, Array],
        after: Mapping[str, Array] | None = None,
    ) -> None:
        """Slots that an operation was not given, and the gaps between tiles, are as before."""
        after = self.export() if after is None else after
        others = np.setdiff1d(self.all, touched)
        wrong = sum(
            int((before[n][others].view(np.uint8) != after[n][others].view(np.uint8)).any())
            for n in before
            if before[n].size
        )
        self.ledger.equal(f"{name}: other slots unchanged", wrong, len(before))
        self.ledger.equal("gaps between tiles unchanged", self.home.damaged())
        self.ledger.equal("status word clean", int(self.pool.status.cpu().abs().sum()))


def _array(tensor: torch.Tensor) -> Array:
    """A tensor as the oracle stores it: BF16 as its 16 bits."""
    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    return tensor.numpy().copy()
