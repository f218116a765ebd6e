"""What runs a generated module: descriptors, pools, validation, compilation and launches.

Generated modules import a byte copy of this file (`_host.py` beside them), so it imports torch
and the standard library only, and tilelang when the first kernel is compiled.

How a kernel receives its arguments. They are bound by the parameter names of the prim_func, in
whatever order it declares them; a kernel may leave out what it does not use:

* pool tensors by name, each a flat 1-D view that starts at the tensor's data pointer, with
  `<name>_slot` and, where the tile is not a scalar, `<name>_head`: int64, in units of 16 bytes
* `status`: int32[4] of the pool
* `slots` with `slots_row`; copy has `source`, `source_row`, `target`, `target_row` instead
* step: every input as a flat view `<name>_in` with `<name>_row`, `<name>_head`, `<name>_axis`,
  int64, in elements (`_row` only if not constant, `_axis` only if not a scalar); `out` likewise
* verify: as step, inputs and `out` with `<name>_token` behind `<name>_row`; `num_tokens` of a
  row; `lengths` and `lengths_row`, read if `has_lengths`. commit: `accepted` and `accepted_row`,
  read if `has_accepted`. Both have `pending`, which pools without drafts lack
* materialize, load_state: `state` (fp32) with `state_row`, `state_head`, `state_key`,
  `state_value`; materialize also `state_whole`, int32: 1 if four neighbours along the contiguous
  axis are an aligned access; load_state `position` and `position_row` (0: one number for all)
* `num_rows`, `num_slots`, `first_slot`: int32

On `c`, where TileLang has no bf16, such tensors arrive as uint16 views. A tensor without elements
(no compensators) arrives as a spare one.
"""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2, prod
from typing import Any, Protocol

import torch

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
}
ALIGNMENT = 16  # bytes; the width of the kernels' vector accesses
LARGEST_STRIDE = 1 << 32  # of elements, of 16 bytes in a pool
CHANNELS = 8  # K and V are multiples of it
MOST_CHANNELS = 256  # a block has a thread for each
MOST_DRAFTS = 16
DRAFT_KERNELS = ("verify", "commit")
STATE_AXES = {"VK": ("value", "key"), "KV": ("key", "value")}  # last axes of an FP32 state
EXPORT_VERSION = 2
STORED = ("payload", "scale", "compensator", "residual")  # roles of what a state is made of
CHECKPOINT = (*STORED, "rounding")  # of what a checkpoint has, beside the phase
# The emitted C reads bits of floats through pointers of another type.
C_FLAGS = ["-O3", "-march=native", "-fno-strict-aliasing"]


class ArgumentError(ValueError):
    """An argument was refused before any launch; says which, what was expected and found."""


class CompileError(RuntimeError):
    """TileLang failed to build or compile a kernel of a generated module."""


def _refuse(name: str, expected: object, found: object) -> ArgumentError:
    return ArgumentError(f"{name}: expected {expected}, found {found}")


# ------------------------------------------------------------------ descriptors


