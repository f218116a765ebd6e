"""What templates see of a plan: finished names and code, no SymPy, no decisions left.

A formula stays a `Formula` until the template says how its variables are written (filter `code`).
Everything else is a string, a number or a truth value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from leapgen.emit import names
from leapgen.emit.codec import Codec
from leapgen.emit.early import Early
from leapgen.emit.formula import Formula
from leapgen.emit.program import Phase
from leapgen.emit.signature import Buffer, Input, Kernel


@dataclass(frozen=True)
class Read:
    """One read of the window.

    name           symbol of the result, a V-element
    weight         stored K vector that payload and compensators are read with
    record_inner   summed over the keys for one record, in `rk` and, for a vector decay, `rG`
    record_outer   factor of that sum, in `rG`; `outer` False: it is 1
    """

    name: str
    weight: str
    record_inner: Formula
    record_outer: Formula
    outer: bool


@dataclass(frozen=True)
class Update:
    """How a token that is not recorded changes the state: S <- keep * S + sum of weight u^T.

    keep       name of the factor, a stored K vector or (`vector` False) a scalar; empty: one
    writes     (stored K vector, correction) of each term
    """

    keep: str
    vector: bool
    writes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Correction:
    """u of one sub-step, a V-element."""

    name: str
    formula: Formula


@dataclass(frozen=True)
class Record:
    """What sub-step `index` appends, as record `number` (code in `count`).

    level   the decay that belongs to it, an entry among the token's; -1: no decay
    """

    index: int
    number: str
    key: Formula
    correction: str
    level: int


@dataclass(frozen=True)
class FormatView:
    """The format's row in words of templates. codec: of a composition, whose smoothing and value
    scale are its own affair: the two flags are False."""

    name: str
    family: str
    doc: str
    bits: int
    top: int
    floor: str
    payload: str
    smoothing: bool
    value_scale: bool
    compensated: bool
    codec: Codec | None = None

    @property
    def partial(self) -> str:
        """The template with the family's decode and encode."""
        return f"formats/{self.family}.j2"


