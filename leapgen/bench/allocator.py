"""Torch's allocator: held to some bytes of the device, emptied, and asked for its peak."""

from __future__ import annotations

import gc

import torch


class held_to:
    """Holds torch's allocator to some bytes of the device."""

    def __init__(self, limit: int, device: torch.device) -> None:
        self.limit, self.device = limit, device

    def __enter__(self) -> None:
        self._set(self.limit)

    def __exit__(self, *_: object) -> None:
        self._set(None)

    def _set(self, limit: int | None) -> None:
        if self.device.type != "cuda":
            return
        total = torch.cuda.get_device_properties(self.device).total_memory
        share = 1.0 if limit is None else min(1.0, limit / total)
        torch.cuda.set_per_process_memory_fraction(share, self.device)


def reset_peak() -> None:
    """Gives back what is free, and forgets the peak."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> int:
    """The most bytes that it has held since; 0 without a GPU."""
    return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
