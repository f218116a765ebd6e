"""The engine's models, which tell it the sizes of pages before any layer exists."""

from __future__ import annotations

import importlib
from typing import Any

from leapgen.integrations.page import Page
from leapgen.integrations.state import refused
from leapgen.integrations.vllm import engine
from leapgen.integrations.vllm.recipe import page_of
from leapgen.integrations.vllm.settings import KEY, Settings, read


class PagedModel:
    """Mixed into a model of the engine; without the plugin's option it is the engine's own."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        settings, self.leapgen_copied = read(vllm_config), 0
        if settings is not None:
            page = self._page(vllm_config, settings)
            self.leapgen_copied = page.copied(settings.copy_records)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]

    @classmethod
    def _page(cls, vllm_config: Any, settings: Settings) -> Page:
        """Errors: ArgumentError for a version that was not tested, or a config without a spec."""
        engine.require_tested_version()
        shapes = super().get_mamba_state_shape_from_config(vllm_config)  # type: ignore[misc]
        dtypes = super().get_mamba_state_dtype_from_config(vllm_config)  # type: ignore[misc]
        config = vllm_config.model_config.hf_text_config
        ranks = vllm_config.parallel_config.tensor_parallel_size
        linear = getattr(config, "linear_attn_config", None)
        if linear is None:
            spec, heads = "gdn", config.linear_num_key_heads
        else:
            spec, heads = "kda", linear["num_heads"]
        return page_of(spec, settings, heads // ranks, shapes, dtypes, config)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
        """Of the layers' pages."""
        settings = read(vllm_config)
        if settings is None:
            return super().get_mamba_state_shape_from_config(vllm_config)  # type: ignore[misc]
        return cls._page(vllm_config, settings).shapes

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> Any:
        """Of the layers' pages."""
        settings = read(vllm_config)
        if settings is None:
            return super().get_mamba_state_dtype_from_config(vllm_config)  # type: ignore[misc]
        return cls._page(vllm_config, settings).dtypes

    def get_mamba_state_copy_funcs(self, mamba_types: set[Any]) -> Any:
        """What follows a request into its next block."""
        if not self.leapgen_copied:
            return super().get_mamba_state_copy_funcs(mamba_types)  # type: ignore[misc]
        return dict.fromkeys(mamba_types, engine.copy_functions(self.leapgen_copied))


class RefusedModel:
    """Mixed into a model whose layers the plugin does not know."""

    reason: str

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        self._refuse(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]

    @classmethod
    def _refuse(cls, vllm_config: Any) -> None:
        if read(vllm_config) is not None:
            expected = f"no option for {cls.__name__}: {cls.reason}"
            raise refused(f"additional_config[{KEY!r}]", expected, "one")

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
        """The engine's, once nothing is to be refused."""
        cls._refuse(vllm_config)
        return super().get_mamba_state_shape_from_config(vllm_config)  # type: ignore[misc]


def _subclass(architecture: str) -> type:
    _, verdict = engine.MODELS[architecture]
    served = verdict == "served"
    mixin: type = PagedModel if served else RefusedModel
    body = {"__module__": __name__, "__doc__": mixin.__doc__}
    if not served:
        body["reason"] = verdict
    return type(architecture, (mixin, engine.model_class(architecture)), body)


def __getattr__(name: str) -> type:
    """The subclass of an architecture, made when the engine first asks for it."""
    if name not in engine.MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if engine.tested():
        # Elsewhere the layers may have moved; engines without the option must start all the same.
        importlib.import_module("leapgen.integrations.vllm.layers").install()
    made = globals()[name] = _subclass(name)
    return made
