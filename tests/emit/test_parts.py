"""Which changes of a module's text concern a kernel: those of what its builder reaches."""

from __future__ import annotations

import pytest

from leapgen import pipeline
from leapgen.emit.parts import kernel_digest

TEXT = """
import somewhere
LIMIT = 4
TABLE, OTHER = 1, 2
PASS_CONFIGS = {"fast": 1}


def shared(x):
    return x + LIMIT


def config_step(K):
    return {"threads": TABLE}


@plain
def build_step(K):
    def copy():  # its own variable, not the module's function
        return shared(K) * TABLE

    return copy


def config_copy(K):
    return {}


def build_copy(K):
    return OTHER + K


MODULE = (build_step, build_copy)
"""


@pytest.mark.parametrize(
    ("old", "new", "kernels"),
    [
        ("LIMIT = 4", "LIMIT = 5", {"step"}),  # through a helper
        ("x + LIMIT", "x - LIMIT", {"step"}),
        ("OTHER + K", "OTHER - K", {"copy"}),
        (
            "TABLE, OTHER = 1, 2",
            "TABLE, OTHER = 3, 2",
            {"step", "copy"},
        ),  # one statement binds both
        ('"threads": TABLE', '"threads": 7', set()),  # a rule, not a kernel: configs are kept
        ('{"fast": 1}', '{"fast": 0}', {"step", "copy"}),  # how all are compiled
        ("@plain\n", "@other\n", {"step"}),
        ("MODULE = (build_step, build_copy)", "MODULE = ()", set()),
        ("    return x + LIMIT", "    # why\n    return x + LIMIT", set()),
        ("import somewhere", "import elsewhere", set()),
    ],
)
def test_what_a_change_concerns(old: str, new: str, kernels: set[str]) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    for kernel in ("step", "copy"):
        same = kernel_digest(TEXT, (kernel,)) == kernel_digest(changed, (kernel,))
        assert same == (kernel not in kernels), kernel


def test_kernels_of_a_module_differ_and_its_tail_does_not_count() -> None:
    text = pipeline.compile("gdn", "cpu").source.text
    kernels = ("step", "flush", "copy", "reset", "materialize", "load_state")
    assert len({kernel_digest(text, (k,)) for k in kernels}) == len(kernels)
    assert kernel_digest(text) == kernel_digest(text + "\n\nMORE = 1\n")
    assert kernel_digest(text) != kernel_digest(text.replace("exp2", "exp"))
