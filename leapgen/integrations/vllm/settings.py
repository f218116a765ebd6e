"""The options of the plugin, and the ways of running an engine that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from leapgen.diagnostics import listing
from leapgen.integrations.state import refused

KEY = "leapgen"
"""Of `additional_config`."""
_TYPES: Mapping[str, type] = {
    "format": str,
    "window": int,
    "compensators": int,
    "copy_records": bool,
}


@dataclass(frozen=True)
class Settings:
    """What `additional_config["leapgen"]` says.

    format        state format in place of the spec's
    window        tokens between flushes in place of the spec's
    compensators  rank-one terms in place of the format's
    copy_records  whether a window's records follow the state from block to block. Blocks end where
                  windows do, so there are none to follow at the end of a block of decoded tokens;
                  they are copied all the same unless this says no
    """

    format: str | None = None
    window: int | None = None
    compensators: int | None = None
    copy_records: bool = True

    @property
    def sizes(self) -> dict[str, int]:
        """The shape-time numbers among them, as `Module.shape` takes them."""
        sizes = {"window": self.window, "compensators": self.compensators}
        return {name: size for name, size in sizes.items() if size is not None}


def read(config: Any) -> Settings | None:
    """The settings of an engine's config, checked; None where the plugin is to do nothing.

    Errors: ArgumentError naming the option, or the way of running that is refused.
    """
    extra = getattr(config, "additional_config", None)
    given = extra.get(KEY) if isinstance(extra, Mapping) else None
    if given is None or given is False:
        return None
    settings = _parse(given)
    for name, expected, found in _unsupported(config):
        raise refused(name, expected, found)
    return settings


def _parse(given: Any) -> Settings:
    if given is True:
        return Settings()
    name = f"additional_config[{KEY!r}]"
    if not isinstance(given, Mapping):
        raise refused(name, "true or a mapping of options", type(given).__name__)
    known = [field.name for field in fields(Settings)]
    for option, value in given.items():
        if option not in known:
            raise refused(name, f"options among {listing(known)}", option)
        kind = _TYPES[option]
        # True is an int to Python.
        if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
            raise refused(f"{name}[{option!r}]", kind.__name__, repr(value))
    return Settings(**given)


def _unsupported(config: Any) -> Iterator[tuple[str, str, object]]:
    """Name, expectation and finding of each way of running that would go past the plugin: drafts
    that would be folded into the state, pages that others read or write, weights that are not
    where the layers look."""
    cache = getattr(config, "cache_config", None)
    given = getattr(config, "speculative_config", None)
    if given is not None:
        method = getattr(given, "method", given)
        yield "speculative_config", "none: drafts would enter the quantized state", method
    if (transfer := getattr(config, "kv_transfer_config", None)) is not None:
        connector = getattr(transfer, "kv_connector", transfer)
        yield "kv_transfer_config", "none: a connector's other end cannot read the pages", connector
    if getattr(config, "lora_config", None) is not None:
        yield "lora_config", "none: adapters on the projections are not tested", "LoRA"
    if (mode := getattr(cache, "mamba_cache_mode", "none")) not in ("none", "align"):
        yield "mamba_cache_mode", "none or align", mode
    if getattr(cache, "use_replayssm", False):
        yield "use_replayssm", "off: the records are leapgen's", "on"
