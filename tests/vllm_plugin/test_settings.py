"""Options, and the ways of running that are refused, on configs that look like the engine's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leapgen.integrations.vllm.settings import Settings, read
from leapgen.runtime.host import ArgumentError


def config(leapgen: Any = True, mode: str = "none", replay: bool = False, **more: Any) -> Any:
    cache = SimpleNamespace(mamba_cache_mode=mode, use_replayssm=replay)
    given = {"speculative_config": None, "kv_transfer_config": None, "lora_config": None, **more}
    return SimpleNamespace(additional_config={"leapgen": leapgen}, cache_config=cache, **given)


def test_inert_without_the_option() -> None:
    drafts = SimpleNamespace(method="ngram")
    for extra in ({}, {"other": 1}, {"leapgen": None}, {"leapgen": False}, None, object()):
        found = config(speculative_config=drafts)
        found.additional_config = extra
        assert read(found) is None


def test_options() -> None:
    assert read(config()) == Settings()
    assert read(config({})) == Settings()
    assert Settings().sizes == {}
    given = {"format": "fp32-window", "window": 8, "compensators": 2, "copy_records": False}
    found = read(config(given))
    assert found == Settings("fp32-window", 8, 2, False)
    assert found.sizes == {"window": 8, "compensators": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("int8", r"additional_config\['leapgen'\]: expected true or a mapping .*, found str"),
        ({"fromat": "x"}, r"\['leapgen'\]: expected options among .*`format`.*, found fromat"),
        ({"window": "16"}, r"\['leapgen'\]\['window'\]: expected int, found '16'"),
        ({"window": True}, r"\['window'\]: expected int, found True"),
        ({"copy_records": 0}, r"\['copy_records'\]: expected bool, found 0"),
    ],
)
def test_wrong_options(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read(config(given))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"speculative_config": SimpleNamespace(method="ngram")},
            "speculative_config: expected none: .*, found ngram",
        ),
        (
            {"kv_transfer_config": SimpleNamespace(kv_connector="Some")},
            "kv_transfer_config: expected none: .*, found Some",
        ),
        ({"lora_config": object()}, "lora_config: expected none: .*, found LoRA"),
        ({"mode": "all"}, "mamba_cache_mode: expected none or align, found all"),
        ({"replay": True}, "use_replayssm: expected off: .*, found on"),
    ],
)
def test_unsupported_ways_of_running(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read(config(**changes))
