"""The kernels' parameters, and how code reaches each tensor.

Every tensor is a flat 1-D view from its data pointer, so that any runtime stride works on every
target; strides are explicit 64-bit integers. Pool strides come in units of 16 bytes: multiplied
back in the kernel they are visibly multiples of a vector access.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leapgen.emit import names
from leapgen.schedule import buffers as plan_buffers
from leapgen.schedule.arch import Arch
from leapgen.spec import model
from leapgen.tensors import DTYPES, Axis, Per

STRIDE_BYTES = plan_buffers.ALIGNMENT
HEADS = {"H": "key_head", "HV": "head"}
INDEX = {"K": "kk", "V": "vv"}


@dataclass(frozen=True)
class Param:
    """One parameter of a prim_func."""

    name: str
    annotation: str


@dataclass(frozen=True)
class Kernel:
    """Parameters of one kernel in ABI order: tensors, strides, then counts."""

    name: str
    tensors: tuple[Param, ...]
    strides: tuple[Param, ...]
    counts: tuple[Param, ...]

    @property
    def params(self) -> tuple[Param, ...]:
        """All parameters in order."""
        return (*self.tensors, *self.strides, *self.counts)


@dataclass(frozen=True)
class Buffer:
    """One pool tensor in generated code.

    dtype    the plan's word; `stored`: the kernel's element type (BF16 is uint16 on target c)
    unit     elements in 16 bytes
    base     offset of the (slot, head) tile, int64, in `slot` and head or key_head
    """

    name: str
    heads: str
    tile: tuple[str, ...]
    dtype: str
    stored: str
    role: str
    scalar: bool
    unit: int
    doc: str

    @property
    def base(self) -> str:
        """The tile's offset for `slot`."""
        return self.base_of("slot")

    def base_of(self, slot: str) -> str:
        """The tile's offset for another slot variable."""
        head = HEADS[self.heads]
        offset = f"{slot} * {self.name}_slot * {self.unit}"
        if self.scalar:
            return f"{offset} + {head}"
        return f"{offset} + wide({head}) * {self.name}_head * {self.unit}"

    @property
    def elements(self) -> str:
        """Code of the number of a tile's elements."""
        return " * ".join(map(_size, self.tile)) or "1"

    @property
    def token_elements(self) -> str:
        """Elements of a record buffer's tile that one token takes."""
        words = [word for part in self.tile for word in part.split("*") if word != "P"]
        return " * ".join(words) or "1"


def _size(word: str) -> str:
    """Code of a dimension: `K/32` is rounded up, as in schedule.buffers.Shape."""
    whole, _, divisor = word.partition("/")
    return f"(({whole} + {int(divisor) - 1}) // {divisor})" if divisor else whole


@dataclass(frozen=True)
class Input:
    """One raw tensor of a step in generated code.

    symbol   name of the loaded element; `param`: the kernel's parameter
    index    element offset, in row, head or key_head, and kk or vv
    load     FP32 value of the element
    """

    name: str
    symbol: str
    param: str
    per: str
    axis: str
    dtype: str
    stored: str
    constant: bool
    doc: str
    index: str

    @property
    def load(self) -> str:
        """Code of the element's FP32 value."""
        return f"widen({self.raw})"

    @property
    def raw(self) -> str:
        """Code of the element as it is stored."""
        return f"{self.param}[{self.index}]"

    @property
    def draft_base(self) -> str:
        """Where draft `tt` of the row and head begins, of an input that differs by row."""
        head = HEADS["H" if self.per == "key" else "HV"]
        token = f"row * {self.name}_row + wide(tt) * {self.name}_token"
        return f"{token} + wide({head}) * {self.name}_head"

    @property
    def draft_raw(self) -> str:
        """The element of draft `tt`, behind `<name>_at`, as it is stored."""
        if self.constant:
            return self.raw
        axis = f" + wide({INDEX[self.axis]}) * {self.name}_axis" if self.axis else ""
        return f"{self.param}[{self.name}_at{axis}]"

    @property
    def itemsize(self) -> int:
        """Bytes of a stored element."""
        return DTYPES[self.dtype].bytes

    @property
    def draft_load(self) -> str:
        """Code of a draft's element as FP32."""
        return f"widen({self.draft_raw})"


def stored_dtype(dtype: str, arch: Arch) -> str:
    """Element type in a kernel. Target c has no BF16: the same bits as uint16."""
    return "uint16" if dtype == "bf16" and not arch.gpu else DTYPES[dtype].tile


def buffer_view(buffer: plan_buffers.Buffer, arch: Arch) -> Buffer:
    """A pool tensor of the plan as templates see it."""
    return Buffer(
        name=buffer.name,
        heads=buffer.heads,
        tile=buffer.tile,
        dtype=buffer.dtype,
        stored=stored_dtype(buffer.dtype, arch),
        role=buffer.role,
        scalar=buffer.scalar,
        unit=STRIDE_BYTES // buffer.itemsize,
        doc=buffer.doc,
    )


def input_view(entry: model.Input, symbol: str, arch: Arch) -> Input:
    """A raw input of the spec; `symbol` is its unique name in the recurrence."""
    return Input(
        name=entry.name,
        symbol=symbol,
        param=names.parameter(entry.name),
        per=entry.per.value,
        axis=entry.axis.value,
        dtype=entry.dtype,
        stored=stored_dtype(entry.dtype, arch),
        constant=entry.constant,
        doc=entry.doc,
        index=_index(entry),
    )


