"""What templates see of a composed format, and its scalar functions as text of C.

One text serves every target: a GPU's functions differ from a CPU's in their qualifiers alone. All
arithmetic is FP32, operation by operation that of `leapgen.formats`, so that equal numbers have
equal codes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from leapgen.emit import levels
from leapgen.emit.codec_scales import scale
from leapgen.emit.codec_text import GridText
from leapgen.formats import packing, transforms
from leapgen.formats.composed import LARGEST, Composed
from leapgen.formats.factors import LEAST_SCALE, Factor
from leapgen.formats.grids import Symmetric
from leapgen.schedule.arch import Arch
from leapgen.schedule.layout import can_fragment, closes_rows, coded_rows


@dataclass(frozen=True)
class Plane:
    """A payload tensor: `bits` of each code, from bit `shift` of it on, `each` codes a byte."""

    name: str
    bits: int
    shift: int

    @property
    def each(self) -> int:
        """Codes a byte."""
        return 8 // self.bits


@dataclass(frozen=True)
class Codec:
    """A composition in words of templates.

    planes      empty: the payload has an element a code
    wide        codes are floating-point numbers of their own range
    signed      codes are integers
    rms         scales are of the RMS instead of the largest magnitude
    per, block, kind   of the scale, see formats.scales.Scale
    stored      the tensor of scales, empty where there is none
    transform   word of formats.transforms
    paired      an instruction decodes codes two at a time
    clips       a scale may be smaller than its group's largest magnitude asks for
    table, compander   of four-bit levels, see emit.levels
    unit        what one stands for in the bytes that products take
    text        C functions
    """

    planes: tuple[Plane, ...]
    bits: int
    wide: bool
    signed: bool
    top: float
    rms: bool
    stochastic: bool
    per: str
    block: int
    kind: str
    stored: str
    transform: str
    factor: str
    scaled_factors: bool
    least_factor: float
    largest_factor: float
    least_factor_scale: float
    power: float
    least_ratio: float
    paired: bool
    clips: bool
    table: tuple[int, ...]
    compander: tuple[float, ...]
    unit: float
    text: str

    @staticmethod
    def half(x: float) -> str:
        """A word of two FP16 numbers that are x."""
        return f"0x{0x10001 * struct.unpack('<H', struct.pack('<e', x))[0]:08X}"

    @property
    def cut(self) -> float:
        """Of half the largest number, what makes one: such numbers and an instruction that keeps
        its results within 0 and 1 cut what lies beyond. 0 where there is nothing to cut, or too
        many codes for FP16 numbers below one."""
        if self.compander:
            return 0.5 / (127 * self.unit)
        return 0.5 / self.top if self.clips and self.signed and self.bits < 8 else 0.0

    @property
    def largest(self) -> float:
        """What sums stay finite of."""
        return float(LARGEST)

    @property
    def left(self) -> int:
        """How far codes of integers are shifted to fill a byte."""
        return 8 - self.bits

    @property
    def tensor(self) -> bool:
        """Whether block scales are relative to an FP32 number of the head."""
        return self.kind == "e4m3"

    @property
    def exact(self) -> bool:
        """Whether FP16 holds a code times its block's scale without its tensor's: 7 and 4 bits."""
        return self.tensor and self.signed

    @property
    def whole_head(self) -> bool:
        """Whether a scale depends on all of a head's elements."""
        return self.tensor or self.per == "head" or self.smooths

    @property
    def smooths(self) -> bool:
        """Whether key channels have a scale of the transform."""
        return self.transform in ("mean_abs_sqrt", "rms_power")

    @property
    def rotates(self) -> bool:
        """Whether the key axis is rotated."""
        return self.transform == "rotation"

    @property
    def blocks(self) -> str:
        """Code of the number of scale blocks along the axis that has them."""
        axis = "K" if self.per == "value" else "V"
        return f"(({axis} + {self.block - 1}) // {self.block})"

    def place(self, k: str, v: str) -> str:
        """Code of the index of the scale of element (k, v) in its tile."""
        if self.per in ("none", "head"):
            return "0"
        if not self.block:
            return v if self.per == "value" else k
        if self.per == "value":
            return f"({k}) // {self.block} * V + {v}"
        return f"({k}) * {self.blocks} + ({v}) // {self.block}"


