"""Sections of a verification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from leapgen.diagnostics import LeapgenError
from leapgen.oracle.emulator import BuildFailed, LaunchFailed
from leapgen.report.ledger import Ledger
from leapgen.runtime.host import ArgumentError, CompileError


@dataclass
class Section:
    """Checks of one kind or one shape."""

    title: str
    ledger: Ledger = field(default_factory=Ledger)


@contextmanager
def reported(ledger: Ledger) -> Iterator[None]:
    """A kernel that does not compile, or that does what would be an error on a GPU, is a failed
    check; a shape that the module refuses is an error of the request."""
    try:
        yield
    except (CompileError, BuildFailed, LaunchFailed) as error:
        ledger.equal("kernels compile and run", 1, 1, str(error))
    except ArgumentError as error:
        raise LeapgenError(str(error)) from error
