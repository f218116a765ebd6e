"""The space of tuning arguments of each kernel, and the one predicate of what can run.

A config says how a kernel is mapped onto an arch (threads, blocks, stages), never what it computes.
Its knobs are data, a row each; a builder that lacks one of them keeps its space without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from math import prod

from leapgen.schedule.arch import Arch
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan

Config = Mapping[str, int | bool]

LEAST_REGISTERS = 32
"""Registers of a thread below which no kernel here compiles without spilling."""

KNOBS: dict[str, dict[str, tuple[int | bool, ...]]] = {
    "step": {
        "threads": (64, 128, 256),
        "min_blocks": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16),
        "staged": (True, False),
        "held": (True, False),
        "bulk": (True, False),
        "fused": (0, 1, 2),
        "slices": (1, 2, 4, 8, 16),
        "lanes": (8, 16, 32),
    },
    "flush": {
        "threads": (128, 256, 512),
        "tiles": (0, 1, 2),
        "slices": (1, 2, 4, 8),
        "min_blocks": (1, 2, 3, 4, 5, 6, 7, 8),
    },
}
"""Values worth trying, kernel by kernel; for threads also V. Kernels without an entry keep their
default rule."""

HELD = (16, 64)
"""Elements of the state that a thread holds in registers, where it holds it there."""
BUSY = {"step": (448, 1152), "flush": (256, 1024), "words": (384, 896)}
"""Resident threads of an SM that a kernel is built for: fewer leave memory idle (Little's law),
more leave a thread too few registers for the reads in flight. A flush holds a whole state in
registers or shared memory, so few blocks are its nature; so does a step that closes windows."""


def configs(
    kernel: str, shape: Shape, plan: Plan, knobs: Collection[str], default: Config
) -> tuple[dict[str, int | bool], ...]:
    """All configs of a kernel that may run, the default first; none is given twice.

    knobs    what the kernel's builder takes; others of the space are left out
    default  the default rule's config; knobs that the space does not know keep its values
    """
    table = {k: v for k, v in KNOBS.get(kernel, {}).items() if k in knobs}
    if "threads" in table and shape.V % 32 == 0 and shape.V not in table["threads"]:
        table["threads"] = (*table["threads"], shape.V)
    found = [dict(default)]
    for values in itertools.product(*table.values()):
        config = _tidy({**default, **dict(zip(table, values, strict=True))}, default, plan)
        if config not in found and promising(kernel, config, shape, plan):
            found.append(config)
    return tuple(found)


def _tidy(config: dict[str, int | bool], default: Config, plan: Plan) -> dict[str, int | bool]:
    """A config as the default rule would write it: without knobs that its mode does not use, and
    as many blocks of a launch as are resident."""
    if config.get("tiles"):
        config.pop("slices", None)
    elif "tiles" not in default:
        config.pop("tiles", None)
    if "blocks" in config:
        config["blocks"] = config["min_blocks"] * plan.arch.multiprocessors
    return config


def promising(kernel: str, config: Config, shape: Shape, plan: Plan) -> bool:
    """Whether a config is worth compiling: valid, and neither idle nor starved of registers."""
    if not valid(kernel, config, shape, plan):
        return False
    if "min_blocks" not in config or kernel not in BUSY:
        return True
    words = config.get("fused") or config.get("tiles")
    low, high = BUSY["words" if words else kernel]
    resident = config["threads"] * config["min_blocks"]
    if not low <= resident <= high:
        return False
    if "lanes" not in config:
        return _leading(kernel, config, shape, plan) and _fit(kernel, config, shape, plan)
    least, most = HELD
    held = shape.K * shape.V // (config["slices"] * config["threads"])
    # Three knobs more: fewer values of this one.
    return least <= held <= most and resident % 256 == 0


def _leading(kernel: str, config: Config, shape: Shape, plan: Plan) -> bool:
    """Whether a config takes the better path of its shape, where one always is: records held in
    registers, the state in words. Other paths keep a few of their configs."""
    threads = config["threads"]
    if config.get("tiles", 1) == 0 and plan.closes(shape):
        return threads * config["min_blocks"] == 512
    if kernel == "step" and not config.get("held") and "held" in config:
        best = {**config, "held": True, "staged": True, "threads": shape.V, "min_blocks": 1}
        if _held(best, shape, plan) is None:
            few = threads in (128, shape.V) and threads * config["min_blocks"] % 256 == 0
            return few and not config.get("fused")
    return True


def _fit(kernel: str, config: Config, shape: Shape, plan: Plan) -> bool:
    """Whether shared memory has room for `min_blocks` blocks: with fewer, the bound on registers
    would be for nothing."""
    shared = least_shared(kernel, config, shape, plan) + plan.arch.shared_reserved
    return config["min_blocks"] * shared <= plan.arch.shared_sm


def valid(kernel: str, config: Config, shape: Shape, plan: Plan) -> bool:
    """Whether a config can run: the one predicate of default rules, tuner and tests."""
    return refusal(kernel, config, shape, plan) is None


def refusal(kernel: str, config: Config, shape: Shape, plan: Plan) -> str | None:
    """Why a config cannot run at a shape, or None.

    The bytes counted are those that no template could do without; what a kernel really takes is
    known after its compilation, see `leapgen.report.resources`.
    """
    arch = plan.arch
    threads, blocks = config.get("threads"), config.get("min_blocks", 1)
    if threads is None:  # a serial target: nothing to map
        return None
    if threads < 32 or threads % 32 or threads > 1024:
        return f"threads = {threads}: a multiple of 32 up to 1024"
    for rule in (_held, _words, _lanes if "lanes" in config else _slices):
        if reason := rule(config, shape, plan):
            return reason
    if blocks < 1 or threads * blocks > arch.threads_sm or blocks > arch.blocks_sm:
        return f"{blocks} blocks of {threads} threads: more than an SM holds"
    if registers(config, arch) < LEAST_REGISTERS:
        return f"{blocks} blocks of {threads} threads: {registers(config, arch)} registers a thread"
    shared = least_shared(kernel, config, shape, plan)
    if shared > arch.shared_block:
        return f"{shared} bytes of shared memory, a block has {arch.shared_block}"
    if config.get("fused"):  # its bound may be that of the step alone
        shared = least_shared(kernel, {**config, "fused": 0}, shape, plan)
    if shared and blocks * (shared + arch.shared_reserved) > arch.shared_sm:
        return f"{blocks} blocks of {shared} bytes of shared memory, an SM has {arch.shared_sm}"
    return None


HELD_ROWS = 32
"""Rows of compensators and records, by whole blocks of eight, that a step can hold in registers."""


def _held(config: Config, shape: Shape, plan: Plan) -> str | None:
    """Rules of a step that stages the payload alone and holds the records in registers."""
    if not config.get("held"):
        return None if config.get("bulk", True) else "bulk = False: only where records are held"
    threads, records = config["threads"], plan.records_per_token * (shape.P - 1)
    rows = 8 * (-(-shape.R // 8) - (-records // 8))
    if not config.get("staged"):
        return "held: with a staged payload"
    # Codes of a row are read whole by the warp that owns it.
    owned = (threads,) if plan.layout(shape).name != "fragment" else (threads, 2 * threads)
    if not plan.holds(shape) or shape.V not in owned:
        return f"held: with codes that are operands, and V = {shape.V} threads or half of them"
    if not 0 < rows <= HELD_ROWS:
        return f"held: {rows} rows in registers, at most {HELD_ROWS}"
    return None


def _words(config: Config, shape: Shape, plan: Plan) -> str | None:
    """Rules of the kernels that hold the state as words of two FP16 numbers."""
    knob = "fused" if "fused" in config else "tiles"
    tiles = config.get(knob, 0)
    if not tiles:
        return None
    if tiles not in (1, 2):
        return f"{knob} = {tiles}: 1 or 2 tiles of a warp in registers, or 0"
    if not plan.closes(shape):
        kind = "is closed by products" if plan.rows else "is held in words"
        return f"{knob}: no state of this shape {kind}"
    if plan.rows and tiles != 1:
        return f"{knob} = {tiles}: 1 or 0 where the state is no words"
    if config["threads"] != shape.V:
        return f"{knob}: with threads = V = {shape.V}"
    if knob == "fused" and not config.get("staged"):
        return "fused: with a staged payload"
    return None


def _slices(config: Config, shape: Shape, plan: Plan) -> str | None:
    """Rules of the kernels that hold a part of the state as FP32 (flush and its kin)."""
    if "slices" not in config or config.get("tiles"):
        return None
    slices, threads = config["slices"], config["threads"]
    if slices < 1 or shape.V % slices:
        return f"slices = {slices}: a divisor of V = {shape.V}"
    if shape.V // slices % value_step(shape, plan):
        return f"slices = {slices}: a slice of whole groups of value channels"
    if threads < max(shape.K, shape.V // slices):
        return f"threads = {threads}: at least K and V / slices"
    return None


def _lanes(config: Config, shape: Shape, plan: Plan) -> str | None:
    """Rules of the kernels that hold their part of the state in registers, lane by lane."""
    slices, lanes, threads = config["slices"], config["lanes"], config["threads"]
    if slices < 1 or shape.V % slices:
        return f"slices = {slices}: a divisor of V = {shape.V}"
    if lanes not in (1, 2, 4, 8, 16, 32):
        return f"lanes = {lanes}: a power of two up to 32"
    if lanes > threads:
        return f"lanes = {lanes}: at most threads"
    return None


def value_step(shape: Shape, plan: Plan) -> int:
    """Value channels that payload order keeps together: a slice is a multiple of them."""
    if plan.layout(shape).name != "fragment":
        return 8
    return 32 if shape.V % 32 == 0 else 16


def registers(config: Config, arch: Arch) -> int:
    """Registers that a thread may have so that `min_blocks` fit an SM (at most 255)."""
    return min(255, arch.registers // (config["threads"] * config.get("min_blocks", 1)))


def least_shared(kernel: str, config: Config, shape: Shape, plan: Plan) -> int:
    """Bytes of shared memory that a block cannot do without: staged tiles, a slice of the state,
    operands of its products."""
    if tiles := config.get("tiles"):
        words = tiles == 1 and not plan.rows
        return _word_bytes(shape, plan) + (shape.K * shape.V if words else 0)
    if config.get("staged"):
        roles = ("payload",) if config.get("held") else ("payload", "record", "compensator")
        staged = sum(b.tile_bytes(shape) for b in plan.buffers if b.role in roles)
        if not config.get("fused"):
            return staged
        payload = [b.tile_bytes(shape) for b in plan.buffers if b.role == "payload"]
        if (
            config["fused"] == 1 and not plan.rows
        ):  # a tile's words take the place of codes, or of their first plane
            payload[0] = max(payload[0], shape.K * shape.V)
        return max(staged, sum(payload) + _word_bytes(shape, plan))
    if "slices" in config and "lanes" not in config:
        return prod((shape.K, shape.V // config["slices"], 4))
    return 0


def _word_bytes(shape: Shape, plan: Plan) -> int:
    """Scratch of a kernel that holds the state in words, or adds records to rows: `scratch_places`
    and `closing_floats` of generated modules."""
    if plan.rows:
        rows = -(-plan.records_per_token * shape.P // 8) * 8
        return 4 * (rows * (shape.K + 2) + shape.K)
    K, warps, rank = shape.K, shape.V // 32, max(shape.R, 1)
    wide = 4 if shape.R <= 4 else 8
    half = -(-rank // 2) * (K + (8 if K // 8 % 8 == 4 else 4))
    parts = warps * K // (2 if shape.R > 4 and K // 32 % 2 == 0 else 1) * wide
    group = 8 * min(2, -(-plan.records_per_token * shape.P // 16)) * (K + 20)
    keys = max(warps * (K + 16), wide * wide)
    factors = keys + rank * (K + 32) // 2 + half
    smoothing = keys + warps * (K + 32) // 2
    return 4 * (max(group + 32 * warps, parts, factors, smoothing) + 2 * half)


def resident(config: Config, registers: int, shared: int, arch: Arch) -> int:
    """Blocks that an SM holds at once, given a thread's registers and a block's shared memory."""
    threads = config.get("threads", 1)
    limits = [arch.blocks_sm, arch.threads_sm // threads]
    # Registers are handed out to warps by 256.
    limits.append(arch.registers // (-(-registers * 32 // 256) * 256 * (threads // 32 or 1)))
    limits.append(arch.shared_sm // (shared + arch.shared_reserved))
    return max(0, min(limits))
