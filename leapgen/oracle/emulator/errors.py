"""What can go wrong between an emitted source and its result on the CPU."""

from __future__ import annotations

from leapgen.diagnostics import LeapgenError


class UnsupportedSource(LeapgenError):
    """The source uses something that the emulator does not know; the message names it."""


class BuildFailed(LeapgenError):
    """The C++ compiler rejected the translated source."""


class LaunchFailed(LeapgenError):
    """The emulated program did something that is an error on a GPU: the message says what."""
