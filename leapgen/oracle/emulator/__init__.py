"""Run the CUDA text that TileLang emits on a CPU: every CUDA thread a fiber, no GPU, no nvcc."""

from leapgen.oracle.emulator.errors import BuildFailed, LaunchFailed, UnsupportedSource
from leapgen.oracle.emulator.lowering import Lowered, lower
from leapgen.oracle.emulator.run import EmulatedKernel, from_prim_func
from leapgen.oracle.emulator.source import Parameter, Signature, read_signature

__all__ = [
    "BuildFailed",
    "EmulatedKernel",
    "LaunchFailed",
    "Lowered",
    "Parameter",
    "Signature",
    "UnsupportedSource",
    "from_prim_func",
    "lower",
    "read_signature",
]