def codec(format: Composed, arch: Arch) -> Codec:
    """The view of a composition."""
    grid, scale, factor = format.grid, format.scale, format.factor or Factor("none")
    bits = packing.widths(grid.bits) if grid.bits in packing.PACKED else ()
    names = ("payload", "payload_high")
    planes = tuple(Plane(names[i], b, sum(bits[:i])) for i, b in enumerate(bits))
    tiles = scale.tiles()
    return Codec(
        planes=planes,
        bits=grid.bits,
        wide=grid.wide,
        signed=isinstance(grid, Symmetric),
        top=grid.top,
        rms=grid.scaled_by_rms,
        stochastic=format.stochastic,
        per=scale.per,
        block=scale.block,
        kind=scale.kind if scale.per != "none" else "none",
        stored=tiles[0][0] if tiles else "",
        transform=format.transform.name,
        factor=factor.name,
        scaled_factors=factor.scaled,
        least_factor=factor.least,
        largest_factor=factor.largest,
        least_factor_scale=LEAST_SCALE,
        power=transforms.POWER,
        least_ratio=transforms.LEAST_RATIO,
        paired=GridText(grid, format.stochastic, arch).converted,
        clips=scale.rounding == "nearest" and scale.kind != "fp32",
        table=levels.table(grid) if can_fragment(arch, format) else (),
        compander=levels.compander(grid),
        unit=levels.unit(grid),
        text=text(format, arch),
    )


CHOSEN = (
    "static __device__ __forceinline__ unsigned leapgen_chosen(unsigned a, unsigned b, unsigned s) "
    '{ unsigned d; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s)); return d; }'
)
"""`__byte_perm` without its masks, for selectors whose digits are below eight."""
ROOT = (
    "static __device__ __forceinline__ float leapgen_root(float ratio) {\n"
    "  float x = fmaxf(ratio, 7.888609052e-31f), y;\n"
    '  asm("lg2.approx.ftz.f32 %%0, %%1;" : "=f"(y) : "f"(x));\n'
    '  asm("ex2.approx.ftz.f32 %%0, %%1;" : "=f"(x) : "f"(y * %.9ef));\n'
    "  return x;\n}"
)
"""A ratio of squares to half the power that makes scales of it; 0 as 2^-100."""


def text(format: Composed, arch: Arch) -> str:
    """C functions of the grid, its scales and its rounding."""
    of_grid = GridText(format.grid, format.stochastic, arch)
    parts = [of_grid.common(), _kept(of_grid)]
    if not format.grid.wide:
        parts += [of_grid.value("leapgen_value"), of_grid.code("leapgen_code")]
        if of_grid.converted and (closes_rows(arch, format) or coded_rows(arch, format)):
            parts.append(of_grid.code_pair("leapgen_code_pair"))
        if of_grid.converted and format.grid.bits == 6:
            parts.append(of_grid.joined("leapgen_joined"))
    elif format.stochastic:
        parts.append(of_grid.cut())
    if format.stochastic:
        parts.append(_philox(of_grid))
    if format.scale.per != "none":
        parts.append(scale(format, of_grid))
    if can_fragment(arch, format) and levels.table(format.grid):
        parts.append(CHOSEN)
    if arch.gpu and format.transform.name == "rms_power":
        parts.append(ROOT % (transforms.POWER / 2))
    return "\n".join(parts)


def _kept(t: GridText) -> str:
    """Clamped to what sums stay finite of; NaN is zero."""
    top = f"{float(LARGEST):.9e}f"
    return (
        f"{t.outer} float leapgen_kept(float x) {{\n"
        "  if ((leapgen_bits(x) & 0x7FFFFFFFu) > 0x7F800000u) return 0.0f;\n"
        f"  return x > {top} ? {top} : x < -{top} ? -{top} : x;\n}}"
    )


def _philox(t: GridText) -> str:
    """Four draws in [0, 1): see formats.philox."""
    return (
        f"{t.outer} void* leapgen_draws(float* out, int block, int store, int head) {{\n"
        "  unsigned c0 = block, c1 = store, c2 = 0, c3 = 0, k0 = 0, k1 = head;\n"
        "  for (int i = 0; i < 10; ++i) {\n"
        "    unsigned long long a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;\n"
        "    c0 = (unsigned)(b >> 32) ^ c1 ^ k0; c1 = (unsigned)b;\n"
        "    c2 = (unsigned)(a >> 32) ^ c3 ^ k1; c3 = (unsigned)a;\n"
        "    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n  }\n"
        "  out[0] = (float)(c0 >> 8) * 5.9604644775390625e-08f;\n"
        "  out[1] = (float)(c1 >> 8) * 5.9604644775390625e-08f;\n"
        "  out[2] = (float)(c2 >> 8) * 5.9604644775390625e-08f;\n"
        "  out[3] = (float)(c3 >> 8) * 5.9604644775390625e-08f;\n  return out;\n}"
    )
