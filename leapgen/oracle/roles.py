"""What each raw input of a spec is for, from the formulas that it reaches."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from leapgen.spec.expression import names
from leapgen.spec.model import Formula, Spec


class Role(Enum):
    """Where an input ends up; the first that applies."""

    DECAY = "decay"  # the log decay, perhaps others too
    GAIN = "gain"  # step sizes only
    VECTOR = "vector"  # keys, reads and the query, over key channels
    VALUE = "value"  # values and terms added to the output


def roles(spec: Spec) -> dict[str, Role]:
    """The role of every input."""
    decay = reaching(spec, (s.decay.log for s in spec.substeps))
    vectors = [f for s in spec.substeps for f in (s.key, s.read)] + [spec.output.query]
    vector = reaching(spec, vectors)
    value = reaching(spec, [*(s.value for s in spec.substeps), spec.output.add, spec.output.result])
    found = {}
    for x in spec.inputs:
        if x.name in decay:
            found[x.name] = Role.DECAY
        elif x.name in value and x.name not in vector:
            found[x.name] = Role.VALUE
        else:
            found[x.name] = Role.VECTOR if x.name in vector else Role.GAIN
    return found


def reaching(spec: Spec, formulas: Iterable[Formula | None]) -> set[str]:
    """Inputs that some of these formulas depend on."""
    wanted = {name for f in formulas if f is not None for name in names(f.node)}
    reached: set[str] = set()
    # From the last definition back: a name on the right means what an earlier line gave it.
    for definition in reversed(spec.definitions):
        if definition.name in wanted:
            wanted.discard(definition.name)
            wanted.update(names(definition.formula.node))
    reached.update(wanted)
    return {x.name for x in spec.inputs if x.name in reached}
