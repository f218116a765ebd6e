"""A plugin of vLLM: quantized recurrent states in the pages of a stock engine.

Installed with leapgen (entry point group `vllm.general_plugins`); nothing changes in an engine that
is started without the option

    LLM(model, additional_config={"leapgen": {"format": "leapquant-int8"}})

With it, the pages of the served layers hold a leapgen pool's tensors instead of FP32 states.
Prompts run on the engine's kernels and FP32 states, which are quantized on the way into the page;
every decoded token is one step of a generated module. See `settings` for the options and for what
is refused, `page` for the layout, `layers` for the calls, `engine` for the versions.
"""

from __future__ import annotations


def register() -> None:
    """Tell the engine about the model classes, by name: nothing of a model is imported yet.

    Called by vLLM in each of its processes, any number of times.
    """
    from leapgen.integrations.vllm import engine

    engine.register_models()
