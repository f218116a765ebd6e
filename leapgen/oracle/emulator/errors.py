"""What can go wrong between an emitted source and its result on the CPU."""

from __future__ import annotations


class UnsupportedSource(Exception):
    """The source uses something that the emulator does not know; the message names it."""


class BuildFailed(Exception):
    """The C++ compiler is missing or rejected the translated source."""


class LaunchFailed(Exception):
    """The emulated program did something that is an error on a GPU: the message says what."""
