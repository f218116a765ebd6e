"""Plan -> View: printing the window's formulas, naming every tensor, counting what templates count.

The only reader of the window below the algebra; templates see its result and nothing else.
"""

from __future__ import annotations

import hashlib

import sympy

from leapgen.algebra.digest import digest
from leapgen.algebra.window import NewRecord, Window
from leapgen.algebra.window import Read as WindowRead
from leapgen.emit import signature
from leapgen.emit.codec import codec
from leapgen.emit.document import document
from leapgen.emit.early import Early, early_program
from leapgen.emit.formula import Axes, formula
from leapgen.emit.program import decay_axis, token_program, weight_name
from leapgen.emit.view import Correction, FormatView, Read, Record, Update, View, nth
from leapgen.formats import base, compensator, integer
from leapgen.formats.composed import Composed
from leapgen.schedule.layout import can_fragment, coded_rows, layout_source, row_operand
from leapgen.schedule.plan import Plan
from leapgen.spec.model import Spec
from leapgen.tensors import Per


def prepare(plan: Plan, spec: Spec) -> View:
    """Everything that the templates of this plan use."""
    window, arch = plan.window, plan.arch
    inputs = _inputs(plan)
    buffers = tuple(signature.buffer_view(b, arch) for b in plan.buffers)
    windowed = plan.windowed
    program = token_program(window, inputs, windowed)
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
        blocks_sm=arch.blocks_sm,
        multiprocessors=arch.multiprocessors,
        K=spec.K,
        V=spec.V,
        P=plan.default_window,
        R=plan.format.compensators,
        windowed=windowed,
        n=plan.records_per_token,
        levels=len(window.levels),
        has_decay=bool(window.levels),
        vector_decay=decay_axis(window) == "K",
        decay_source=str(window.decay_source),
        told=None if window.told is None else formula(window.told, program.axes),
        decay_numbers=_decay_numbers(window),
        shared_key=all(r.key_per is Per.KEY for r in window.records),
        output_dtype=window.recurrence.output_dtype,
        output_stored=output,
        output_index=signature.OUTPUT_INDEX,
        phases=program.phases,
        early=_early(plan, inputs),
        k_arrays=program.stored("K"),
        v_arrays=program.stored("V"),
        reads=tuple(_read(r, program.axes, windowed) for r in window.reads),
        corrections=tuple(Correction(n, f) for n, f in program.corrections),
        output=program.output,
        result=program.result,
        result_sums=program.result_sums,
        records=tuple(_record(n, window, program.axes) for n in range(plan.records_per_token)),
        rebuild_payload=formula(window.rebuild.payload, program.axes),
        rebuild_record=formula(window.rebuild.record, program.axes),
        rebuild_weighted=window.rebuild.payload != 1,
        update=_update(window),
        format=_format(plan),
        buffers=buffers,
        inputs=inputs,
        kernels=signature.kernels(
            (*plan.kernels, *plan.draft_kernels), buffers, inputs, output, arch, plan.fuses
        ),
        pending=signature.buffer_view(signature.PENDING, arch),
        draft_output_base=signature.DRAFT_OUTPUT_BASE,
        draft_output_index=signature.DRAFT_OUTPUT_INDEX,
        layout=layout_source(arch, plan.format),
        layout_name=plan.layout(plan.shape(spec.K, spec.V, 1, 1)).name,
        fragment=can_fragment(arch, plan.format),
        rows=row_operand(arch, plan.format),
        closes_rows=plan.rows,
        coded=coded_rows(arch, plan.format),
        matrix=plan.matrix,
        fuses=plan.fuses,
        bulk=arch.bulk_copy,
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


def _early(plan: Plan, inputs: tuple[signature.Input, ...]) -> Early | None:
    """Only where some payload order, and FP16 records beside it, are operands of instructions, and
    records hold what their reads need."""
    factors = () if isinstance(plan.format, Composed) else ("compensator",)  # codes become FP16
    halves = {b.dtype for b in plan.buffers if b.role in factors or b.name in HALVES}
    halves_only = halves == {"fp16"} and plan.ordinary
    operands = can_fragment(plan.arch, plan.format) or row_operand(plan.arch, plan.format)
    if operands and halves_only:
        return early_program(plan.window, inputs)
    return None


HALVES = ("record_key", "record_u")


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


def _read(read: WindowRead, axes: Axes, windowed: bool) -> Read:
    """Without a window no record is ever read, and the program has no symbols for it."""
    name = read.symbol.name
    inner, outer = (read.record_inner, read.record_outer) if windowed else (sympy.S.Zero,) * 2
    return Read(
        name=name,
        weight=weight_name(name),
        record_inner=formula(inner, axes),
        record_outer=formula(outer, axes),
        outer=outer != 1,
    )


def _update(window: Window) -> Update:
    keep = weight_name("S") if window.rebuild.payload != 1 else ""
    corrections = (record.correction.name for record in window.records)
    writes = tuple((weight_name(name), name) for name in corrections)
    return Update(keep, decay_axis(window) == "K", writes)


def _record(index: int, window: Window, axes: Axes) -> Record:
    record: NewRecord = window.records[index]
    levels = [level.symbol for level in window.levels]
    return Record(
        index=index,
        number=nth("count", len(window.records), index),
        key=formula(record.key, axes),
        correction=record.correction.name,
        level=-1 if record.decay is None else levels.index(record.decay),
    )


def _decay_numbers(window: Window) -> tuple[tuple[str, str], ...]:
    each = len(window.levels)
    return tuple(
        (level.symbol.name, nth("count", each, i)) for i, level in enumerate(window.levels)
    )


def _format(plan: Plan) -> FormatView:
    row = plan.format
    composition = row if isinstance(row, Composed) else None
    return FormatView(
        name=row.name,
        family=row.family,
        doc=row.doc,
        bits=row.bits,
        top=2 ** (row.bits - 1) - 1,
        floor=repr(base.SMOOTHING_FLOOR),
        payload=row.payload,
        smoothing=row.key_scale is not None and not composition,
        value_scale=row.value_scale and not composition,
        compensated=row.factors is not None,
        codec=codec(composition, plan.arch) if composition else None,
    )