@dataclass(frozen=True)
class Shape:
    """Shape-time numbers: K key and V value channels, H key and HV value heads, P tokens a window,
    R compensators, D drafts."""

    K: int
    V: int
    H: int
    HV: int
    P: int
    R: int
    D: int = 0

    def size(self, word: str) -> int:
        """The number a word of a tile stands for: a product of names and integers, perhaps over an
        integer and rounded up (`K/32`). P is the capacity for records here, window + drafts."""
        values = {**vars(self), "P": self.P + self.D}
        product, _, divisor = word.partition("/")
        whole = prod(int(f) if f.isdigit() else values[f] for f in product.split("*"))
        return -(-whole // int(divisor or 1))

    @property
    def widened(self) -> Shape:
        """A window as long as what a slot has room for, for the flush that follows a commit."""
        return replace(self, P=self.P + self.D, D=0)

    @property
    def builder_arguments(self) -> tuple[int, ...]:
        """What the builders of prim_funcs take; D only where there are drafts."""
        numbers = tuple(vars(self).values())
        return numbers if self.D else numbers[:-1]


@dataclass(frozen=True)
class Buffer:
    """One pool tensor, [slots, heads, *tile].

    heads   "H" or "HV"
    tile    words for the sizes of one (slot, head) tile; empty: one scalar a head
    dtype   a key of DTYPES
    role    payload | scale | compensator | residual | rounding | decay | record | cursor
    """

    name: str
    heads: str
    tile: tuple[str, ...]
    dtype: str
    role: str

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """[heads, *tile]"""
        return tuple(shape.size(word) for word in (self.heads, *self.tile))

    def packed(self, shape: Shape) -> bool:
        """Whether an element holds several codes."""
        return prod(self.sizes(shape)[1:]) < shape.K * shape.V

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Element strides of an allocated tensor: tiles are contiguous; slots, and the heads of
        vector tiles, are padded to 16 bytes."""
        unit = ALIGNMENT // DTYPES[self.dtype].itemsize
        heads, *tile = self.sizes(shape)
        head = -(-prod(tile) // unit) * unit if tile else 1
        return (
            -(-heads * head // unit) * unit,
            head,
            *(prod(tile[i + 1 :]) for i in range(len(tile))),
        )


PENDING = Buffer("pending", "HV", (), "int32", "cursor")  # of pools with drafts


@dataclass(frozen=True)
class Input:
    """One raw tensor of a step: [rows, heads, axis]; no rows if constant, no axis if "".

    per   "key" or "value": which heads
    axis  "", "K" or "V"
    """

    name: str
    per: str
    axis: str
    dtype: str
    constant: bool = False

    def sizes(self, rows: int | tuple[int, ...], shape: Shape) -> tuple[int, ...]:
        """[*rows, heads, axis], as far as they exist; rows: one number or more."""
        rows = (rows,) if isinstance(rows, int) else rows
        axis = (shape.size(self.axis),) if self.axis else ()
        heads = shape.HV if self.per == "value" else shape.H
        return (heads, *axis) if self.constant else (*rows, heads, *axis)

    def strides(self, rows: tuple[str, ...]) -> tuple[str, ...]:
        """Ends of the names of the kernel's stride arguments, axis by axis."""
        words = ("head", "axis") if self.axis else ("head",)
        return words if self.constant else (*rows, *words)


@dataclass(frozen=True)
class Kernel:
    """How to build one kernel.

    build         (K, V, H, HV, P, R[, D], **config) -> prim_func
    config        (K, V, H, HV, P, R[, D]) -> dict: the default config, a rule of arch and shape
    pass_configs  TileLang pass configs beyond the host's
    """

    build: Callable[..., Any]
    config: Callable[..., Mapping[str, Any]]
    pass_configs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Private order of a payload tile: `offset(k, v, K, V)` is the element that holds (k, v), in
    integer arithmetic that torch's integer tensors understand.

    plane   (i, each, K, V): where a plane of `each` codes a byte, lowest bits first, has the code
            of element i; None: in canonical order
    """

    name: str
    offset: Callable[..., Any]
    plane: Callable[..., Any] | None = None

    def order(self, shape: Shape, device: torch.device | str = "cpu") -> torch.Tensor:
        """[K, V] int64: where each canonical element lies in the tile."""
        K, V = shape.K, shape.V
        k, v = (torch.arange(n, dtype=torch.int64, device=device) for n in (K, V))
        order: torch.Tensor = self.offset(k[:, None].expand(K, V), v.expand(K, V), K, V)
        return order

    def planes(self, values: torch.Tensor, shape: Shape, back: bool = False) -> torch.Tensor:
        """A plane of packed codes [..., bytes] in canonical order (a value channel's keys are
        neighbours); back: from canonical to private order."""
        if self.plane is None:
            return values
        each = shape.K * shape.V // values.shape[-1]
        order = self.order(shape, values.device).T.flatten()
        place = self.plane(order, each, shape.K, shape.V)
        shift = torch.arange(each, device=values.device) * (8 // each)
        codes = (values[..., None] >> shift & (1 << 8 // each) - 1).flatten(-2)
        if back:
            found = torch.empty_like(codes)
            found[..., place] = codes
        else:
            found = codes[..., place]
        return (found.reshape(*values.shape, each) << shift).sum(dim=-1).to(values.dtype)

    def tag(self, shape: Shape) -> str:
        """Identifies the order at one shape."""
        return f"{self.name}-{zlib.crc32(self.order(shape).numpy().tobytes()):08x}"


@dataclass(frozen=True)
class Tuned:
    """Configs found best for one shape and number of rows, by kernel. A kernel that has none keeps
    its default rule's."""

    shape: Shape
    rows: int
    configs: Mapping[str, Mapping[str, Any]]


def key_of(**parts: Any) -> str:
    """The one key of compiled kernels, in memory, and of measured ones, on disk.

    Texts are equal iff all parts are: the order of mappings does not count, types do (True is not
    1, 1 is not 1.0). Parts are JSON values. Errors: TypeError, ValueError for anything else.
    """
    for part in parts.values():
        _check_plain(part)
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_plain(value: Any) -> None:
    """JSON alone would turn the key 1 of a mapping into "1"."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"names must be text: {list(value)}")
        value = value.values()
    if not isinstance(value, str | int | float | None):
        for part in value:
            _check_plain(part)


# ------------------------------------------------------------------ compilation


class Backend(Protocol):
    """Turns a prim_func into a callable that takes its parameters in order."""

    @property
    def device(self) -> str:
        """Torch device type of the tensors it runs on."""

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """The callable. target: "c", or {"kind": "cuda", "arch": ...}."""


@dataclass(frozen=True)
class TileLang:
    """Compiles with TileLang: tvm_ffi on CUDA (torch's current stream), cython on `c`."""

    device: str

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """See Backend."""
        import tilelang

        cuda = self.device == "cuda"
        compiled: Callable[..., Any] = tilelang.compile(
            func,
            target=target,
            execution_backend="tvm_ffi" if cuda else "cython",
            # Kernels guard the indices that depend on data themselves.
            pass_configs={"tl.disable_safe_memory_legalize": True, **pass_configs},
            compile_flags=None if cuda else C_FLAGS,
        )
        return compiled


# Building parses a prim_func's source, which CPython 3.11 cannot do in several threads at once
# ("AST constructor recursion depth mismatch").
_TRACING = threading.Lock()

# What TileLang raises while it builds, lowers or compiles a kernel.
_BUILD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    NameError,
    AttributeError,
    AssertionError,
    OSError,
)


def _shorten(text: str, limit: int = 1200) -> str:
    """Both ends of it: compiler messages can be thousands of lines long."""
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"


class Once:
    """A map whose values are made once, whatever the number of threads that ask."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value, made by the first thread that asks while the others wait."""
        if key not in self._values:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
            with lock:
                if key not in self._values:
                    self._values[key] = make()
        return self._values[key]


@dataclass(frozen=True)
class Launch:
    """A compiled kernel and the names of its parameters, in order. fused: a step that flushes."""

    names: tuple[str, ...]
    call: Callable[..., Any]
    fused: bool = False

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Run it on arguments by name."""
        self.call(*[values[name] for name in self.names])


# ------------------------------------------------------------------ tensors


def _integer(name: str, value: Any, least: int, multiple: int = 1) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or value % multiple:
        of = f", a multiple of {multiple}" if multiple > 1 else ""
        raise _refuse(name, f"an integer of at least {least}{of}", value)
    return int(value)


def _check(
    name: str, tensor: Any, sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tensor, if it is what is expected. Any stride is accepted."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise _refuse(name, "a dense torch tensor", type(tensor).__name__)
    if tuple(tensor.shape) != tuple(sizes):
        raise _refuse(name, f"shape {list(sizes)}", list(tensor.shape))
    if tensor.dtype != dtype:
        raise _refuse(name, dtype, tensor.dtype)
    if tensor.device != device:
        raise _refuse(name, f"device {device}", tensor.device)
    return tensor


def _stride(name: str, word: str, size: int, stride: int) -> int:
    """A stride as a kernel's argument: 0 where there is one element. Kernels take 32 bits of it,
    and multiply them in 64."""
    if size > 1 and stride >= LARGEST_STRIDE:
        raise _refuse(name, f"a {word} stride below {LARGEST_STRIDE}", stride)
    return stride if size > 1 else 0


def _check_range(
    name: str,
    numbers: torch.Tensor | None,
    slots: torch.Tensor,
    first_slot: int,
    most: int | None,
) -> None:
    """Names the first active row whose number is not in 0..most. Synchronises."""
    rows = [] if numbers is None else zip(slots.tolist(), numbers.tolist(), strict=True)
    for row, (slot, number) in enumerate(rows):
        if slot >= first_slot and (number < 0 or (most is not None and number > most)):
            expected = "a number of at least 0" if most is None else f"a number in 0..{most}"
            raise _refuse(f"{name}[{row}]", expected, number)


def _check_writable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if no two elements share memory (tested by nesting its axes)."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            strides = list(tensor.stride())
            raise _refuse(name, "elements that do not overlap", f"strides {strides}")
        extent += stride * (size - 1)
    return tensor


def _check_addressable(tensor: torch.Tensor, buffer: Buffer) -> None:
    """Refuses a pool tensor whose tiles the kernels cannot address."""
    name, sizes, strides = buffer.name, tensor.shape, tensor.stride()
    if tensor.data_ptr() % ALIGNMENT:
        raise _refuse(name, f"a base aligned to {ALIGNMENT} bytes", hex(tensor.data_ptr()))
    padded = ("slot", "head") if buffer.tile else ("slot",)
    for word, size, stride in zip(padded, sizes, strides, strict=False):
        apart = stride * tensor.itemsize
        if size > 1 and apart % ALIGNMENT:
            expected = f"a {word} stride of a multiple of {ALIGNMENT} bytes"
            raise _refuse(name, expected, f"{apart} bytes")
    inner = 1
    for size, stride in zip(sizes[: len(padded) - 1 : -1], strides[::-1], strict=False):
        if size > 1 and stride != inner:
            raise _refuse(name, "a contiguous tile of one slot and head", f"strides {strides}")
        inner *= size
    _check_writable(name, tensor)


def _flat(tensor: torch.Tensor, bf16_as_uint16: bool = False) -> torch.Tensor:
    """A 1-D view from the first to the last element, at the same pointer."""
    if tensor.numel() == 0:  # kernels take no null pointer
        tensor = torch.zeros(ALIGNMENT, dtype=tensor.dtype, device=tensor.device)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    view = tensor.detach().as_strided((last + 1,), (1,), tensor.storage_offset())
    return view.view(torch.uint16) if bf16_as_uint16 and view.dtype == torch.bfloat16 else view


class Pool(Mapping[str, torch.Tensor]):
    """The tensors that hold all slots of one layer; attributes and items by buffer name. In a slot,
    value heads that share record keys (those of one key head) stand at one cursor.

    slots      how many
    status     int32[4], sticky: [0] a slot id, [1] a cursor, [2] a length was out of range
    shape      shape-time numbers
    tag        the plan, payload order and shape it was made for
    forced     slots that checkpoints have flushed before their window was full
    arguments  what kernels receive of it
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        status: torch.Tensor,
        shape: Shape,
        tag: str,
        arguments: Mapping[str, Any],
    ) -> None:
        self._tensors = dict(tensors)
        self.slots = next(iter(self._tensors.values())).shape[0]
        self.status = status
        self.shape = shape
        self.tag = tag
        self.forced = 0
        self.arguments = {**arguments, "status": _flat(status), "num_slots": self.slots}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getattr__(self, name: str) -> torch.Tensor:
        tensors: dict[str, torch.Tensor] = self.__dict__.get("_tensors", {})
        if name not in tensors:
            raise AttributeError(f"the pool has no {name!r}; its tensors: {', '.join(tensors)}")
        return tensors[name]

    def __repr__(self) -> str:
        forced = f", forced={self.forced}" if self.forced else ""
        return f"Pool({self.tag}, slots={self.slots}, device={self.device}{forced})"

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.status.device


