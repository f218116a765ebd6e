"""The modules and FP32 functions that the models of `decode_models` can be run with."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from leapgen.integrations.decode_models import DecodeModel
from leapgen.integrations.fp32_state import Call, fla_call, torch_call
from leapgen.integrations.transformers_hooks import original
from leapgen.runtime.host import Module
from leapgen.runtime.module import load


def module_for(shape: DecodeModel, device: torch.device, format: str) -> Module:
    """The quantized state's module, taking what the model's functions are given."""
    picks: dict[str, Any] = dict(shape.family.picks)
    arch = "cpu" if device.type == "cpu" else None
    return load(shape.family.spec, arch=arch, format=format, **picks)


def sizes_of(shape: DecodeModel, config: Any) -> dict[str, int]:
    """H, HV, K, V."""
    return {word: int(getattr(config, name)) for word, name in shape.family.sizes.items()}


def fp32_call(shape: DecodeModel, device: torch.device) -> tuple[Call, str, str]:
    """Of a layer in FP32: the call, its title, and how it stores the new state."""
    family = shape.family
    if device.type == "cuda":
        call, how = fla_call(family.spec)
        return call, "FLA fused_recurrent, FP32", how
    function = original(getattr(importlib.import_module(family.module), family.decode))
    return torch_call(function), "transformers' own function, FP32", "copied back"
