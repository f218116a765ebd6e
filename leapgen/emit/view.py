"""What templates see of a plan: finished names and code, no SymPy, no decisions left.

A formula stays a `Formula` until the template says how its variables are written (filter `code`).
Everything else is a string, a number or a truth value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from leapgen.algebra.digest import digest
from leapgen.algebra.window import NewRecord, Window
from leapgen.algebra.window import Read as WindowRead
from leapgen.emit import signature
from leapgen.emit.document import document
from leapgen.emit.formula import Axes, Formula, formula
from leapgen.emit.program import Phase, decay_axis, token_program, weight_name
from leapgen.emit.signature import Buffer, Input, Kernel
from leapgen.formats import base, compensator, integer
from leapgen.schedule.layout import can_fragment, layout_source
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec
from leapgen.tensors import Per


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
    """The format's row in words of templates."""

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

    @property
    def partial(self) -> str:
        """The template with the family's decode and encode."""
        return f"formats/{self.family}.j2"


@dataclass(frozen=True)
class View:
    """See the module's docstring. Names of fields are the names in templates."""

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
    K: int
    V: int
    P: int
    R: int
    n: int
    levels: int
    has_decay: bool
    vector_decay: bool
    decay_axis: str
    previous: str
    level_names: tuple[str, ...]
    updated: bool
    shared_key: bool
    record_dtype: str
    output_dtype: str
    output_stored: str
    output_index: str
    phases: tuple[Phase, ...]
    k_arrays: tuple[str, ...]
    v_arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    reads: tuple[Read, ...]
    corrections: tuple[Correction, ...]
    output: Formula
    records: tuple[Record, ...]
    rebuild_payload: Formula
    rebuild_record: Formula
    rebuild_weighted: bool
    format: FormatView
    buffers: tuple[Buffer, ...]
    inputs: tuple[Input, ...]
    kernels: tuple[Kernel, ...]
    layout: str
    layout_name: str
    fragment: bool
    ridge: str
    cold_rounds: int
    constants: tuple[tuple[str, str], ...]

    @property
    def buffer(self) -> Mapping[str, Buffer]:
        """Pool tensors by name."""
        return {b.name: b for b in self.buffers}

    @property
    def reads_count(self) -> int:
        """Number of reads."""
        return len(self.reads)

    @property
    def most_sums(self) -> int:
        """The largest number of sums in one phase."""
        return max((len(p.sums) for p in self.phases), default=0)

    @property
    def records_end(self) -> str:
        """Code of the number of committed records, in `count`."""
        return _nth("count", self.n, 0)

    @property
    def decays_end(self) -> str:
        """Code of the number of stored decays, in `count`."""
        return _nth("count", self.levels, 0)

    @property
    def decay_numbers(self) -> tuple[tuple[str, str], ...]:
        """(level name, code of the entry that the token appends for it)."""
        numbers = range(self.levels)
        return tuple((self.level_names[i], _nth("count", self.levels, i)) for i in numbers)

    def entry(self, record: str) -> str:
        """Index code of the decay that belongs to the record numbered by the code `record`."""
        found = [r.level for r in self.records]
        if found == list(range(self.levels)):
            return record
        first = _nth(f"{record} // {self.n}" if self.n > 1 else record, self.levels, 0)
        if len(set(found)) == 1:
            return f"({first} + {found[0]})"
        code = str(found[-1])
        for index, level in list(enumerate(found))[-2::-1]:
            code = f"T.if_then_else({record} % {self.n} == {index}, {level}, {code})"
        return f"({first} + {code})"

    @property
    def kernel(self) -> SimpleNamespace:
        """Kernels as attributes (`copy` is a method of every mapping)."""
        return SimpleNamespace(**{k.name: k for k in self.kernels})


