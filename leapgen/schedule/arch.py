"""The one table of architectures: what each can do, and how fast its devices read memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leapgen.diagnostics import LeapgenError


class ArchError(LeapgenError):
    """An architecture or device that the table does not know."""


@dataclass(frozen=True)
class Device:
    """One product of an architecture.

    match       words that the driver's device name contains (words end at spaces and hyphens)
    bandwidth   bytes per second that it can read
    measured    True: a read-only kernel reached it; False: the vendor's datasheet
    sms         multiprocessors; 0 where no figure is known
    clock       boost clock in Hz, of the datasheet; 0 likewise
    """

    match: str
    bandwidth: float
    measured: bool
    sms: int = 0
    clock: float = 0.0

    @property
    def slug(self) -> str:
        """The product's name in paths (`rtx-pro-6000`)."""
        return self.match.lower().replace(" ", "-")


@dataclass(frozen=True)
class Arch:
    """One row: what generated code may assume.

    name                the word used in paths (`sm90`)
    targets             compile targets, (major, minor) -> target; empty: not a GPU
    shared_block        bytes of shared memory that one block may ask for
    shared_sm           bytes of shared memory that the blocks of one SM share
    shared_reserved     bytes that the system takes from each block's share
    registers           32-bit registers of one SM
    threads_sm          resident threads of one SM
    blocks_sm           resident blocks of one SM
    multiprocessors     SMs of the row's common data-centre or workstation product
    async_copy          cp.async from global to shared memory
    bulk_copy           1-D bulk copies with a memory barrier
    int8_mma            warp-level m16n8k32 with INT8 operands
    converts            types of codes that an instruction decodes, two at a time (PTX ISA, `cvt`)
    devices             known products, the more specific name first
    """

    name: str
    title: str
    targets: tuple[tuple[tuple[int, int], str], ...]
    shared_block: int
    shared_sm: int
    shared_reserved: int
    registers: int
    threads_sm: int
    blocks_sm: int
    multiprocessors: int
    async_copy: bool
    bulk_copy: bool
    int8_mma: bool
    converts: tuple[str, ...]
    devices: tuple[Device, ...]

    @property
    def gpu(self) -> bool:
        """Whether kernels run at thread level."""
        return bool(self.targets)

    @property
    def target(self) -> str:
        """Default compile target: nvcc's architecture (`sm_90a`), or `c`."""
        return self.targets[0][1] if self.targets else "c"

    def device(self, name: str) -> Device:
        """The product that a driver's device name stands for. Errors: ArchError with the known."""
        for device in self.devices:
            if set(device.match.split()) <= set(re.split(r"[\s-]+", name)):
                return device
        known = ", ".join(d.match for d in self.devices) or "none"
        raise ArchError(f"no bandwidth known for {name!r} among devices of {self.name}: {known}")


def _gpu(
    name: str,
    title: str,
    targets: dict[tuple[int, int], str],
    *,
    shared: int,
    threads: int,
    blocks: int,
    multiprocessors: int,
    bulk: bool,
    converts: tuple[str, ...] = (),
    devices: tuple[Device, ...],
) -> Arch:
    """A GPU row. shared: KiB of one SM; a block may have all but the 1 KiB reserved for it."""
    return Arch(
        name=name,
        title=title,
        targets=tuple(targets.items()),
        shared_block=(shared - 1) * 1024,
        shared_sm=shared * 1024,
        shared_reserved=1024,
        registers=65536,
        threads_sm=threads,
        blocks_sm=blocks,
        multiprocessors=multiprocessors,
        async_copy=True,
        bulk_copy=bulk,
        int8_mma=True,
        converts=converts,
        devices=devices,
    )


FP8 = ("e4m3",)
NARROW = (*FP8, "e3m2", "e2m3", "e2m1", "e8m0")

CPU = Arch("cpu", "any CPU with a C compiler", (), 0, 0, 0, 0, 1, 1, 1, False, False, False, (), ())

# Bandwidths are datasheet figures unless marked measured (read-only sum over several GiB).
ARCHES: dict[str, Arch] = {
    a.name: a
    for a in (
        CPU,
        _gpu(
            "sm80",
            "Ampere, data centre",
            {(8, 0): "sm_80"},
            shared=164,
            threads=2048,
            blocks=32,
            multiprocessors=108,
            bulk=False,
            devices=(
                Device("A100 80GB", 2.039e12, False, 108, 1.41e9),
                Device("A100", 1.555e12, False, 108, 1.41e9),
            ),
        ),
        _gpu(
            "sm89",
            "Ada",
            {(8, 9): "sm_89"},
            shared=100,
            threads=1536,
            blocks=24,
            multiprocessors=142,
            bulk=False,
            converts=FP8,
            devices=(
                Device("L40S", 8.64e11, False, 142, 2.52e9),
                Device("L40", 8.64e11, False, 142, 2.49e9),
                Device("RTX 4090", 1.008e12, False, 128, 2.52e9),
                Device("L4", 3.0e11, False, 58, 2.04e9),
            ),
        ),
        _gpu(
            "sm90",
            "Hopper",
            {(9, 0): "sm_90a"},
            shared=228,
            threads=2048,
            blocks=32,
            multiprocessors=132,
            bulk=True,
            converts=FP8,
            devices=(
                Device("H200", 4.40e12, True, 132, 1.755e9),
                Device("GH200", 4.0e12, False, 132, 1.755e9),
                Device("H100 PCIe", 2.0e12, False, 114, 1.755e9),
                Device("H100", 3.35e12, False, 132, 1.755e9),
            ),
        ),
        _gpu(
            "sm100",
            "Blackwell, data centre",
            {(10, 0): "sm_100a"},
            shared=228,
            threads=2048,
            blocks=32,
            multiprocessors=148,
            bulk=True,
            converts=NARROW,
            devices=(
                Device("B200", 8.0e12, False, 148, 1.85e9),
                Device("GB200", 8.0e12, False, 148, 1.85e9),
            ),
        ),
        _gpu(
            "sm103",
            "Blackwell Ultra",
            {(10, 3): "sm_103a"},
            shared=228,
            threads=2048,
            blocks=32,
            multiprocessors=148,
            bulk=True,
            converts=NARROW,
            devices=(Device("B300", 8.0e12, False), Device("GB300", 8.0e12, False)),
        ),
        _gpu(
            "sm120",
            "Blackwell, workstation",
            {(12, 0): "sm_120a", (12, 1): "sm_121a"},
            shared=100,
            threads=1536,
            blocks=24,
            multiprocessors=188,
            bulk=True,
            converts=NARROW,
            devices=(
                Device("RTX PRO 6000", 1.792e12, False, 188, 2.617e9),
                Device("RTX 5090", 1.792e12, False, 170, 2.407e9),
                Device("GB10", 2.73e11, False, 48, 2.418e9),
            ),
        ),
    )
}


def arch_named(name: str) -> Arch:
    """The row of a name. Errors: ArchError naming the known ones."""
    if name not in ARCHES:
        raise ArchError(f"unknown architecture {name!r}; known: {', '.join(ARCHES)}")
    return ARCHES[name]


def for_capability(capability: tuple[int, int]) -> tuple[Arch, str]:
    """The row and the compile target of a device's compute capability.

    Members of a family differ (lettered targets do not run elsewhere), so only capabilities that
    the table names are accepted. Errors: ArchError naming them.
    """
    table = {c: (a, target) for a in ARCHES.values() for c, target in a.targets}
    if capability not in table:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(table))
        found = ".".join(map(str, capability))
        raise ArchError(f"unknown compute capability {found}; known: {known}")
    return table[capability]
