"""`leapgen list --memory`: what a hybrid model's prefix cache takes, with a checkpoint every 1,024
tokens as in the paper's claim of memory.

A checkpoint holds the state of every linear layer and the past of its convolutions; beside it stand
the keys and values of full attention, which are BF16 like that past.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from leapgen import paths, pipeline
from leapgen.algebra.derive import derive
from leapgen.report.text import integer, table
from leapgen.schedule.arch import ARCHES
from leapgen.schedule.plan import Plan, make_plan
from leapgen.spec.model import PublishedModel, Spec

ARCH = "sm90"
TOKENS = 1024
BF16 = 2  # bytes
PLAIN = ("fp32-step", "bf16-step")  # formats that keep the state as it is


@dataclass(frozen=True)
class Row:
    """One model in one format; bytes.

    checkpoint     linear layers' states as a checkpoint stores them
    convolution    what their convolutions keep, whatever the format
    kv             keys and values of full attention, of TOKENS tokens
    total          all that TOKENS more cached tokens take
    below_fp32     share that is saved of the total with FP32 states; below_bf16: with BF16 states
    active         what a request that decodes takes beside it: records and cursors of all layers
    """

    model: str
    spec: str
    format: str
    checkpoint: int
    convolution: int
    kv: int
    total: int
    below_fp32: float
    below_bf16: float
    active: int


def rows() -> list[Row]:
    """Every published model whose full attention is known, as FP32, BF16 and the spec's format."""
    found = []
    for path in paths.shipped_specs():
        spec = pipeline.parse(path.stem)
        for model in spec.models:
            if model.kv is not None and model.layers is not None:
                found += _model(spec, model)
    return found


def _model(spec: Spec, model: PublishedModel) -> list[Row]:
    window = derive(pipeline.lower(pipeline.parse(spec.name, model.picks)), prove=False)
    made = []
    for format in (*PLAIN, spec.state.format):
        state = pipeline.parse(spec.name, model.picks, format).state
        made.append(_row(spec, model, make_plan(window, state, ARCHES[ARCH])))
    full, half = (row.total for row in made[: len(PLAIN)])
    return [replace(r, below_fp32=1 - r.total / full, below_bf16=1 - r.total / half) for r in made]


def _row(spec: Spec, model: PublishedModel, plan: Plan) -> Row:
    shape = plan.shape(model.K, model.V, model.H, model.HV)
    layers, kept = model.layers or 0, plan.checkpoint_bytes(shape)
    checkpoint, convolution = layers * kept, layers * (model.conv or 0) * BF16
    kv = TOKENS * (model.kv or 0) * BF16
    return Row(
        model=model.name,
        spec=spec.name,
        format=plan.format.name,
        checkpoint=checkpoint,
        convolution=convolution,
        kv=kv,
        total=checkpoint + convolution + kv,
        below_fp32=0.0,
        below_bf16=0.0,
        active=layers * (plan.bytes_per_slot(shape) - kept),
    )


def data() -> list[dict[str, object]]:
    """One dict a row."""
    return [asdict(row) for row in rows()]


def text() -> str:
    """The rows as a table."""
    columns = (
        *("model", "format", "checkpoint", "convolution", "KV", "total"),
        *("below FP32", "below BF16", "active request"),
    )
    cells = [
        [
            row.model,
            row.format,
            integer(row.checkpoint),
            integer(row.convolution),
            integer(row.kv),
            integer(row.total),
            f"{row.below_fp32:.1%}",
            f"{row.below_bf16:.1%}",
            integer(row.active),
        ]
        for row in rows()
    ]
    title = (
        f"memory: bytes of {TOKENS} cached tokens, one checkpoint of all linear layers among them"
    )
    return f"{title}\n{table(columns, cells)}"
