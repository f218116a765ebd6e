"""Recurrences that nobody published: spec files drawn from the language by hypothesis.

A draw has one to three sub-steps, each with a decay (none, constant, scalar or vector), a key, a
read (none, along the key, near it, weighted; of the state before or after the decay), a value and a
gain; an output of the state after or before the token, with a bonus, a skip or a gate; every tensor
for key heads or value heads. The native update is written from the same parts as nested matrices.

Keys have unit length, gains lie in (0, 1) or (0, 2) and reads lie near keys, so that no state runs
away: bounds of kernels against float64 are for recurrences that forget. Nor does a token take back
what it has just written: no sub-step erases along an earlier one's key, and only the first one may
replace what is there as a whole. What is left would be rounding, and bounds are relative to that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

Draw = st.DrawFn

HEADS = st.sampled_from(["key", "value"])
KEY_DIMS, VALUE_DIMS = st.sampled_from([16, 24, 64]), st.sampled_from([24, 8, 32])
FORMATS = st.sampled_from(["leapquant-int8", "fp32-window", "bf16-window", "bf16-step"])


@dataclass
class Text:
    """A spec file as it grows: inputs and definitions in order."""

    draw: Draw
    inputs: dict[str, str] = field(default_factory=dict)
    lets: dict[str, str] = field(default_factory=dict)

    def input(self, name: str, per: str, axes: str = "", constant: bool = False) -> str:
        """Declares an input, once."""
        parts = [f"per: {per}", *([f"axes: {axes}"] if axes else [])]
        dtype = "fp32" if constant else self.draw(st.sampled_from(["bf16", "fp16", "fp32"]))
        parts += [f"dtype: {dtype}", *(["constant: true"] if constant else [])]
        self.inputs.setdefault(name, "{" + ", ".join(parts) + "}")
        return name

    def let(self, name: str, formula: str) -> str:
        """Defines a name, once."""
        self.lets.setdefault(name, formula)
        return name


@dataclass(frozen=True)
class SubStep:
    """One drawn sub-step: the line of the file, and what the native update says of it.

    log    name of the log decay; empty for none
    axes   K for a vector decay
    eff    read vector of the state before the decay; empty for none
    """

    line: str
    log: str
    axes: str
    key: str
    eff: str
    value: str
    gain: str
    wide_gain: bool

    def native(self, S: str) -> str:
        """The state after it, of a text for the state before."""
        grown, diagonal = f"{S}", "I"
        if self.log:
            factor = f"exp({self.log})"
            grown = f"diag({factor}) @ {S}" if self.axes else f"{factor} * {S}"
            diagonal = f"diag({factor})" if self.axes else f"{factor} * I"
        gain = f"{self.gain} * " if self.gain else ""
        if not self.eff:
            return f"({grown} + {self.key} @ ({gain}{self.value}).T)"
        if self.wide_gain or not self.value:
            value = f"{self.value} - " if self.value else "-"
            return f"({grown} + {self.key} @ ({gain}({value}{S}.T @ {self.eff})).T)"
        kept = f"({diagonal} - {gain}{self.key} @ {self.eff}.T) @ {S}"
        return f"({kept} + {gain}{self.key} @ {self.value}.T)"


def _decay(text: Text, j: int) -> tuple[str, str, str]:
    """(mapping of the file or nothing, name of the log decay, its axes)."""
    kind = text.draw(st.sampled_from(["none", "constant", "scalar", "vector"]))
    if kind == "none":
        return "", "", ""
    axes = "K" if kind == "vector" or (kind == "constant" and text.draw(st.booleans())) else ""
    raw = text.input(f"a{j}", text.draw(HEADS), axes, constant=kind == "constant")
    forms = ["-softplus({0})", "-5 * sigmoid({0})", "-exp({0})"]
    if kind != "constant":
        bias = text.input(f"bias{j}", "value", axes, constant=True)
        forms = ["-softplus({0} + " + bias + ")", "-exp(" + bias + ") * softplus({0})"]
    log = text.let(f"g{j}", text.draw(st.sampled_from(forms)).format(raw))
    return f"decay: {{kind: {kind}, log: {log}}}", log, axes


def _key(text: Text, j: int, own: bool = False) -> str:
    """A vector of unit length over K: an own one, or that of a sub-step before."""
    units = [n for n, formula in text.lets.items() if n[0] == "k" and "l2norm" in formula]
    if units and not own and text.draw(st.booleans()):
        return text.draw(st.sampled_from(units))
    raw = text.input(f"k{j}", text.draw(HEADS), "K")
    return text.let(raw, f"l2norm({raw}, eps=1e-6)")


def _read(text: Text, j: int, key: str, log: str) -> tuple[list[str], str]:
    """(entries of the sub-step, read vector of the state before the decay)."""
    form = text.draw(st.sampled_from(["key", "near", "weighted", "scaled"]))
    if form == "near":
        other = text.input(f"e{j}", text.draw(HEADS), "K")
        vector = text.let(f"r{j}", f"l2norm({key} + 0.1 * l2norm({other}, eps=1e-6), eps=1e-6)")
    elif form == "weighted":
        other = text.input(f"e{j}", text.draw(HEADS), "K")
        vector = text.let(f"r{j}", f"sigmoid({other}) * {key}")
    elif form == "scaled":
        vector = text.let(f"r{j}", f"sigmoid({text.input(f'c{j}', text.draw(HEADS))}) * {key}")
    else:
        vector = key
    if not log:
        return [f"read: {vector}"], vector
    decayed = f"exp({log}) * {vector}"
    options = [
        ([f"read: {vector}"], vector),
        ([f"read: {decayed}"], f"({decayed})"),
        ([f"read: {vector}", "of: decayed"], f"({decayed})"),
    ]
    return text.draw(st.sampled_from(options))


def _gain(text: Text, j: int, whole: bool) -> tuple[str, bool]:
    """(name of the gain or nothing, whether it ranges over V); `whole`: may be 1 or more."""
    forms = ["", "scalar", "double", "wide"] if whole else ["scalar", "wide"]
    form = text.draw(st.sampled_from(forms))
    if not form:
        return "", False
    raw = text.input(f"b{j}", text.draw(HEADS), "V" if form == "wide" else "")
    formula = f"2 * sigmoid({raw})" if form == "double" else f"sigmoid({raw})"
    return text.let(f"beta{j}", formula), form == "wide"


def _told(text: Text, j: int) -> tuple[str, str]:
    """(key, log decay) of a sub-step whose key is what its decay forgets."""
    key = text.let(f"k{j}", f"sigmoid(-{text.input(f'f{j}', text.draw(HEADS), 'K')})")
    return key, text.let(f"g{j}", f"log(1 - {key})")


def _substep(text: Text, j: int) -> SubStep:
    kind = text.draw(st.sampled_from(["write", "correct", "erase", "forget"]))
    if kind == "forget":
        key, log = _told(text, j)
        decay, axes, kind = f"decay: {{kind: vector, log: {log}}}", "K", "write"
    else:
        decay, log, axes = _decay(text, j)
        key = _key(text, j, own=kind == "erase")
    entries, eff = ([], "") if kind == "write" else _read(text, j, key, log)
    value = "" if kind == "erase" else text.input(f"v{j}", text.draw(HEADS), "V")
    gain, wide = _gain(text, j, whole=j == 1 or not eff)
    entries = [*([decay] if decay else []), f"key: {key}", *entries]
    entries += [f"value: {value}"] if value else []
    entries += [f"gain: {gain}"] if gain else []
    return SubStep("{" + ", ".join(entries) + "}", log, axes, key, eff, value, gain, wide)


def _output(text: Text, steps: list[SubStep]) -> str:
    text.input("q", text.draw(HEADS), "K")
    forms = ["l2norm(q, eps=1e-6)", "q * K**-0.5", "silu(q) / K"]
    # Keys that are all positive and alike want a query that does not sum to nothing over them.
    positive = any(formula.startswith("sigmoid(-") for formula in text.lets.values())
    text.let("q", text.draw(st.sampled_from(["softplus(q) / K"] if positive else forms)))
    parts = ["query: q", f"of: {text.draw(st.sampled_from(['updated', 'previous']))}"]
    value = next((s.value for s in reversed(steps) if s.value), "")
    terms = ["", "bonus", "skip"] if value else [""]
    add = text.draw(st.sampled_from(terms))
    if add == "bonus":
        weight = text.input("rho", "value", "K", constant=True)
        parts.append(f'add: "dot(q, {weight} * {steps[-1].key}) * {value}"')
    if add == "skip":
        parts.append(f"add: {text.input('skip', 'value', constant=True)} * {value}")
    if text.draw(st.sampled_from(["o", "gated"])) == "gated":
        # Bounds are relative to the largest output: a gate near zero would leave its error alone.
        parts.append(f"result: o * (2 + tanh({text.input('z', 'value', 'V')}))")
    return "{" + ", ".join([*parts, f"dtype: {text.draw(st.sampled_from(['bf16', 'fp32']))}"]) + "}"


@st.composite
def invented(draw: Draw, least: int = 1, dims: tuple[int, int] | None = None) -> str:
    """A spec file with at least so many sub-steps, of any or of given dimensions K and V. What is
    drawn is always meant to be accepted."""
    text = Text(draw)
    steps = [_substep(text, j) for j in range(1, draw(st.integers(least, 3)) + 1)]
    if not any(s.value for s in steps):  # nothing would ever be written
        key, value = _key(text, 9), text.input("v9", "value", "V")
        line = f"{{key: {key}, value: {value}}}"
        steps.append(SubStep(line, "", "", key, "", value, "", wide_gain=False))
    output = _output(text, steps)
    native = "S"
    for step in steps:
        native = step.native(native)
    format = draw(FORMATS)
    window = draw(st.sampled_from([16, 1, 3, 5]))
    records = draw(st.sampled_from(["fp16", "bf16", "fp32"]))
    lines = ["name: invented", "title: Invented"]
    K, V = dims or (draw(KEY_DIMS), draw(VALUE_DIMS))
    lines += [f"dims: {{key: {K}, value: {V}}}", "inputs:"]
    lines += [f"  {name}: {entry}" for name, entry in text.inputs.items()]
    lines += ["let:", *(f'  {name}: "{formula}"' for name, formula in text.lets.items())]
    lines += ["recurrence:", f'  native: "{native}"', "  substeps:"]
    lines += [f"    - {step.line}" for step in steps]
    lines += [f"  output: {output}"]
    lines += [f"state: {{format: {format}, window: {window}, records: {records}}}"]
    return "\n".join(lines) + "\n"
