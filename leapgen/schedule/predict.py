"""What a compiled kernel should take on a device that is not here: a rule for ranking configs.

The larger of memory (at the bytes that the resident blocks keep in flight) and instruction issue;
then spills through L1, the latency of one block, and a launch. No measurement: constants come from
one chip (H200), so the figures rank configs and are marked as predicted wherever they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from leapgen.diagnostics import LeapgenError
from leapgen.schedule import traffic
from leapgen.schedule.arch import Arch, Device
from leapgen.schedule.buffers import Shape
from leapgen.schedule.plan import Plan
from leapgen.schedule.space import Config, resident

LATENCY = 0.8e-6
"""Seconds from a load to its data under load."""
DEPENDENT = 2
"""Loads of a block that wait for one another: its slot and cursor, then its tiles."""
REACHED = 0.95
"""Part of the read bandwidth that a kernel which also writes and computes has reached."""
TAIL = 0.5
"""Part of the last, incomplete wave of blocks that the earlier ones do not hide."""
LAUNCH = 1.0e-6
"""Seconds between two kernels of one graph."""
CYCLES = 2.0
"""Cycles of one instruction of a warp that waits for nobody."""
LOADS = 64
"""Bytes that a thread has in flight where tiles are not staged: four vector loads."""
STEP_PART = 0.3
"""Part of a fused kernel's code that every block runs; only those that close a window run the
rest, and what is spilled is spilled there."""
SCHEDULERS = 4
"""Warp instructions that an SM issues a cycle."""
L1 = 128
"""Bytes that an SM's L1 moves a cycle."""


@dataclass(frozen=True)
class Usage:
    """What a compiled kernel needs: registers and spilled bytes of a thread, bytes of shared
    memory of a block, machine instructions of a warp."""

    registers: int
    spills: int
    shared: int
    instructions: int


def kernel_us(
    kernel: str, config: Config, usage: Usage, shape: Shape, rows: int, plan: Plan, device: Device
) -> float:
    """Microseconds of one launch of `step` or `flush`, with 1/P of the rows closing their window.

    Errors: LeapgenError, where the table of archs has no figures for the device.
    """
    if not device.sms or not device.clock:
        raise LeapgenError(f"no number of SMs and clock known for {device.match}")
    threads = config.get("threads", 1)
    blocks = resident(config, usage.registers, usage.shared, plan.arch)
    if not blocks:
        return float("inf")
    parts = config["slices"] if "lanes" in config else 1  # blocks that share a head
    moved = _bytes(kernel, config, shape, rows, plan) / parts
    tiles = rows * shape.HV * parts
    # Blocks whose window is open leave a flush at once.
    working = tiles if kernel == "step" else max(1.0, tiles / shape.P)
    cycles = device.sms * device.clock
    warps = -(-threads // 32)
    fused = bool(config.get("fused"))
    code = usage.instructions * (_share_of(1 / shape.P) if fused else 1.0)
    # Some block of a launch closes its window, unless there are few rows.
    longest = usage.instructions * (_share_of(min(1.0, rows / shape.P)) if fused else 1.0)
    chain, last = code * CYCLES / device.clock, longest * CYCLES / device.clock
    memory = moved * tiles / device.bandwidth / REACHED
    at_once = bool(config.get("staged")) or "lanes" in config
    memory /= _share(moved, blocks, threads, at_once, chain, device)
    waves = tiles / (device.sms * blocks)
    memory *= 1 + TAIL * (ceil(waves) / waves - 1) if waves > 1 else 1
    issue = working * warps * code / (SCHEDULERS * cycles)
    spilling = working / shape.P if fused else working
    spills = spilling * threads * usage.spills / (L1 * cycles)
    return 1e6 * (max(memory, issue) + spills + last + LAUNCH)


def _share(
    moved: float, blocks: int, threads: int, at_once: bool, chain: float, device: Device
) -> float:
    """Part of the bandwidth that the resident blocks of an SM can ask for (Little's law): each
    moves its bytes once in its life; a thread that does not ask for all at once asks for little."""
    rate = device.bandwidth / device.sms
    asked = blocks * moved / (DEPENDENT * LATENCY + chain)
    if not at_once:
        asked = min(asked, blocks * threads * LOADS / LATENCY)
    return min(1.0, max(asked, 1.0) / rate)


def _share_of(closing: float) -> float:
    """Part of a fused kernel's code that runs where this part of the blocks closes a window."""
    return STEP_PART + (1 - STEP_PART) * closing


def _bytes(kernel: str, config: Config, shape: Shape, rows: int, plan: Plan) -> float:
    """Mean bytes of a row and value head; a fused step does the flush's share too."""
    fused = bool(config.get("fused"))
    step = traffic.step_mean(plan, shape, rows, fused=fused).distinct
    return traffic.token_mean(plan, shape, rows).distinct - step if kernel == "flush" else step


def device_of(arch: Arch) -> Device:
    """The product that an arch's predictions are for: its first with known figures.

    Errors: LeapgenError, for an arch without any.
    """
    for device in arch.devices:
        if device.sms and device.clock:
            return device
    raise LeapgenError(f"no device with known figures for {arch.name}")
