"""What the derivation saves in every shipped recurrence, and a split that it refuses."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from leapgen import paths, pipeline
from leapgen.algebra.derive import derive
from leapgen.algebra.lower import lower
from leapgen.algebra.window import DecaySource, Window
from leapgen.diagnostics import Diagnostics
from leapgen.schedule.plan import Plan
from leapgen.schedule.records import record_bytes, record_size
from leapgen.spec.loader import loads

STORED, CONSTANT, KEY, NONE = (
    *(DecaySource.STORED, DecaySource.CONSTANT, DecaySource.KEY, DecaySource.NONE),
)
# Values of a token's records, reads of its one pass, and where decays come from. What follows from
# something else is not stored: decays that are constant or told by the key.
EXPECTED = {
    "linear_attention": ("K + V", 1, NONE),
    "retnet": ("K + V", 1, CONSTANT),
    "lightning": ("K + V", 1, CONSTANT),
    "mamba2": ("1 + K + V", 1, STORED),
    "simple_gla": ("1 + K + V", 1, STORED),
    "gla": ("2K + V", 1, STORED),
    "rwkv6": ("2K + V", 1, STORED),
    "hgrn2": ("K + V", 1, KEY),
    "deltanet": ("K + V", 2, NONE),
    "gdn": ("1 + K + V", 2, STORED),
    "kda": ("2K + V", 2, STORED),
    "gdn2": ("2K + V", 2, STORED),
    "comba": ("1 + K + V", 2, STORED),
    "deltaproduct": ("2K + 2V", 3, NONE),
    "deltaproduct three": ("3K + 3V", 4, NONE),
    "gated_deltaproduct": ("1 + 2K + 2V", 3, STORED),
    "gated_deltaproduct three": ("1 + 3K + 3V", 4, STORED),
    "rwkv7": ("3K + 2V", 2, STORED),
    "dplr": ("3K + 2V", 2, STORED),
    "iplr": ("2K + 2V", 2, NONE),
}
AT_128 = {  # the numbers at 128 x 128 channels
    "K + V": 256,
    "1 + K + V": 257,
    "2K + V": 384,
    "2K + 2V": 512,
    "1 + 2K + 2V": 513,
    "3K + 2V": 640,
    "3K + 3V": 768,
    "1 + 3K + 3V": 769,
}


@functools.cache
def window_of(name: str) -> tuple[Window, Plan]:
    stem, _, products = name.partition(" ")
    spec = pipeline.parse(stem, {"products": products} if products else {})
    window = derive(lower(spec), prove=False)
    return window, pipeline.schedule(window, spec, "cpu")


def test_every_shipped_spec_is_expected() -> None:
    assert {p.stem for p in paths.shipped_specs()} == {name.split()[0] for name in EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_token_records_and_reads(name: str) -> None:
    window, plan = window_of(name)
    record, reads, source = EXPECTED[name]
    size = record_size(plan.buffers)
    assert size.formula == record
    assert size.count(128, 128) == AT_128[record]
    assert len(window.reads) == reads
    assert window.decay_source is source
    assert ("record_decay" in {b.name for b in plan.buffers}) == (source is STORED)
    assert ("token_decay" in {b.name for b in plan.buffers}) == (source is CONSTANT)


@pytest.mark.parametrize("name", EXPECTED)
def test_keys_are_stored_once_a_key_head(name: str) -> None:
    _, plan = window_of(name)
    size = record_size(plan.buffers)
    assert size.shared == size.keys - (size.formula.startswith(("2K + V", "3K + 2V")))
    one, four = (record_bytes(plan.buffers, plan.shape(128, 128, 2, 2 * n)) for n in (1, 4))
    assert one - four == size.shared * 128 * 2 * 3 / 4


SPLITS = {  # of the erase: key and read vector
    "as printed in the paper": "{key: kappa, read: a * kappa}",
    "corrected": "{key: a * kappa, read: kappa}",
}


def erase(split: str) -> str:
    text = (paths.data("specs") / "rwkv7.yaml").read_text()
    assert SPLITS["corrected"] in text
    return text.replace(SPLITS["corrected"], SPLITS[split])


def test_the_printed_split_of_an_erase_is_refused() -> None:
    """LeapQuant's split is written for a state that is transposed against its own."""
    with pytest.raises(Diagnostics) as caught:
        derive(lower(loads(erase("as printed in the paper"), "rwkv7.yaml")))
    (d,) = caught.value.items
    assert d.code == "native-mismatch"
    assert d.span is not None
    assert d.span.line == text_line(erase("corrected"), "  native:")
    text = str(caught.value)
    assert "the coefficient of S[m, j]" in text
    assert "native    -a[i]*kappa[i]*kappa[m]" in text
    assert "sub-steps -a[m]*kappa[i]*kappa[m]" in text


def text_line(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def test_the_corrected_split_is_proved() -> None:
    window = derive(lower(loads(erase("corrected"), str(Path("rwkv7.yaml")))))
    assert window.proofs[0].title == "The native update equals the sub-steps"
