"""Kernels of other packages that a benchmark runs beside ours, on the same inputs and states.

A peer is found by name in PEERS, or as `package.module:attribute`, which names any object that
keeps the protocol below. Packages are imported when a peer is asked for, never before; one that
cannot be imported says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from leapgen.diagnostics import LeapgenError, listing
from leapgen.integrations.fla import FusedRecurrent
from leapgen.integrations.vllm_peer import PackedDecode
from leapgen.runtime.host import Shape


@dataclass(frozen=True)
class Case:
    """One configuration of a benchmark, the same for all who take part in it.

    recurrence  name of the spec
    picks       alternatives of its choices that differ from the default
    shape       heads, channels, window
    rows        rows of a launch
    inputs      one token each: the spec's tensors by name, [rows, heads, axis], constants without
                rows
    states      FP32 [sets, rows, HV, V, K]: start states; launches visit the sets in turn, so that
                no cache holds what a launch reads
    """

    recurrence: str
    picks: tuple[str, ...]
    shape: Shape
    rows: int
    inputs: tuple[Mapping[str, torch.Tensor], ...]
    states: torch.Tensor

    @property
    def sets(self) -> int:
        """How many sets of states."""
        return self.states.shape[0]

    @property
    def tokens(self) -> int:
        """How many tokens have inputs of their own."""
        return len(self.inputs)


class Session(Protocol):
    """A peer at work on one case. Nothing in it may synchronise: graphs capture it."""

    def restore(self) -> None:
        """Back to the case's start states."""

    def step(self, chosen: int, token: int) -> torch.Tensor:
        """One token (modulo the case's number of them) for all rows of set `chosen`; the output,
        [rows, HV, V] or with axes of one between."""


class Peer(Protocol):
    """Someone else's decode kernel.

    name         what `--against` calls it
    title        what tables and plots call it
    state_bytes  of an element of its state, which it reads and writes at every token
    """

    @property
    def name(self) -> str:
        """See above."""

    @property
    def title(self) -> str:
        """See above."""

    @property
    def state_bytes(self) -> int:
        """See above."""

    def lacks(self, recurrence: str, picks: tuple[str, ...]) -> str:
        """Why it cannot run this recurrence here; empty if it can."""

    def version(self) -> str:
        """Package and version, as installed: `name 1.2.3`."""

    def open(self, case: Case) -> Session:
        """Tensors in the peer's own layout, ready to run."""


PEERS: tuple[Peer, ...] = (
    FusedRecurrent("fla", v_first=True),
    FusedRecurrent("fla-k-first", v_first=False),
    PackedDecode("vllm", "fp32"),
    PackedDecode("vllm-bf16", "bf16"),
)


def failures() -> tuple[type[Exception], ...]:
    """What a peer may raise while it compiles or runs; Triton has errors of its own."""
    found: list[type[Exception]] = [RuntimeError, ValueError, TypeError, AssertionError]
    for module in ("triton.compiler.errors", "triton.runtime.errors"):
        try:
            found.append(importlib.import_module(module).TritonError)
        except (ImportError, AttributeError):
            continue
    return tuple(found)


def peer_named(name: str) -> Peer:
    """The peer of a name. Errors: LeapgenError naming the known, or why an import failed."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    module, colon, attribute = name.partition(":")
    if not colon:
        raise LeapgenError(
            f"unknown peer `{name}`; known: {listing(p.name for p in PEERS)}, any format, and "
            "package.module:attribute"
        )
    try:
        return cast(Peer, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise LeapgenError(f"peer `{name}`: {error}") from None
