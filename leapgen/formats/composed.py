"""Formats composed of choices: how a state is taken apart, rounded, stored and put together again.

    state -> compensators + residual -> transform -> scale -> codes

Each arrow's right side is what is stored, and each next one starts from what the one before stands
for after its own rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from leapgen.formats import choices as rules
from leapgen.formats import outliers, packing
from leapgen.formats.base import F32, Codes, Format, FormatError, Part, Stored
from leapgen.formats.choices import Choices
from leapgen.formats.factors import FACTORS, Factor
from leapgen.formats.grids import GRIDS, Grid, Symmetric
from leapgen.formats.scales import SCALES, Scale
from leapgen.formats.transforms import TRANSFORMS, Transform

LARGEST = np.float32(1e36)
"""Magnitude that a stored state is clamped to: sums over its channels then stay within FP32. NaN is
stored as zero: codes cannot carry it, and one of them would else take its whole group along."""
RESIDUAL_BITS = 4
"""Width of what two-level error feedback keeps of the rounding error."""


@dataclass(frozen=True)
class Composed(Format):
    """A composition, as a row of the table of formats.

    choices   what it is made of; the fields of Format follow from it (see `composed`)
    """

    choices: Choices = field(default_factory=Choices)

    family: ClassVar[str] = "composed"

    # ---- what it is made of

    @property
    def grid(self) -> Grid:
        """Grid of the codes."""
        return GRIDS[self.choices.payload]

    @property
    def scale(self) -> Scale:
        """What codes are multiplied with."""
        return SCALES[self.choices.scale]

    @property
    def transform(self) -> Transform:
        """What happens to the residual before."""
        return TRANSFORMS[self.choices.transform]

    @property
    def factor(self) -> Factor | None:
        """How compensators are stored."""
        return FACTORS.get(self.choices.factors)

    def kernels_on(self, gpu: bool) -> bool:
        """Outliers and error feedback stay in the reference model; on a GPU, scales belong to
        value channels or their blocks, and a state stored at every step has no smoothing."""
        c = self.choices
        if c.outliers or c.feedback != "none":
            return False
        if not gpu:
            return True
        values = self.scale.per in ("none", "value")
        smooths = self.transform.smooths and not self.windowed
        return values and not smooths

    @property
    def in_words(self) -> bool:
        """What can be told from its choices."""
        return rules.in_words(self.choices)

    @property
    def rotates(self) -> bool:
        """Told by its transform."""
        return self.choices.transform == "rotation"

    @property
    def stochastic(self) -> bool:
        """Whether codes are rounded stochastically."""
        return self.choices.rounding == "stochastic"

    def describe(self) -> str:
        """Its choices, those that differ from their defaults."""
        default = Choices()
        words = (
            f"{name} {value}"
            for name, value in vars(self.choices).items()
            if value != getattr(default, name) or name == "payload"
        )
        return ", ".join(words)

    def with_choices(self, **changed: Any) -> Self:
        """This row with choices replaced. Errors: FormatError, where they do not go together."""
        made = composed(self.name, self.doc, replace(self.choices, **changed))
        return replace(self, **vars(made))

    def with_state(self, smoothing: str | None, compensators: int | None) -> Self:
        """This row with a spec's choices applied; None keeps the row's own.

        Errors: FormatError where the format cannot have what is asked for.
        """
        changed: dict[str, Any] = {}
        if smoothing is not None:
            if smoothing != "none" and not TRANSFORMS[smoothing].smooths:
                raise FormatError(f"transform {smoothing} is not a smoothing")
            changed["transform"] = smoothing
        if compensators is not None:
            if compensators < 0:
                raise FormatError(f"compensators must be 0 or more, found {compensators}")
            if compensators and self.factor is None:
                raise FormatError(f"format {self.name} has no compensators")
            changed["compensators"] = compensators
        return self.with_choices(**changed) if changed else self

    def parts(self) -> tuple[Part, ...]:
        """The tensors of a stored state; codes of 4 to 6 bits are packed in planes."""
        c, found = self.choices, list(self._planes("payload", self.grid, "codes"))
        found += (Part(n, t, d, "scale", doc) for n, t, d, doc in self.transform.tiles())
        if c.outliers:
            found += outliers.parts(c.outliers)
        else:
            found += (Part(n, t, d, "scale", doc) for n, t, d, doc in self.scale.tiles())
        if c.feedback != "none":
            low = Symmetric("residual", RESIDUAL_BITS, "int8")
            found += self._planes("residual", low, "codes of the rounding error")
            doc = "scale of the rounding error, one a value channel"
            found.append(Part("residual_scale", ("V",), "fp32", "residual", doc))
        if self.factor is not None:
            found += (Part(n, t, d, "compensator", doc) for n, t, d, doc in self.factor.tiles())
        if self.stochastic:
            doc = "stores so far: what random draws depend on beside the seed and the head"
            found.append(Part("stores", (), "int32", "rounding", doc))
        return tuple(found)

    @staticmethod
    def _planes(name: str, grid: Grid, doc: str) -> tuple[Part, ...]:
        if grid.bits not in packing.PACKED:
            return (Part(name, ("K*V",), grid.dtype, name, f"{doc}, in private order"),)
        parts = []
        for plane, width in zip(("", "_high"), packing.widths(grid.bits), strict=False):
            words = f"{doc}, {width} bits of each"
            parts.append(Part(f"{name}{plane}", (f"K*V/{8 // width}",), "uint8", name, words))
        return tuple(parts)

    def packed(self) -> dict[str, tuple[int, bool]]:
        """Codes that are packed in planes, by their buffer's name: (bits, whether signed)."""
        found = {"payload": (self.bits, isinstance(self.grid, Symmetric))}
        if self.choices.feedback != "none":
            found["residual"] = (RESIDUAL_BITS, True)
        return {name: code for name, code in found.items() if code[0] in packing.PACKED}

    def noise(self) -> float:
        """Largest rounding error of one element over the largest magnitude of its scale group, as
        the transform leaves it.

        Levels of numbers of unit RMS have no such bound below one: all of it may be in one number.
        """
        if self.grid.scaled_by_rms:
            return 1.0
        if self.choices.feedback != "none":  # half a code of half a code
            return self.grid.gap * Symmetric("residual", RESIDUAL_BITS, "int8").gap
        steps = self.grid.gap * (2.0 if self.stochastic else 1.0)
        if self.scale.per == "none":
            return steps
        wider, clipped = self.scale.slack(self.grid)
        return max(steps * wider, clipped)

    # ---- codes

    def encode(self, residual: F32, draws: F32 | None = None) -> Codes:
        """Codes of a residual [..., K, V], arithmetic in FP32."""
        c = self.choices
        if self.stochastic and draws is None:
            raise FormatError(f"format {self.name} rounds stochastically: it needs draws")
        x, parts = self.transform.forward(residual)
        if c.outliers:
            payload, scales = outliers.encode(x, self.grid, c.outliers)
        else:
            scales, inverse = self.scale.encode(x, self.grid)
            draws = draws if self.stochastic else None
            payload = self.grid.encode(x * inverse, draws)
        parts = {**parts, **scales}
        if c.feedback != "none":
            parts |= self._feedback(x, payload, parts)
        return Codes(payload, parts.pop("key_scale", None), parts.pop("value_scale", None), parts)

    def decode(self, codes: Codes) -> F32:
        """The residual [..., K, V] that the codes stand for."""
        named = {"key_scale": codes.key_scale, "value_scale": codes.value_scale}
        parts = {**codes.parts, **{n: p for n, p in named.items() if p is not None}}
        if self.choices.outliers:
            x = outliers.decode(codes.payload, parts, self.grid)
        else:
            x = self._scaled(codes.payload, parts)
        if self.choices.feedback != "none":
            low = parts["residual"].astype(np.float32)
            x = x + low * parts["residual_scale"][..., None, :]
        return self.transform.inverse(x, parts)

    def _scaled(self, payload: npt.NDArray[Any], parts: Mapping[str, Any]) -> F32:
        x = self.grid.decode(payload)
        if self.scale.per == "none":
            return x
        out: F32 = x * self.scale.decode(dict(parts), self.grid, *payload.shape[-2:])
        return out

    def _feedback(
        self, x: F32, payload: npt.NDArray[Any], parts: Mapping[str, Any]
    ) -> dict[str, npt.NDArray[Any]]:
        """What the codes leave of x, itself in codes with a scale a value channel."""
        left = x - self._scaled(payload, parts)
        low, scale = Symmetric("residual", RESIDUAL_BITS, "int8"), SCALES["value"]
        scales, inverse = scale.encode(left, low)
        return {"residual": low.encode(left * inverse), "residual_scale": scales["value_scale"]}

    # ---- whole states

    def store(self, state: F32, comp_u: npt.NDArray[Any], draws: F32 | None = None) -> Stored:
        """Quantize a state [..., K, V]; see Format.store. Magnitudes are clamped, NaN is zero."""
        kept = np.where(np.isnan(state), np.float32(0), np.clip(state, -LARGEST, LARGEST))
        kept = kept.astype(np.float32, copy=False)
        lead, R, factor = state.shape[:-2], comp_u.shape[-2], self.factor
        if factor is None:
            empty = self.no_factors(*lead, 0, state.shape[-2])
            return Stored(self.encode(kept, draws), empty, comp_u)
        if R == 0:
            (key, u), scales = factor.none(lead, *state.shape[-2:])
        else:
            (key, u), scales = factor.fit(kept, comp_u)
        residual = kept - factor.product(key, u, scales) if R else kept
        return Stored(self.encode(residual, draws), key, u, scales)

    def restore(self, stored: Stored) -> F32:
        """The FP32 state [..., K, V] that a stored one stands for."""
        state = self.decode(stored.codes)
        if stored.comp_u.shape[-2] and self.factor is not None:
            scales = dict(stored.scales)
            state = state + self.factor.product(stored.comp_key, stored.comp_u, scales)
        return state


def composed(name: str, doc: str, choices: Choices) -> Composed:
    """The row of a composition. Errors: FormatError, where choices do not go together."""
    rules.check(choices)
    grid, scale, transform = (
        GRIDS[choices.payload],
        SCALES[choices.scale],
        TRANSFORMS[choices.transform],
    )
    return Composed(
        name=name,
        payload="uint8" if grid.bits in packing.PACKED else grid.dtype,
        bits=grid.bits,
        value_scale=scale.per == "value" and not scale.block,
        key_scale=transform.name if transform.smooths else None,
        compensators=choices.compensators,
        factors=None if choices.factors == "none" else choices.factors,
        doc=doc,
        cadence=choices.cadence,
        choices=choices,
    )
