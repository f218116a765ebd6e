"""What cannot be served is refused by name, before anything is touched."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

hf = pytest.importorskip("transformers")

from tiny_models import FAMILIES, build  # noqa: E402

import leapgen  # noqa: E402
from leapgen.diagnostics import LeapgenError  # noqa: E402
from leapgen.integrations import transformers as adapter_module  # noqa: E402
from leapgen.integrations import transformers_hooks as hooks  # noqa: E402
from leapgen.integrations.transformers import Unsupported, enable  # noqa: E402
from leapgen.runtime.host import ArgumentError  # noqa: E402


def functions() -> list[Any]:
    found = []
    for family in hooks.FAMILIES:
        module = importlib.import_module(family.module)
        found += [getattr(module, family.decode), getattr(module, family.prefill)]
    return found


@pytest.fixture
def untouched() -> Iterator[None]:
    """No function of any model is exchanged."""
    before = functions()
    yield
    assert all(a is b for a, b in zip(before, functions(), strict=True))


@pytest.mark.usefixtures("untouched")
class TestBeforeAnything:
    @pytest.mark.parametrize("version", ["5.16.3", "5.18.0", "4.57.1", "5.24.0.dev0"])
    def test_versions(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        monkeypatch.setattr(adapter_module.transformers, "__version__", version)
        with pytest.raises(Unsupported, match=f"transformers: expected a .* found {version}"):
            enable(FAMILIES["qwen3_5"]())

    def test_models_that_no_spec_matches(self) -> None:
        config = hf.LlamaConfig(num_hidden_layers=1)
        with pytest.raises(ArgumentError, match=r"model_or_config: expected .*, found llama"):
            enable(config)
        with pytest.raises(ArgumentError, match=r"model_or_config: expected .*, found str"):
            enable("a path")

    def test_sizes(self) -> None:
        config = FAMILIES["qwen3_5"]()
        config.linear_key_head_dim = 20
        with pytest.raises(ArgumentError, match=r"K: expected an integer .* 8, found 20"):
            enable(config)
        with pytest.raises(ArgumentError, match=r"slots: expected .* 1, found 0"):
            enable(FAMILIES["qwen3_5"](), slots=0)

    def test_specs_of_another_decay(self) -> None:
        for family, spec in (("qwen3_5", "kda"), ("kimi_linear", "gdn")):
            with pytest.raises(ArgumentError, match="spec: expected inputs"):
                enable(FAMILIES[family](), spec)

    def test_unknown_specs_and_formats(self) -> None:
        with pytest.raises(LeapgenError, match="nothing_such"):
            enable(FAMILIES["qwen3_5"](), "nothing_such")
        with pytest.raises(LeapgenError, match="int3"):
            enable(FAMILIES["qwen3_5"](), format="int3")

    def test_pools(self) -> None:
        config, sizes = FAMILIES["qwen3_5"](), {"H": 2, "HV": 4, "K": 32, "V": 16}
        picks = {"gate": "log_decay", "beta": "activated"}
        right = leapgen.load("gdn", arch="cpu", **picks)
        wrong = leapgen.load("gdn", arch="cpu", format="fp32-window", **picks)
        with pytest.raises(ArgumentError, match="pool: expected one made for"):
            enable(config, right, pools={i: wrong.allocate(2, **sizes) for i in (0, 1, 3)})
        with pytest.raises(ArgumentError, match=r"pools: expected one for each .*\[0, 1, 3\]"):
            enable(config, right, pools={0: right.allocate(2, **sizes)})
        small = {**sizes, "K": 16}
        with pytest.raises(ArgumentError, match=r"pools: expected .*'K': 32"):
            enable(config, right, pools={i: right.allocate(2, **small) for i in (0, 1, 3)})


def test_too_few_slots() -> None:
    """The batch is refused by its first layer; nobody's slots change."""
    model, tokens = build("qwen3_5"), torch.ones(3, 5, dtype=torch.long)
    adapter = enable(model, slots=4)
    first, second = adapter.cache(), adapter.cache()
    with torch.no_grad():
        model(tokens[:2], past_key_values=first)
        before = {i: pool["payload"].clone() for i, pool in adapter.pools.items()}
        with pytest.raises(ArgumentError, match=r"slots: expected at most 2 .* a batch of 3"):
            model(tokens, past_key_values=second)
    assert adapter.free == 2
    assert all(torch.equal(before[i], pool["payload"]) for i, pool in adapter.pools.items())


def test_another_batch_in_one_cache() -> None:
    model, tokens = build("qwen3_5"), torch.ones(3, 5, dtype=torch.long)
    cache = enable(model, slots=4).cache()
    with torch.no_grad():
        model(tokens[:2], past_key_values=cache)
        with pytest.raises(ArgumentError, match="input_ids: expected 2 rows"):
            model(tokens, past_key_values=cache)


def test_beams_and_drafts() -> None:
    model, tokens = build("qwen3_5"), torch.full((1, 5), 7)
    adapter = enable(model, slots=4)
    options = {"max_new_tokens": 4, "do_sample": False}
    with pytest.raises(Unsupported, match="expected num_beams=1"):
        model.generate(tokens, past_key_values=adapter.cache(), num_beams=2, **options)
    with pytest.raises((Unsupported, ValueError)):
        model.generate(
            tokens, past_key_values=adapter.cache(), prompt_lookup_num_tokens=2, **options
        )
    for call in ("crop", "batch_select_indices", "batch_repeat_interleave"):
        with pytest.raises(Unsupported):
            getattr(adapter.cache(), call)(torch.tensor([0]))


def test_disable_restores_the_models() -> None:
    before = functions()
    adapter = enable(FAMILIES["qwen3_5"](), slots=1)
    enable(FAMILIES["qwen3_5"](), slots=1)
    assert functions() != before
    adapter.disable()
    assert functions() == before


def test_scans_with_another_gate() -> None:
    """A selective state is stepped only as models call it: raw steps, the gate outside."""
    adapter = enable(build("bamba"), slots=1)
    decode = importlib.import_module(adapter.family.module).mamba2_selective_state_update
    state, none = adapter.cache().states[0], torch.zeros(1)
    for options, found in (({"z": none, "dt_softplus": True}, "True"), ({"z": None}, "None")):
        with pytest.raises(ArgumentError, match=f"dt_softplus: expected True, .* found {found}"):
            decode(state, *[none] * 6, dt_bias=none, **options)