# ------------------------------------------------------------------ modules


@dataclass(frozen=True)
class Module:
    """One generated module: its plan as data, and the calls that run it.

    target    "c", or nvcc's names of the arch ("sm_90a"; "sm_120a", "sm_121a"): a device gets the
              one of its compute capability
    digest    of the plan; `spec`: of the spec with its format, equal for all archs
    defaults  K, V, P, R of `shape` where the caller gives none
    output    dtype of the step's output
    limits    (K, V, H, HV, P, R) -> None, or why the module cannot run that shape; with a D too,
              why it cannot verify so many drafts
    """

    name: str
    arch: str
    target: str | tuple[str, ...]
    digest: str
    defaults: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    inputs: tuple[Input, ...]
    output: str
    kernels: Mapping[str, Kernel]
    layout: Layout
    spec: str = ""
    format: str = ""
    limits: Callable[..., str | None] | None = None
    backend: Backend | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    table: tuple[Tuned, ...] = ()
    pinned: bool = False
    _made: Once = field(default_factory=Once, init=False, repr=False, compare=False)
    _picked: dict[Hashable, Launch] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def with_backend(self, backend: Backend) -> Module:
        """The same module, compiled and launched by something else."""
        return replace(self, backend=backend)

    def with_configs(self, **configs: Mapping[str, Any]) -> Module:
        """The same module with these configs, by kernel, in place of the default rule's."""
        for kernel in configs:
            if kernel not in self.kernels:
                raise _refuse("configs", f"one of {', '.join(self.kernels)}", kernel)
        return self._changed(configs={**self.configs, **configs})

    def with_table(self, table: Sequence[Tuned], *, pin: bool = False) -> Module:
        """The same module with tuned configs in place of the default rule's; see `config`.

        pin   one config for all batch sizes, so that results do not depend on the batch: that of
              the largest number of rows
        """
        return self._changed(table=tuple(table), pinned=pin)

    def _changed(self, **fields: Any) -> Module:
        changed = replace(self, **fields)
        object.__setattr__(changed, "_made", self._made)  # compiled kernels are kept by config
        return changed

    # -- configs

    def config(self, name: str, shape: Shape, rows: int | None = None) -> Mapping[str, Any]:
        """The config of a kernel for a number of rows (None: the largest that was tuned).

        From `with_configs`; else from the table, if it has the shape's K, V, P, R, D: of the same
        heads, or else of the nearest ratio and number of heads, the nearest number of rows; else
        by the default rule of arch and shape.
        """
        if name in self.configs:
            return self.configs[name]
        for tuned in self._tuned(shape, rows)[:1]:
            if name in tuned.configs:
                return tuned.configs[name]
        return self.kernels[name].config(*shape.builder_arguments)

    def widened_config(self, name: str, shape: Shape, rows: int | None = None) -> Mapping[str, Any]:
        """The config of a kernel that is built for all tokens that a slot has room for. More
        records than a window has take more registers: fewer blocks, and no spills."""
        config = self.config(name, shape.widened, rows)
        fewer = max(1, config.get("min_blocks", 1) // 2)
        return {**config, "min_blocks": fewer} if "min_blocks" in config else config

    def _tuned(self, shape: Shape, rows: int | None) -> list[Tuned]:
        """Records that may serve a shape, the best one first."""

        def kin(s: Shape) -> tuple[int, ...]:
            return (s.K, s.V, s.P, s.R, s.D)

        def far(tuned: Tuned) -> tuple[Any, ...]:
            other = tuned.shape
            heads = log2(other.HV / shape.HV)
            group = abs(log2(other.HV / other.H) - log2(shape.HV / shape.H))
            apart = heads
            if rows and not self.pinned:  # blocks of a launch are rows * HV
                apart += log2(tuned.rows / rows)
            return (other != shape, round(group, 9), round(abs(apart), 9), -tuned.rows)

        return sorted((t for t in self.table if kin(t.shape) == kin(shape)), key=far)

    def prepare(self, pool: Pool) -> None:
        """Compile all that calls on a pool may launch, tuned configs of every number of rows
        included: nothing is compiled later, while requests wait or a CUDA graph is captured."""
        for name in self.kernels if pool.shape.D else self.plain_kernels:
            self.kernel(name, pool)
            for tuned in self._tuned(pool.shape, None):
                self.kernel(name, pool, tuned.rows * tuned.shape.HV // pool.shape.HV or 1)
        if pool.shape.D:
            wide = pool.shape.widened
            self.kernel("flush", pool, shape=wide)
            for tuned in self._tuned(wide, None):
                rows = tuned.rows * tuned.shape.HV // wide.HV or 1
                self.kernel("flush", pool, rows, shape=wide)

    @property
    def plain_kernels(self) -> tuple[str, ...]:
        """All that pools without drafts need."""
        return tuple(name for name in self.kernels if name not in DRAFT_KERNELS)

    # -- shapes and pools

    def shape(
        self,
        H: int | None = None,
        HV: int | None = None,
        K: int | None = None,
        V: int | None = None,
        window: int | None = None,
        compensators: int | None = None,
        drafts: int = 0,
    ) -> Shape:
        """Checked shape-time numbers. HV is H unless given; the rest has the module's defaults."""

        def number(name: str, given: int | None, default: int | None, *rule: int) -> int:
            return _integer(name, default if given is None else given, *rule)

        shape = Shape(
            K=number("K", K, self.defaults["K"], CHANNELS, CHANNELS),
            V=number("V", V, self.defaults["V"], CHANNELS, CHANNELS),
            H=number("H", H, None, 1),
            HV=number("HV", HV, H, 1),
            P=number("window", window, self.defaults["P"], 1),
            R=number("compensators", compensators, self.defaults["R"], 0),
            D=_integer("drafts", drafts, 0),
        )
        for name, channels in (("K", shape.K), ("V", shape.V)):
            if channels > MOST_CHANNELS:
                raise _refuse(name, f"at most {MOST_CHANNELS}", channels)
        has_compensators = any(b.role == "compensator" for b in self.buffers)
        most = min(shape.K, shape.V) if has_compensators else 0
        if most < shape.R:
            raise _refuse("compensators", f"at most {most}", shape.R)
        if shape.HV % shape.H:
            raise _refuse("HV", f"a multiple of H = {shape.H}", shape.HV)
        if shape.D and "verify" not in self.kernels:
            raise _refuse("drafts", f"0, as format {self.format} has no kernels for them", shape.D)
        if shape.D > MOST_DRAFTS:
            raise _refuse("drafts", f"at most {MOST_DRAFTS}", shape.D)
        if shape.P > 1 and not self.windowed:
            raise _refuse("window", "1, as every step rewrites the state", shape.P)
        for checked in (shape.widened, shape):
            if self.limits and (reason := self.limits(*checked.builder_arguments)):
                raise ArgumentError(f"{self.name} for {self.arch}: {reason}")
        return shape

    def slot_buffers(self, shape: Shape) -> tuple[Buffer, ...]:
        """The tensors of a pool of this shape."""
        return (*self.buffers, PENDING) if shape.D else self.buffers

    @property
    def windowed(self) -> bool:
        """Whether tokens are recorded until a flush; otherwise every step rewrites the state."""
        return "flush" in self.kernels

    def bytes_per_slot(self, **sizes: int) -> int:
        """Bytes that `allocate` takes for one slot: all buffers, padding included."""
        shape = self.shape(**sizes)
        buffers = self.slot_buffers(shape)
        return sum(b.strides(shape)[0] * DTYPES[b.dtype].itemsize for b in buffers)

    def allocate(
        self,
        slots: int,
        H: int | None = None,
        HV: int | None = None,
        K: int | None = None,
        V: int | None = None,
        window: int | None = None,
        compensators: int | None = None,
        device: torch.device | str | None = None,
        drafts: int = 0,
    ) -> Pool:
        """A pool of empty slots, as after `reset`; sizes as in `shape`. drafts: the most tokens a
        row that `verify` takes, a window's reserve."""
        shape = self.shape(H, HV, K, V, window, compensators, drafts)
        _integer("slots", slots, 1)
        where = self._device(device)
        tensors: dict[str, torch.Tensor] = {}
        for buffer in self.slot_buffers(shape):
            strides = buffer.strides(shape)
            storage = torch.zeros(slots * strides[0], dtype=DTYPES[buffer.dtype], device=where)
            tensors[buffer.name] = storage.as_strided((slots, *buffer.sizes(shape)), strides)
        return self._pool(tensors, slots, None, shape, where)

    def pool(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        status: torch.Tensor | None = None,
        **sizes: int,
    ) -> Pool:
        """A pool over the caller's tensors [slots, heads, *tile], which may be slices: the base and
        the slot stride are multiples of 16 bytes, the head stride of vector tiles too, and one
        tile is contiguous. Slots hold whatever they held: reset or load them before use."""
        shape = self.shape(**sizes)
        names = [b.name for b in self.slot_buffers(shape)]
        if sorted(tensors) != sorted(names):
            raise _refuse("tensors", ", ".join(names), ", ".join(tensors))
        first = tensors[names[0]]
        if not isinstance(first, torch.Tensor) or first.dim() == 0:
            raise _refuse(names[0], "a tensor [slots, heads, *tile]", type(first).__name__)
        return self._pool(tensors, first.shape[0], status, shape, self._device(first.device))

    def _pool(
        self,
        tensors: Mapping[str, torch.Tensor],
        slots: int,
        status: torch.Tensor | None,
        shape: Shape,
        device: torch.device,
    ) -> Pool:
        if status is None:
            status = torch.zeros(4, dtype=torch.int32, device=device)
        _check("status", status, (4,), torch.int32, device)
        arguments: dict[str, Any] = {}
        for buffer in self.slot_buffers(shape):
            name, sizes = buffer.name, (slots, *buffer.sizes(shape))
            tensor = _check(name, tensors[name], sizes, DTYPES[buffer.dtype], device)
            if used := tensor.numel() > 0:
                _check_addressable(tensor, buffer)
            arguments[name] = _flat(tensor, self.target == "c")
            for axis, word in enumerate(("slot", "head") if buffer.tile else ("slot",)):
                units = tensor.stride(axis) * tensor.itemsize // ALIGNMENT
                size = sizes[axis] if used else 0
                arguments[f"{name}_{word}"] = _stride(name, word, size, units)
        ordered = {b.name: tensors[b.name] for b in self.slot_buffers(shape)}
        return Pool(ordered, status, shape, self._tag(shape), arguments)

    def _tag(self, shape: Shape) -> str:
        def make() -> str:
            numbers = ".".join(f"{name}{value}" for name, value in vars(shape).items())
            return f"{self.name}-{self.arch}:{self.digest}:{self.layout.tag(shape)}:{numbers}"

        tag: str = self._made.get(("tag", shape), make)
        return tag

    # -- devices and kernels

    @property
    def _runner(self) -> Backend:
        return self.backend or TileLang("cpu" if self.target == "c" else "cuda")

    def _device(self, device: torch.device | str | None) -> torch.device:
        """The device, with its index; refused where the module's code does not run."""
        kind = self._runner.device
        device = torch.device(kind if device is None else device)
        if device.type != kind:
            raise _refuse("device", f"{kind} (the module is for {self.arch})", device)
        if kind == "cuda":
            device = torch.empty(0, device=device).device
        self._compile_target(device)
        return device

    def _compile_target(self, device: torch.device) -> str | Mapping[str, str]:
        if self.target == "c":
            return "c"
        names = (self.target,) if isinstance(self.target, str) else self.target
        if device.type != "cuda":  # another backend runs it
            return {"kind": "cuda", "arch": names[0]}
        major, minor = torch.cuda.get_device_capability(device)
        for name in names:
            if name.removeprefix("sm_").rstrip("af") == f"{major}{minor}":
                return {"kind": "cuda", "arch": name}
        raise _refuse("device", f"one of {', '.join(names)}", f"capability {major}.{minor}")

    def kernel(
        self, name: str, pool: Pool, rows: int | None = None, *, shape: Shape | None = None
    ) -> Launch:
        """The compiled kernel for a pool's shape (or another one of its slots) and device, at the
        `config` for some rows."""
        rows, shape = rows if self.table and not self.pinned else None, shape or pool.shape
        pick = (name, shape, pool.device, rows)
        if pick not in self._picked:
            device, own = pool.device, shape == pool.shape
            config = (
                self.config(name, shape, rows)
                if own
                else self.widened_config(name, pool.shape, rows)
            )
            key = key_of(kernel=name, shape=vars(shape), device=str(device), config=config)
            self._picked[pick] = self._made.get(
                key, lambda: self._compile(name, shape, device, config)
            )
        return self._picked[pick]

    def _compile(
        self, name: str, shape: Shape, device: torch.device, config: Mapping[str, Any]
    ) -> Launch:
        kernel, target = self.kernels[name], self._compile_target(device)
        try:
            with _TRACING:
                func = kernel.build(*shape.builder_arguments, **config)
            call = self._runner.compile(func, target, kernel.pass_configs)
        except _BUILD_ERRORS as error:
            where = f"{self.name} for {self.arch}, {name}, {shape}, config {dict(config)}"
            reason = f"{type(error).__name__}: {_shorten(str(error))}"
            raise CompileError(f"{where}: {reason}") from None
        buffers = func.buffer_map
        names = tuple(buffers[p].name if p in buffers else p.name for p in func.params)
        return Launch(names, call, bool(config.get("fused")))

    def _launch(
        self,
        name: str,
        pool: Pool,
        rows: int,
        values: Mapping[str, Any],
        check: bool,
    ) -> None:
        if rows:
            self._run([self.kernel(name, pool, rows)], pool, values, check)

    def _run(
        self, kernels: Sequence[Launch], pool: Pool, values: Mapping[str, Any], check: bool
    ) -> None:
        """Launches of one call. All are compiled before the first, so that none is left half done
        where one does not compile."""
        device, arguments = pool.device, {**pool.arguments, **values}
        cuda = device.type == "cuda"
        with torch.cuda.device(device) if cuda else contextlib.nullcontext():
            for launch in kernels:
                launch(arguments)
        if cuda and check:
            torch.cuda.synchronize(device)

    # -- calls

    def step(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *inputs: torch.Tensor,
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """One committed token a row; then the slots whose window is full are flushed. Drafts that
        are pending in these slots are dropped.

        slots   int32 [rows]; rows with a slot below `first_slot` are inactive
        inputs  in the module's order
        check   synchronise, and name the row of a bad slot or cursor
        Returns `out`, [rows, HV, V]; zeros in inactive rows.
        """
        rows, values = self._rows(pool, slots, first_slot)
        out = self._operands(pool, {"row": rows}, inputs, out, values)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
        self._run(self.step_kernels(pool, rows), pool, {**values, **_no_drafts(pool)}, check)
        return out

    def step_kernels(self, pool: Pool, rows: int) -> list[Launch]:
        """What a step of so many rows launches, in order."""
        if rows == 0:
            return []
        step, names = self.kernel("step", pool, rows), ["commit"] if pool.shape.D else []
        if self.windowed and not step.fused:
            names.insert(0, "flush")
        return [step, *(self.kernel(name, pool, rows) for name in names)]

    def verify(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *inputs: torch.Tensor,
        lengths: torch.Tensor | None = None,
        accepted: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """Draft tokens of every row, all in one pass over its slot; none is committed. They wait in
        the slot for `commit`, or for the next verify with `accepted`; any other token drops them.

        slots     as in `step`, but each at most once
        inputs    in the module's order, [rows, tokens, heads, axis]; constants as in `step`. At
                  most as many tokens as the pool has drafts
        lengths   int32 [rows]: how many of the tokens a row has, 0..tokens (absent: all). A plain
                  row among speculative ones has one, which the next call accepts
        accepted  int32 [rows]: first commit so many of the drafts before (absent: none of them)
        check     synchronise, and name the row of a bad slot, cursor or length
        Returns `out`, [rows, tokens, HV, V]; zeros in inactive rows and beyond a row's length.
        """
        rows, values = self._draft_rows(pool, slots, first_slot)
        tokens = self._tokens(pool, rows, inputs)
        out = self._operands(pool, {"row": rows, "token": tokens}, inputs, out, values)
        values |= {"num_tokens": tokens, "has_lengths": int(lengths is not None)}
        values |= self._optional("lengths", lengths, slots, pool)
        values |= self._optional("accepted", accepted, slots, pool)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
            _check_range("lengths", lengths, slots, first_slot, tokens)
            _check_range("accepted", accepted, slots, first_slot, None)
        if rows:
            kernels = self._commit_kernels(pool, rows) if accepted is not None else []
            kernels.append(self.kernel("verify", pool, rows))
            self._run(kernels, pool, {**values, "has_accepted": 1}, check)
        return out

    def commit(
        self,
        pool: Pool,
        slots: torch.Tensor,
        accepted: torch.Tensor,
        *,
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Keep the first `accepted` drafts of every row (int32 [rows]; at most those that are
        pending, at least none) and forget the others; then flush the slots whose window is full. A
        flush folds all that is committed, beyond the window's end too."""
        rows, values = self._draft_rows(pool, slots, first_slot)
        _check("accepted", accepted, (rows,), torch.int32, pool.device)
        values |= self._optional("accepted", accepted, slots, pool)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P - 1)
            _check_range("accepted", accepted, slots, first_slot, None)
        if rows:
            kernels = self._commit_kernels(pool, rows)
            self._run(kernels, pool, {**values, "has_accepted": 1}, check)

    def _commit_kernels(self, pool: Pool, rows: int) -> list[Launch]:
        """Moves cursors; closes windows with a flush that is built for what a slot has room for."""
        flush = self.kernel("flush", pool, rows, shape=pool.shape.widened)
        return [self.kernel("commit", pool, rows), flush]

    def _drop(self, pool: Pool, rows: int, values: Mapping[str, Any], check: bool = False) -> None:
        """Forgets the drafts of the rows' slots; only pools that can have some take the launch."""
        if pool.shape.D:
            self._launch("commit", pool, rows, {**values, **_no_drafts(pool)}, check)

    def _begin(
        self, name: str, pool: Pool, rows: int, values: Mapping[str, Any], check: bool
    ) -> None:
        """Launches what gives slots another content, and drops the drafts of the one before."""
        names = (name, "commit") if pool.shape.D else (name,)
        kernels = [self.kernel(name, pool, rows) for name in names] if rows else []
        self._run(kernels, pool, {**values, **_no_drafts(pool)}, check)

    def _draft_rows(
        self, pool: Pool, slots: torch.Tensor, first_slot: int
    ) -> tuple[int, dict[str, Any]]:
        rows, values = self._rows(pool, slots, first_slot)
        if not self.windowed:
            raise _refuse("format", "one with a window, as drafts are records", self.format)
        if not pool.shape.D:
            raise _refuse("pool", "one allocated with drafts", "drafts=0")
        return rows, values

    def _tokens(self, pool: Pool, rows: int, inputs: Sequence[torch.Tensor]) -> int:
        """Tokens a row, from the first input that has them."""
        for spec, tensor in zip(self.inputs, inputs, strict=False):
            if not spec.constant:
                dims = list(tensor.shape) if isinstance(tensor, torch.Tensor) else []
                if len(dims) != 3 + bool(spec.axis):
                    sizes = spec.sizes((rows,), pool.shape)
                    expected = f"shape [{sizes[0]}, tokens, {str(list(sizes[1:]))[1:]}"
                    raise _refuse(spec.name, expected, dims or type(tensor).__name__)
                if dims[1] > pool.shape.D:
                    expected = f"at most {pool.shape.D} tokens a row, the pool's drafts"
                    raise _refuse(spec.name, expected, dims[1])
                return dims[1]
        return 0

    def _operands(
        self,
        pool: Pool,
        rows: Mapping[str, int],
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor | None,
        values: dict[str, Any],
    ) -> torch.Tensor:
        """Checks inputs and output of a step or a verify and adds them to `values`; rows: names and
        sizes of the leading axes. Returns the output."""
        sizes, words = tuple(rows.values()), tuple(rows)
        if len(inputs) != len(self.inputs):
            names = ", ".join(i.name for i in self.inputs)
            raise _refuse("inputs", f"{len(self.inputs)} ({names})", len(inputs))
        for spec, tensor in zip(self.inputs, inputs, strict=True):
            expected = spec.sizes(sizes, pool.shape)
            _check(spec.name, tensor, expected, DTYPES[spec.dtype], pool.device)
            values |= self._view(spec.name, tensor, spec.strides(words), end="_in")
        expected = (*sizes, pool.shape.HV, pool.shape.V)
        out = self._result("out", out, expected, DTYPES[self.output], pool)
        values |= self._view("out", out, (*words, "head", "axis"))
        return out

    def _optional(
        self, name: str, given: torch.Tensor | None, slots: torch.Tensor, pool: Pool
    ) -> dict[str, Any]:
        """Arguments of a number a row; of the slots in its place where it is absent."""
        if given is not None:
            _check(name, given, tuple(slots.shape), torch.int32, pool.device)
        return self._view(name, slots if given is None else given, ("row",))

    def flush(
        self, pool: Pool, slots: torch.Tensor, *, first_slot: int = 0, check: bool = False
    ) -> None:
        """Flush the slots whose window is full. `step` has done it already; rarely needed, and
        without windows there is nothing to do."""
        rows, values = self._rows(pool, slots, first_slot)
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P)
        if self.windowed:
            self._launch("flush", pool, rows, values, check)

    def reset(
        self, pool: Pool, slots: torch.Tensor, *, first_slot: int = 0, check: bool = False
    ) -> None:
        """Empty the slots: a zero state, cursor and phase 0."""
        rows, values = self._rows(pool, slots, first_slot)
        if check:
            self._inspect(pool, slots, first_slot)
        self._begin("reset", pool, rows, values, check)

    def materialize(
        self,
        pool: Pool,
        slots: torch.Tensor,
        *,
        layout: str = "VK",
        out: torch.Tensor | None = None,
        first_slot: int = 0,
        check: bool = False,
    ) -> torch.Tensor:
        """The state at the cursor, FP32 [rows, HV, V, K] (layout "KV": [rows, HV, K, V]); the pool
        stays as it is, and drafts that are pending count for nothing. Zeros in inactive rows."""
        rows, values = self._rows(pool, slots, first_slot)
        out = self._result("out", out, _state_sizes(layout, rows, pool), torch.float32, pool)
        values |= self._view("state", out, ("row", "head", *STATE_AXES[layout]))
        values["state_whole"] = int(_whole(out))
        if check:
            self._inspect(pool, slots, first_slot, limit=pool.shape.P)
        self._launch("materialize", pool, rows, values, check)
        return out

    def load_state(
        self,
        pool: Pool,
        slots: torch.Tensor,
        state: torch.Tensor,
        position: torch.Tensor | int | None = None,
        *,
        layout: str = "VK",
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Start slots from FP32 states in `materialize`'s layout.

        position  tokens so far, int32 [rows] or one number >= 0; phase = position mod window
        """
        rows, values = self._rows(pool, slots, first_slot)
        _check("state", state, _state_sizes(layout, rows, pool), torch.float32, pool.device)
        values |= self._view("state", state, ("row", "head", *STATE_AXES[layout]))
        if not isinstance(position, torch.Tensor):
            number = _integer("position", position or 0, 0) % pool.shape.P
            position = torch.full((1,), number, dtype=torch.int32, device=pool.device).expand(rows)
        _check("position", position, (rows,), torch.int32, pool.device)
        values |= self._view("position", position, ("row",))
        if check:
            self._inspect(pool, slots, first_slot)
        self._begin("load_state", pool, rows, values, check)

    def copy(
        self,
        pool: Pool,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        first_slot: int = 0,
        check: bool = False,
    ) -> None:
        """Duplicate slots, bit for bit, without the drafts that are pending in a source (they stay
        there). A row is active iff both its slots are; a slot that is written in one row may stand
        in no other."""
        rows, values = self._rows(pool, source, first_slot, "source")
        values |= self._rows(pool, target, first_slot, "target")[1]
        _check("target", target, (rows,), torch.int32, pool.device)
        if check:
            self._inspect(pool, target, first_slot, "target")
            self._inspect(pool, source, first_slot, "source", limit=pool.shape.P, unique=False)
            both = {s for s in source.tolist() if s >= first_slot} & set(target.tolist())
            if both:
                raise _refuse("source", "no slot that is a target too", sorted(both))
        self._launch("copy", pool, rows, values, check)
        if pool.shape.D:
            both_active = (source >= first_slot) & (source < pool.slots)
            dropped = torch.where(both_active, target, -1)
            self._drop(pool, rows, self._rows(pool, dropped, first_slot)[1], check)

    # -- canonical form

    def export(self, pool: Pool, slots: torch.Tensor) -> dict[str, Any]:
        """All that the slots hold, in an order that no arch owns: every pool tensor as [rows,
        heads, *tile], the payload as [rows, HV, K, V], records of one window, those beyond the
        cursor zeroed; and a `header`. Drafts that are pending are left out. Synchronises."""
        return self._export(pool, self._index(pool, slots), "slots")

    def checkpoint(self, pool: Pool, slots: torch.Tensor, *, force: bool = False) -> dict[str, Any]:
        """What `export` gives, without records: the stored state of slots whose window is closed,
        and where in a window they stand. For caches of prefixes. Synchronises.

        force   close the other windows early, which quantizes their states once more and drops
                their drafts; the next window ends where this one would have. `forced` of the result
                lists these rows, and `pool.forced` counts them
        Errors: ArgumentError for a slot with records, unless forced.
        """
        index = self._index(pool, slots)
        open_rows = self._open_rows(pool, index)
        if open_rows and not force:
            row = open_rows[0]
            expected = "a slot whose window is closed, or force=True"
            found = f"cursors {pool['cursor'][index[row]].tolist()} in slot {int(index[row])}"
            raise _refuse(f"slots[{row}]", expected, found)
        self._close(pool, slots[open_rows])
        return {**self._export(pool, index, "checkpoint"), "forced": open_rows}

    def checkpoint_bytes(self, **sizes: int) -> int:
        """Bytes of one slot's tensors in a checkpoint, without paddings."""
        shape = self.shape(**sizes)
        return sum(
            prod(b.sizes(shape)) * DTYPES[b.dtype].itemsize
            for b in self.buffers
            if _kept(b, "checkpoint")
        )

    def _open_rows(self, pool: Pool, index: torch.Tensor) -> list[int]:
        """Rows whose window has records."""
        if not self.windowed:
            return []
        used = pool["cursor"][index].ne(0).any(dim=1)
        return [int(row) for row in used.nonzero().flatten()]

    def _close(self, pool: Pool, slots: torch.Tensor) -> None:
        """Flushes slots that have records as if their windows were full."""
        if not slots.numel():
            return
        index, P = slots.to(torch.int64), pool.shape.P
        position = (pool["phase"][index] + pool["cursor"][index]) % P
        pool["phase"][index] = P
        rows, values = self._rows(pool, slots, 0)
        self._launch("flush", pool, rows, values, check=False)
        pool["phase"][index] = position
        self._drop(pool, rows, values)
        pool.forced += rows

    def _export(self, pool: Pool, index: torch.Tensor, kind: str) -> dict[str, Any]:
        data: dict[str, Any] = {"header": self._header(pool, kind)}
        order = self.layout.order(pool.shape, pool.device)
        for buffer in self.buffers:
            if not _kept(buffer, kind):
                continue
            values = pool[buffer.name][index]
            if buffer.role == "payload" and buffer.packed(pool.shape):
                values = self.layout.planes(values, pool.shape)
            elif buffer.role == "payload":
                values = values[..., order]
            elif buffer.role == "record":
                values = torch.where(_live(pool, buffer, index), values, torch.zeros_like(values))
                values = values[:, :, : buffer.sizes(replace(pool.shape, D=0))[1]]
            data[buffer.name] = values
        return data

    def import_(self, pool: Pool, slots: torch.Tensor, data: Mapping[str, Any]) -> None:
        """Write what `export` or `checkpoint` gave, from a pool of any arch, device and number of
        drafts. Nothing is written if anything does not fit. Synchronises."""
        index, found = self._index(pool, slots), data.get("header")
        kind = found.get("kind") if isinstance(found, Mapping) else None
        kind = kind if kind in KINDS else KINDS[0]
        if found != (header := self._header(pool, kind)):
            raise _refuse("header", header, found)
        order = self.layout.order(pool.shape, pool.device)
        ready: dict[str, torch.Tensor] = {}
        for buffer in self.buffers:
            if not _kept(buffer, kind):
                continue
            heads, *tile = buffer.sizes(replace(pool.shape, D=0))
            payload = buffer.role == "payload" and not buffer.packed(pool.shape)
            sizes = (len(index), heads, *((pool.shape.K, pool.shape.V) if payload else tile))
            found = data.get(buffer.name)
            values = found.to(pool.device) if isinstance(found, torch.Tensor) else found
            values = _check(buffer.name, values, sizes, DTYPES[buffer.dtype], pool.device)
            if payload:
                canonical, values = values, torch.empty_like(values).flatten(2)
                values[..., order] = canonical
            elif buffer.role == "payload":
                values = self.layout.planes(values, pool.shape, back=True)
            ready[buffer.name] = values
        if "cursor" in pool and kind == "checkpoint":
            ready["cursor"] = torch.zeros_like(pool["cursor"][index])
        for name, values in ready.items():
            if values.dim() > 2:
                pool[name][index, :, : values.shape[2]] = values
            else:
                pool[name][index] = values
        if "pending" in pool:
            pool["pending"][index] = 0

    def _header(self, pool: Pool, kind: str) -> dict[str, Any]:
        return {
            "version": EXPORT_VERSION,
            "kind": kind,
            "spec": self.spec or self.digest,
            "format": self.format,
            "layout": "canonical",
            "shape": dict(vars(replace(pool.shape, D=0))),
        }

    def _index(self, pool: Pool, slots: torch.Tensor) -> torch.Tensor:
        self._rows(pool, slots, 0)
        self._inspect(pool, slots, first_slot=0)
        if (least := min(slots.tolist(), default=0)) < 0:
            raise _refuse("slots", "slots of at least 0", least)
        return slots.to(torch.int64)

    # -- arguments

    def _rows(
        self, pool: Any, slots: Any, first_slot: int, name: str = "slots"
    ) -> tuple[int, dict[str, Any]]:
        """Number of rows and arguments of a slot list, once it and the pool are seen to fit."""
        if not isinstance(pool, Pool):
            raise _refuse("pool", "a Pool", type(pool).__name__)
        if pool.tag != (tag := self._tag(pool.shape)):
            raise _refuse("pool", f"one made for {tag}", pool.tag)
        if not isinstance(slots, torch.Tensor) or slots.dim() != 1:
            found = list(slots.shape) if isinstance(slots, torch.Tensor) else type(slots).__name__
            raise _refuse(name, "an int32 tensor [rows]", found)
        rows = slots.shape[0]
        _check(name, slots, (rows,), torch.int32, pool.device)
        first = _integer("first_slot", first_slot, 0)
        return rows, {**self._view(name, slots, ("row",)), "num_rows": rows, "first_slot": first}

    def _view(
        self, name: str, tensor: torch.Tensor, words: Sequence[str], end: str = ""
    ) -> dict[str, Any]:
        """A flat view and its strides in elements."""
        axes = zip(words, tensor.shape, tensor.stride(), strict=True)
        strides = {f"{name}_{w}": _stride(name, w, size, s) for w, size, s in axes}
        return {f"{name}{end}": _flat(tensor, self.target == "c"), **strides}

    def _result(
        self,
        name: str,
        given: torch.Tensor | None,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        pool: Pool,
    ) -> torch.Tensor:
        if given is None:
            return torch.empty(sizes, dtype=dtype, device=pool.device)
        return _check_writable(name, _check(name, given, sizes, dtype, pool.device))

    def _inspect(
        self,
        pool: Pool,
        slots: torch.Tensor,
        first_slot: int,
        name: str = "slots",
        *,
        limit: int | None = None,
        unique: bool = True,
    ) -> None:
        """Names the first row whose slot is out of range or used twice, or whose cursors are not in
        0..limit or differ among value heads that share record keys. Synchronises."""
        seen: dict[int, int] = {}
        for row, slot in enumerate(slots.tolist()):
            if slot >= pool.slots:
                raise _refuse(f"{name}[{row}]", f"a slot below {pool.slots}", slot)
            if unique and slot in seen:
                raise _refuse(f"{name}[{row}]", "each slot once", f"{slot}, as in row {seen[slot]}")
            if slot >= first_slot:
                seen[slot] = row
        if limit is None or not seen or "cursor" not in pool:
            return
        cursors = pool["cursor"][torch.tensor([*seen], device=pool.device)].tolist()
        shared = any(b.role == "record" and b.heads == "H" for b in self.buffers)
        group = pool.shape.HV // pool.shape.H if shared else 1
        for (slot, row), heads in zip(seen.items(), cursors, strict=True):
            expected = "" if 0 <= min(heads) <= max(heads) <= limit else f"cursors in 0..{limit}"
            if heads != [c for c in heads[::group] for _ in range(group)]:
                expected = expected or f"one cursor for each {group} heads that share keys"
            if expected:
                raise _refuse(f"{name}[{row}]", expected, f"{heads} in slot {slot}")


def _no_drafts(pool: Pool) -> dict[str, Any]:
    """What the kernel commit receives to drop all drafts; it then looks at no `accepted`."""
    return {"accepted": pool.arguments["status"], "accepted_row": 0, "has_accepted": 0}


KINDS = ("slots", "checkpoint")


def _kept(buffer: Buffer, kind: str) -> bool:
    """Whether an export of a kind has a pool tensor."""
    return kind == "slots" or buffer.role in CHECKPOINT or buffer.name == "phase"


def _state_sizes(layout: str, rows: int, pool: Pool) -> tuple[int, ...]:
    if layout not in STATE_AXES:
        raise _refuse("layout", " or ".join(STATE_AXES), layout)
    shape = pool.shape
    axes = (shape.V, shape.K) if layout == "VK" else (shape.K, shape.V)
    return (rows, shape.HV, *axes)


def _whole(state: torch.Tensor) -> bool:
    """Whether runs of 4 channels along its contiguous axis are aligned accesses of 16 bytes."""
    row, head, *axes = state.stride()
    aligned = state.data_ptr() % ALIGNMENT == 0
    return aligned and min(axes) == 1 and not any(s % 4 for s in (row, head, max(axes)))


def _live(pool: Pool, buffer: Buffer, index: torch.Tensor) -> torch.Tensor:
    """Which records of a buffer lie below the cursor, broadcast over what one record holds."""
    shape = pool.shape
    heads, entries, *rest = buffer.sizes(shape)
    token = torch.arange(entries, device=pool.device) // (entries // (shape.P + shape.D))
    live = token < pool["cursor"][index][:, :: shape.HV // heads, None]
    return live.reshape(*live.shape, *[1] * len(rest))