@dataclass(frozen=True)
class View:
    """See the module's docstring. Names of fields are the names in templates.

    windowed        tokens are recorded; otherwise each one rewrites the state: see `update`
    n               records a token; levels: stored decays a token
    phases          the token program before its pass over the payload (program.Phase)
    early           the same for a step that holds its records in registers; None: it cannot
    k_arrays        names of all stored K vectors; v_arrays: of all V-elements
    decay_source    algebra.window.DecaySource; told: the log2 decay of a token, in its key `rk`
    decay_numbers   (level name, code of the entry that the token appends for it)
    shared_key      record keys belong to key heads: one value head of a group writes them
    result, result_sums   see program.Program
    rebuild_...     formulas of the state at the cursor, in G, rG and rk; not weighted: payload is 1
    draft_...       where the output of draft `tt` begins, and its element
    pending         how many drafts wait in a slot: of verify, and of a flush in pools with drafts
    layout          text of the payload's index maps; fragment: some shapes have fragment order
    rows            type of the operands that value channels in plain order become; empty: none do
    closes_rows     and products of records may close its windows
    coded           a step in place decodes and encodes words of four codes
    matrix          a flush of these may hold the state as FP16 operands of matrix products
    fuses           and a step may be such a flush as well
    bulk            1-D bulk copies with a memory barrier exist
    constants       (name, number) of the quantizer's constants
    """

    name: str
    title: str
    doc: tuple[str, ...]
    digest: str
    spec_digest: str
    arch: str
    target: str
    directory: str
    gpu: bool
    shared_block: int
    shared_sm: int
    blocks_sm: int
    multiprocessors: int
    K: int
    V: int
    P: int
    R: int
    windowed: bool
    n: int
    levels: int
    has_decay: bool
    vector_decay: bool
    decay_source: str
    told: Formula | None
    decay_numbers: tuple[tuple[str, str], ...]
    shared_key: bool
    output_dtype: str
    output_stored: str
    output_index: str
    phases: tuple[Phase, ...]
    early: Early | None
    k_arrays: tuple[str, ...]
    v_arrays: tuple[str, ...]
    reads: tuple[Read, ...]
    corrections: tuple[Correction, ...]
    output: Formula
    result: Formula | None
    result_sums: tuple[tuple[str, Formula], ...]
    records: tuple[Record, ...]
    rebuild_payload: Formula
    rebuild_record: Formula
    rebuild_weighted: bool
    update: Update
    format: FormatView
    buffers: tuple[Buffer, ...]
    inputs: tuple[Input, ...]
    kernels: tuple[Kernel, ...]
    pending: Buffer
    draft_output_base: str
    draft_output_index: str
    layout: str
    layout_name: str
    fragment: bool
    rows: str
    closes_rows: bool
    coded: bool
    matrix: bool
    fuses: bool
    bulk: bool
    constants: tuple[tuple[str, str], ...]

    @property
    def buffer(self) -> Mapping[str, Buffer]:
        """Pool tensors by name."""
        return {b.name: b for b in self.buffers}

    @property
    def derived_decay(self) -> bool:
        """Whether kernels compute the cumulative decays of records: none holds them."""
        return self.windowed and self.decay_source in ("constant", "key")

    @property
    def reads_count(self) -> int:
        """Number of reads."""
        return len(self.reads)

    @property
    def most_sums(self) -> int:
        """The largest number of sums that a thread adds up at once, of a phase or of the output."""
        return max(len(self.result_sums), *(len(p.sums) for p in self.phases), 0)

    @property
    def k_shared(self) -> tuple[str, ...]:
        """Stored K vectors of which more than the owner of a channel uses elements."""
        wanted = {read.weight for read in self.reads}
        if self.windowed:
            for read in self.reads:
                wanted |= {name for name, _ in read.record_inner.symbols}
        else:
            wanted |= {self.update.keep, *(weight for weight, _ in self.update.writes)}
        return tuple(name for name in self.k_arrays if name in wanted)

    @property
    def k_owned(self) -> dict[str, str]:
        """The other stored K vectors, as elements of the thread that owns a channel (ii-th own)."""
        rest = (name for name in self.k_arrays if name not in self.k_shared)
        return {name: f"{names.symbol(name)}[ii]" for name in rest}

    @property
    def records_end(self) -> str:
        """Code of the number of committed records, in `count`."""
        return nth("count", self.n, 0)

    @property
    def decays_end(self) -> str:
        """Code of the number of stored decays, in `count`."""
        return nth("count", self.levels, 0)

    @property
    def fleeting(self) -> dict[str, str]:
        """Code of what is a variable of its own loop wherever other values are kept for all drafts:
        transients of the token program, scalars that are not `lasting`, corrections, and sums over
        the output."""
        found = [i.name for p in self.phases for i in p.keys if not i.stored]
        scalars = (i.name for p in self.phases for i in (*p.scalars, *p.sums))
        found += [name for name in scalars if name not in self.lasting]
        found += [c.name for c in self.corrections] + [name for name, _ in self.result_sums]
        return {name: names.symbol(name) for name in found}

    @property
    def lasting(self) -> tuple[str, ...]:
        """Scalars of a draft that are needed once those of all drafts are known."""
        late = [f for read in self.reads for f in (read.record_inner, read.record_outer)]
        late += [c.formula for c in self.corrections] + [f for _, f in self.result_sums]
        late += [self.output, *([self.result] if self.result is not None else [])]
        late += [i.formula for p in self.phases for i in p.values if i.formula is not None]
        used = {name for f in late for name in f.uses}
        scalars = (i.name for p in self.phases for i in (*p.scalars, *p.sums))
        return tuple(name for name in scalars if name in used)

    def entry(self, record: str) -> str:
        """Index code of the decay that belongs to the record numbered by the code `record`."""
        found = [r.level for r in self.records]
        if found == list(range(self.levels)):
            return record
        first = nth(f"{record} // {self.n}" if self.n > 1 else record, self.levels, 0)
        if len(set(found)) == 1:
            return f"({first} + {found[0]})"
        code = str(found[-1])
        for index, level in list(enumerate(found))[-2::-1]:
            code = f"T.if_then_else({record} % {self.n} == {index}, {level}, {code})"
        return f"({first} + {code})"

    def template(self, kernel: str) -> str:
        """File of a kernel's template, without its end: in place, some kernels are other ones."""
        if self.coded and kernel == "step":
            return f"{self.directory}/step_codes"
        if self.format.codec is not None and (found := self._composed(kernel)):
            return f"{self.directory}/{found}"
        direct = ("step", "materialize", "load_state") if self.gpu else ("step",)
        end = "_direct" if kernel in direct and not self.windowed else ""
        return f"{self.directory}/{kernel}{end}"

    def _composed(self, kernel: str) -> str:
        """A composition's own template of a kernel; empty where it is everybody's."""
        if not self.gpu:
            return "composed_step" if kernel == "step" and not self.windowed else ""
        found = {"copy": "composed_copy", "reset": "composed_reset"}
        if self.windowed:
            found["materialize"] = "composed_materialize"
        else:
            found |= {
                "step": "composed_step",
                "materialize": "composed_materialize_direct",
                "load_state": "composed_load_direct",
            }
        return found.get(kernel, "")

    @property
    def kernel(self) -> SimpleNamespace:
        """Kernels as attributes (`copy` is a method of every mapping)."""
        return SimpleNamespace(**{k.name: k for k in self.kernels})


def nth(token: str, each: int, index: int) -> str:
    """Code of `token * each + index`, as a person would write it."""
    first = token if each == 1 else f"{token} * {each}"
    return first if index == 0 else f"({first} {'+' if index > 0 else '-'} {abs(index)})"
