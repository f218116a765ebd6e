"""What the plugin refuses, on real configs of the engine, before a weight is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm")

from vllm.config import KVTransferConfig  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.models import ModelRegistry  # noqa: E402
from vllm_models import Job, engine_options  # noqa: E402

from leapgen.diagnostics import LeapgenError  # noqa: E402
from leapgen.integrations.vllm import engine, models, register  # noqa: E402
from leapgen.integrations.vllm.recipe import check_blocks, page_of  # noqa: E402
from leapgen.integrations.vllm.settings import Settings  # noqa: E402
from leapgen.runtime.host import ArgumentError  # noqa: E402

Start = Callable[..., Any]


@pytest.fixture
def start(folder: Path) -> Start:
    """Build the model of an engine, as its worker does, up to its first weight."""

    def run(leapgen: Any = True, change: Callable[[Any], None] | None = None, **more: Any) -> Any:
        config = EngineArgs(**engine_options(folder, leapgen, **more)).create_engine_config()
        if change is not None:
            change(config)
        name = config.model_config.architecture
        model, _ = ModelRegistry.resolve_model_cls(name, model_config=config.model_config)
        return model(vllm_config=config)

    return run


def connector() -> Any:
    return KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")


def drafts() -> dict[str, Any]:
    return {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"speculative_config": drafts()}, "speculative_config: expected none: .* found ngram"),
        ({"kv_transfer_config": connector()}, "kv_transfer_config: .* found ExampleConnector"),
        ({"enable_lora": True}, "lora_config: expected none: .*, found LoRA"),
        ({"leapgen": {"bits": 4}}, "expected options among .*, found bits"),
        ({"leapgen": {"format": "int3"}}, "int3"),
        ({"leapgen": {"compensators": 99}}, "compensators: expected at most 64, found 99"),
        ({"leapgen": {"format": "fp32-step", "window": 4}}, "window: expected 1, .* found 4"),
        ({"hf_overrides": {"linear_key_head_dim": 20}}, "K: expected an integer .* 8, found 20"),
    ],
)
def test_refused_before_a_weight_is_made(
    start: Start, record_property: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises((ArgumentError, LeapgenError), match=message) as caught:
        start(**more)
    record_property("refused", str(caught.value).splitlines()[0])


def test_states_in_every_block(start: Start, record_property: Any) -> None:
    """A mode of older engines, which writes states of their own into blocks."""

    def change(config: Any) -> None:
        object.__setattr__(config.cache_config, "mamba_cache_mode", "all")

    with pytest.raises(ArgumentError, match=r"mamba_cache_mode: .* found all") as caught:
        start(change=change)
    record_property("refused", str(caught.value))


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0.0"])
def test_versions(
    start: Start, monkeypatch: pytest.MonkeyPatch, record_property: Any, version: str
) -> None:
    monkeypatch.setattr(engine.vllm, "__version__", version)
    with pytest.raises(ArgumentError, match=f"vllm: expected a tested .* found {version}") as e:
        start()
    record_property("refused", str(e.value))


@pytest.mark.parametrize("name", ["KimiK3ForConditionalGeneration"])
def test_other_layers(record_property: Any, name: str) -> None:
    model = getattr(models, name)
    config = SimpleNamespace(additional_config={"leapgen": True}, cache_config=None)
    with pytest.raises(ArgumentError, match=rf"expected no option for {name}: its layer") as e:
        model.get_mamba_state_shape_from_config(config)
    record_property("refused", str(e.value))
    with pytest.raises(ArgumentError, match=name):
        model(vllm_config=config)


def test_gates_without_a_choice() -> None:
    shapes, kimi = ((3, 96), (2, 16, 16)), {"gate_lower_bound": -3.0}
    config = SimpleNamespace(linear_attn_config=kimi)
    types = (torch.bfloat16, torch.float32)
    with pytest.raises(ArgumentError, match=r"gate_lower_bound: expected none or -5.0, found -3"):
        page_of("kda", Settings(), 2, shapes, types, config)
    kimi["gate_lower_bound"] = -5.0
    bounded = page_of("kda", Settings(), 2, shapes, types, config).module
    kimi["gate_lower_bound"] = None
    plain = page_of("kda", Settings(), 2, shapes, types, config).module
    assert bounded.digest != plain.digest
    assert "-5" in Path(bounded.kernels["step"].build.__code__.co_filename).read_text()


def test_windows_that_do_not_divide_a_block() -> None:
    cache = SimpleNamespace(mamba_cache_mode="align", mamba_block_size=256)
    page: Any = SimpleNamespace(shape=SimpleNamespace(P=48))
    config = SimpleNamespace(cache_config=cache)
    check_blocks(Settings(), page, config)
    with pytest.raises(ArgumentError, match="copy_records: expected true, or a window that div"):
        check_blocks(Settings(copy_records=False), page, config)


def test_an_engine_says_why_it_does_not_start(job: Job, record_property: Any) -> None:
    """All the way, as a user sees it."""
    said = job(leapgen=True, options={"speculative_config": drafts()}, fails=True)["error"]
    assert "speculative_config: expected none" in said
    record_property("engine", said)


def test_registering_twice() -> None:
    register()
    register()
    found = ModelRegistry.models["Qwen3NextForCausalLM"]
    assert found.module_name == "leapgen.integrations.vllm.models"
    assert not hasattr(models, "LlamaForCausalLM")
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = models.Other


@pytest.mark.parametrize(("version", "replaced"), [("0.33.0", False), ("0.32.1", True)])
def test_layers_are_replaced_in_tested_versions_only(
    monkeypatch: pytest.MonkeyPatch, version: str, replaced: bool
) -> None:
    """An engine that was not tested still starts without the option."""
    seen: list[str] = []
    monkeypatch.setattr(engine.vllm, "__version__", version)
    monkeypatch.setattr(engine, "replace_layer", lambda name, _: seen.append(name))
    vars(models).pop("Qwen3NextForCausalLM", None)
    made = models.Qwen3NextForCausalLM
    assert issubclass(made, models.PagedModel)
    assert bool(seen) == replaced


def test_places_of_another_version_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(module_name="vllm.elsewhere")
    monkeypatch.setitem(ModelRegistry.models, "Qwen3NextForCausalLM", there)
    register()
    assert ModelRegistry.models["Qwen3NextForCausalLM"] is there
