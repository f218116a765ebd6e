"""Whole files: scalars, choices, the shipped specs, recurrences of other models, the schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from leapgen.diagnostics import Diagnostics, Report
from leapgen.spec import schema
from leapgen.spec.loader import combinations, load
from leapgen.spec.model import Spec
from leapgen.spec.reader import read
from leapgen.spec.tree import Items, Leaf, Table, Tree, scalar
from leapgen.tensors import Axis, Per

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("010", 10),
        ("-7", -7),
        ("+7", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("12_0", "12_0"),
        ("0b11", "0b11"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("<<", "<<"),
        ("=", "="),
        ("e5", "e5"),
        ("1e", "1e"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_quoted_scalars_are_strings() -> None:
    tree = read(Report("", "[1, '1', \"true\", |\n  1\n]".replace(", |\n  1\n", "")))
    assert isinstance(tree, Items)
    assert [v.value for v in tree if isinstance(v, Leaf)] == [1, "1", "true"]


def _plain(tree: Tree) -> Any:
    """The tree without places."""
    if isinstance(tree, Table):
        return {name: _plain(entry.value) for name, entry in tree.entries.items()}
    if isinstance(tree, Items):
        return [_plain(value) for value in tree]
    assert isinstance(tree, Leaf)
    return tree.value


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_reader_agrees_with_yaml(path: Path) -> None:
    text = path.read_text()
    assert _plain(read(Report("", text))) == yaml.safe_load(text)


def test_shipped_specs() -> None:
    assert {"gdn", "kda"} < {p.stem for p in SHIPPED}
    for path in SHIPPED:
        assert load(path).name == path.stem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_pair_of_alternatives_loads(path: Path) -> None:
    spec, pairs = load(path), combinations(path)
    met = {frozenset(two) for p in pairs for two in _twos(p)}
    options = [(c, a) for c, alternatives in spec.choices.items() for a in alternatives]
    wanted = {frozenset((x, y)) for x in options for y in options if x[0] != y[0]}
    assert met == wanted
    assert pairs[0] == {c: alternatives[0] for c, alternatives in spec.choices.items()}
    for picks in pairs:
        assert load(path, picks).picks == picks


def _twos(picks: Mapping[str, str]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    items = list(picks.items())
    return [(x, y) for x in items for y in items if x != y]


def _names(spec: Spec) -> tuple[list[str], dict[str, str]]:
    return [i.name for i in spec.inputs], {d.name: d.formula.text for d in spec.definitions}


def test_choices_patch_inputs_and_definitions() -> None:
    path = ROOT / "specs/kda.yaml"
    inputs, definitions = _names(load(path))
    assert inputs == ["q", "k", "v", "a", "b", "A_log", "dt_bias"]
    assert list(definitions) == ["scale", "q", "k", "g", "beta"]

    spec = load(path, {"gate": "log_decay", "beta": "activated", "norm": "none"})
    inputs, definitions = _names(spec)
    assert inputs == ["q", "k", "v", "g", "beta"]
    assert definitions == {"scale": "K**-0.5", "q": "q * scale"}
    assert spec.nondefault_picks == ("log_decay", "activated", "none")

    inputs, definitions = _names(load(path, {"gate": "lower_bound_plain", "scale": "one"}))
    assert inputs == ["q", "k", "v", "a", "b", "dt_bias"]
    assert definitions["g"] == "-5 * sigmoid(a + dt_bias)"
    assert definitions["scale"] == "1"
    assert list(definitions) == ["scale", "q", "k", "g", "beta"]


def test_gdn_and_kda_differ_where_they_should() -> None:
    gdn, kda = load(ROOT / "specs/gdn.yaml"), load(ROOT / "specs/kda.yaml")
    assert [gdn.input(n).axis for n in ("a", "A_log", "dt_bias")] == [Axis.SCALAR] * 3
    assert [kda.input(n).axis for n in ("a", "A_log", "dt_bias")] == [
        Axis.KEY,
        Axis.SCALAR,
        Axis.KEY,
    ]
    for spec, kind in ((gdn, "scalar"), (kda, "vector")):
        (step,) = spec.substeps
        assert step.decay.kind == kind
        assert [i.name for i in spec.inputs if i.constant] == ["A_log", "dt_bias"]
        assert [i.name for i in spec.inputs if i.per is Per.KEY] == ["q", "k"]
        assert spec.output.of == "updated"
        assert spec.output.dtype == "bf16"
        assert (spec.state.format, spec.state.window) == ("leapquant-int8", 16)


def test_published_models() -> None:
    models = {
        m.name: m for name in ("gdn", "kda") for m in load(ROOT / f"specs/{name}.yaml").models
    }
    assert len(models) == 16
    olmo = models["olmo-hybrid-7b"]
    assert (olmo.H, olmo.HV, olmo.K, olmo.V, olmo.picks["beta"]) == (30, 30, 96, 192, "raw2")
    for name in ("kimi-k3", "glm-5.3-flash", "ling-3.0-flash", "edge0-8b-a1b"):
        assert models[name].picks["gate"] == "lower_bound"
    assert models["kimi-linear-48b-a3b"].picks["gate"] == "softplus"
    assert models["qwen3.5-2b"].layers is None


def test_state_options_replace_the_file() -> None:
    path = ROOT / "specs/gdn.yaml"
    spec = load(path, state={"format": "bf16-window", "window": "8", "compensators": None})
    assert (spec.state.format, spec.state.window) == ("bf16-window", 8)
    assert spec.state.compensators is None
    with pytest.raises(Diagnostics, match="format-option"):
        load(path, state={"format": "fp32-window", "compensators": 4})


def test_specs_are_frozen() -> None:
    spec = load(ROOT / "specs/gdn.yaml")
    with pytest.raises(FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]
    with pytest.raises(KeyError):
        spec.input("z")


def test_schema_is_current(golden: Callable[[str, Path], None]) -> None:
    golden(schema.text(), ROOT / "specs/schema.json")


def _schema_errors(text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema.schema())
    return [e.message for e in validator.iter_errors(_plain(read(Report("", text))))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_schema_accepts_the_shipped_specs(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    assert not _schema_errors(path.read_text())


@pytest.mark.parametrize(
    "name", ["dimension", "unknown_key", "missing_keys", "format", "window_zero", "input_dtype"]
)
def test_schema_refuses_what_the_loader_refuses(name: str) -> None:
    assert _schema_errors((ROOT / f"tests/spec/bad/{name}.yaml").read_text())