def _index(entry: model.Input) -> str:
    terms = [] if entry.constant else [f"row * {entry.name}_row"]
    head = HEADS["H" if entry.per is Per.KEY else "HV"]
    terms.append(f"wide({head}) * {entry.name}_head")
    if entry.axis is not Axis.SCALAR:
        terms.append(f"wide({INDEX[entry.axis.value]}) * {entry.name}_axis")
    return " + ".join(terms)


OUTPUT_INDEX = "row * out_row + wide(head) * out_head + wide(vv) * out_axis"
DRAFT_OUTPUT_BASE = "row * out_row + wide(tt) * out_token + wide(head) * out_head"
DRAFT_OUTPUT_INDEX = "out_at + wide(vv) * out_axis"
PENDING = plan_buffers.PENDING
STATE_WORDS = ("row", "head", "key", "value")


Tensor = tuple[str, str, tuple[str, ...]]  # name, element type, stride words


def kernels(
    wanted: Iterable[str],
    buffers: Iterable[Buffer],
    inputs: Iterable[Input],
    output: str,
    arch: Arch,
    ordered: bool = False,
) -> tuple[Kernel, ...]:
    """The wanted kernels; output: stored element type of a step's; ordered: it has orders of rows.

    Without a flush nothing has a position within a window. Where there are drafts, verify and flush
    have the count of pending ones behind the pool's tensors; a flush that is built for none (D = 0)
    is without its parameters for them. On a GPU materialize is told whether it may write whole
    vectors, and a step's strides are 32-bit numbers (as the host makes sure): a 64-bit product with
    one is one instruction, not three.
    """
    wanted, gpu = tuple(wanted), arch.gpu
    pool = tuple(buffers)
    pending = buffer_view(PENDING, arch)
    step = _step_tensors(inputs, output)
    state: list[Tensor] = [("state", "float32", STATE_WORDS)]
    slots, source, target, position = map(_index_tensor, ("slots", "source", "target", "position"))
    lengths, accepted = map(_index_tensor, ("lengths", "accepted"))
    tensors = {
        "step": slots + step + ([("order", "int32", ())] if ordered else []),
        "flush": slots + accepted,
        "materialize": slots + state,
        "load_state": slots + state + (position if "flush" in wanted else []),
        "copy": source + target,
        "reset": slots,
        "verify": slots + lengths + _draft_tensors(step),
    }
    more = {"verify": ("num_tokens", "has_lengths"), "flush": ("accepting",)}
    more["step"] = ("front_rows",) if ordered else ()
    if gpu:
        more["materialize"] = ("state_whole",)
    return tuple(
        _kernel(
            name,
            (*pool, pending) if name in ("verify", "flush") else pool,
            tensors[name],
            "uint32" if gpu and name in ("step", "verify") else "int64",
            more.get(name, ()),
        )
        for name in wanted
    )


def _index_tensor(name: str) -> list[Tensor]:
    return [(name, "int32", ("row",))]


def _step_tensors(inputs: Iterable[Input], output: str) -> list[Tensor]:
    found: list[Tensor] = []
    for entry in inputs:
        row = () if entry.constant else ("row",)
        axis = ("axis",) if entry.axis else ()
        found.append((entry.name, entry.stored, (*row, "head", *axis)))
    return [*found, ("out", output, ("row", "head", "axis"))]


def _draft_tensors(step: list[Tensor]) -> list[Tensor]:
    """A step's tensors with an axis of tokens behind that of rows."""
    return [
        (name, stored, ("row", "token", *words[1:]) if words[0] == "row" else words)
        for name, stored, words in step
    ]


def _kernel(
    name: str, pool: tuple[Buffer, ...], tensors: list[Tensor], stride: str, more: tuple[str, ...]
) -> Kernel:
    plain = {"out", "slots", "state", "position", "source", "target", "lengths", "accepted"}
    parameters = [_tensor(b.name, b.stored) for b in pool] + [_tensor("status", "int32")]
    strides = [
        Param(f"{b.name}_{word}", f"T.{stride}")
        for b in pool
        for word in (("slot",) if b.scalar else ("slot", "head"))
    ]
    for tensor, stored, words in tensors:
        given = tensor in plain or not words
        parameters.append(_tensor(tensor if given else names.parameter(tensor), stored))
        strides += [Param(f"{tensor}_{word}", f"T.{stride}") for word in words]
    numbers = (*more, "num_rows", "num_slots", "first_slot")
    counts = [Param(n, "T.int32") for n in numbers]
    groups = [parameters, strides, counts]
    if name == "flush":
        groups = [[_of_drafts(p) for p in group] for group in groups]
    return Kernel(name, *map(tuple, groups))


def _of_drafts(param: Param) -> Param:
    """A parameter that is there where there are drafts: a number is none."""
    if param.name.split("_")[0] not in ("pending", "accepted", "accepting"):
        return param
    return Param(param.name, f"pick(D, {param.annotation}, 0)")


def _tensor(name: str, stored: str) -> Param:
    return Param(name, f'flat("{name}", "{stored}")')
