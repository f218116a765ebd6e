"""How compensators' two factors are stored: FP16 or BF16, or INT8 with one FP32 scale a vector.

FP16 and BF16 share the singular value evenly, which keeps both in FP16's range. INT8's scales hold
any range, so a factor is only dropped where its scale would not be a normal FP32 number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leapgen.formats import compensator, elements

F32 = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]

INT8_TOP = np.float32(127)
LEAST_SCALE = 1e-35


@dataclass(frozen=True)
class Factor:
    """One element type; `scaled`: whether a vector has a scale."""

    name: str
    scaled: bool = False
    least: float = compensator.FACTOR_MIN
    largest: float = compensator.FACTOR_MAX

    def tiles(self) -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
        """(name, tile, element type, one line for people) of what is stored."""
        sides = (("comp_key", "K", "key"), ("comp_u", "V", "value"))
        factors = tuple(
            (n, ("R", dim), self.name, f"compensators, {side} side") for n, dim, side in sides
        )
        if not self.scaled:
            return factors
        scales = tuple(
            (f"{n}_scale", ("R",), "fp32", f"scale, one a {side} factor") for n, _, side in sides
        )
        return (*factors, *scales)

    def none(
        self, lead: tuple[int, ...], K: int, V: int
    ) -> tuple[tuple[Stored, Stored], dict[str, Stored]]:
        """No factors of states [lead, K, V], as `fit` returns them."""
        dtype = {**elements.STORAGE, "int8": np.int8}[self.name]
        scales = {n: np.zeros((*lead, 0), np.float32) for n, *_ in self.tiles()[2:]}
        return (np.zeros((*lead, 0, K), dtype), np.zeros((*lead, 0, V), dtype)), scales

    def fit(self, state: F32, start: Stored) -> tuple[tuple[Stored, Stored], dict[str, Stored]]:
        """Factors of a state [..., K, V] as stored, ([..., R, K], [..., R, V]), and their scales.

        start   the present value factors [..., R, V] as stored: where the fit begins
        """
        codes = elements.decode("bf16", start) if self.name == "bf16" else start
        with np.errstate(over="ignore", invalid="ignore"):
            Q, X, peak = compensator.directions(state, codes)
            if self.scaled:
                return self._scaled(Q, X, peak)
            pair = compensator.split(Q, X, peak, self.least, self.largest)
            key, u = (elements.encode(self.name, f) for f in pair)
            return (key, u), {}

    def _scaled(self, Q: F32, X: F32, peak: F32) -> tuple[tuple[Stored, Stored], dict[str, Stored]]:
        sides = [np.swapaxes(f, -1, -2) for f in (Q, X * peak)]
        peaks = [np.abs(f).max(axis=-1, keepdims=True) for f in sides]
        live = (np.minimum(*peaks) >= LEAST_SCALE) & np.isfinite(peaks[1])
        codes, scales = [], {}
        for name, f, top in zip(("comp_key", "comp_u"), sides, peaks, strict=True):
            inverse = np.where(live, INT8_TOP / np.where(live, top, 1), np.float32(0))
            code = np.rint(np.where(live, f, 0) * inverse)
            codes.append(np.ascontiguousarray(code.astype(np.int8)))
            scale = np.where(live, top / INT8_TOP, np.float32(0))
            scales[f"{name}_scale"] = scale[..., 0].astype(np.float32)
        return (codes[0], codes[1]), scales

    def product(self, key: Stored, u: Stored, scales: dict[str, Stored]) -> F32:
        """sum_h key[h] u[h]^T as FP32 [..., K, V], from what is stored."""
        sides = []
        for name, f in (("comp_key", key), ("comp_u", u)):
            wide = elements.decode("bf16", f) if self.name == "bf16" else f.astype(np.float32)
            sides.append(wide * scales[f"{name}_scale"][..., None] if self.scaled else wide)
        out: F32 = np.swapaxes(sides[0], -1, -2) @ sides[1]
        return out


FACTORS: dict[str, Factor] = {
    f.name: f
    for f in (
        Factor("fp16"),
        Factor("bf16", least=2.0**-100, largest=2.0**100),
        Factor("int8", scaled=True),
    )
}
"""Every factor type, by the word that specs use."""