def view(plan: Plan, spec: Spec) -> View:
    """Everything that the templates of this plan use."""
    window, arch = plan.window, plan.arch
    inputs = _inputs(plan)
    buffers = tuple(signature.buffer_view(b, arch) for b in plan.buffers)
    program = token_program(window, inputs)
    output = signature.stored_dtype(window.recurrence.output_dtype, arch)
    return View(
        name=spec.name,
        title=spec.title,
        doc=document(plan, spec),
        digest=plan.digest,
        spec_digest=_spec_digest(plan),
        arch=arch.name,
        target=repr(tuple(name for _, name in arch.targets) if arch.gpu else arch.target),
        directory="gpu" if arch.gpu else "cpu",
        gpu=arch.gpu,
        shared_block=arch.shared_block,
        shared_sm=arch.shared_sm,
        K=spec.K,
        V=spec.V,
        P=plan.default_window,
        R=plan.format.compensators,
        n=plan.records_per_token,
        levels=len(window.levels),
        has_decay=bool(window.levels),
        vector_decay=decay_axis(window) == "K",
        decay_axis=decay_axis(window),
        previous="" if window.previous is None else window.previous.name,
        level_names=tuple(level.symbol.name for level in window.levels),
        updated=window.recurrence.reads_updated,
        shared_key=all(r.key_per is Per.KEY for r in window.records),
        record_dtype=plan.records,
        output_dtype=window.recurrence.output_dtype,
        output_stored=output,
        output_index=signature.OUTPUT_INDEX,
        phases=program.phases,
        k_arrays=program.stored("K"),
        v_arrays=program.stored("V"),
        scalars=program.stored(""),
        reads=tuple(_read(r, program.axes) for r in window.reads),
        corrections=tuple(Correction(n, f) for n, f in program.corrections),
        output=program.output,
        records=tuple(_record(n, window, program.axes) for n in range(len(window.records))),
        rebuild_payload=formula(window.rebuild.payload, program.axes),
        rebuild_record=formula(window.rebuild.record, program.axes),
        rebuild_weighted=window.rebuild.payload != 1,
        format=_format(plan),
        buffers=buffers,
        inputs=inputs,
        kernels=signature.kernels(buffers, inputs, output),
        layout=layout_source(arch, plan.format),
        layout_name=plan.layout(plan.shape(spec.K, spec.V, 1, 1)).name,
        fragment=can_fragment(arch, plan.format),
        ridge=repr(compensator.RIDGE),
        cold_rounds=compensator.COLD_ROUNDS,
        constants=CONSTANTS,
    )


CONSTANTS = (
    ("COLD_ROUNDS", repr(compensator.COLD_ROUNDS)),
    ("WARM_ROUNDS", repr(compensator.WARM_ROUNDS)),
    ("RIDGE", repr(compensator.RIDGE)),
    ("PIVOT_FLOOR", repr(compensator.PIVOT_FLOOR)),
    ("FACTOR_MAX", repr(compensator.FACTOR_MAX)),
    ("FACTOR_MIN", repr(compensator.FACTOR_MIN)),
    ("SMOOTHING_FLOOR", repr(base.SMOOTHING_FLOOR)),
    ("ZERO_COLUMN", repr(integer.ZERO_COLUMN)),
)
"""Numbers of the quantizer, taken from its reference, as constants of a generated module."""


def _nth(token: str, each: int, index: int) -> str:
    """Code of `token * each + index`, as a person would write it."""
    first = token if each == 1 else f"{token} * {each}"
    return first if index == 0 else f"{first} + {index}"


def _spec_digest(plan: Plan) -> str:
    """Of everything that fixes a slot's content: equal on all architectures."""
    parts = (digest(plan.window), plan.format.name, plan.records, *map(str, plan.buffers))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _inputs(plan: Plan) -> tuple[signature.Input, ...]:
    """A definition may replace an input of its name; then the input's symbol is `<name>_raw`."""
    defined = {a.target.symbol.name for a in plan.window.recurrence.assignments}
    return tuple(
        signature.input_view(i, f"{i.name}_raw" if i.name in defined else i.name, plan.arch)
        for i in plan.window.recurrence.inputs
    )


def _read(read: WindowRead, axes: Axes) -> Read:
    name = read.symbol.name
    return Read(
        name=name,
        weight=weight_name(name),
        record_inner=formula(read.record_inner, axes),
        record_outer=formula(read.record_outer, axes),
        outer=read.record_outer != 1,
    )


def _record(index: int, window: Window, axes: Axes) -> Record:
    record: NewRecord = window.records[index]
    levels = [level.symbol for level in window.levels]
    return Record(
        index=index,
        number=_nth("count", len(window.records), index),
        key=formula(record.key, axes),
        correction=record.correction.name,
        level=-1 if record.decay is None else levels.index(record.decay),
    )


def _format(plan: Plan) -> FormatView:
    row = plan.format
    return FormatView(
        name=row.name,
        family=row.family,
        doc=row.doc,
        bits=row.bits,
        top=2 ** (row.bits - 1) - 1,
        floor=repr(base.SMOOTHING_FLOOR),
        payload=row.payload,
        smoothing=row.key_scale is not None,
        value_scale=row.value_scale,
        compensated=row.factors is not None,
    )
