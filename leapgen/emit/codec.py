"""What templates see of a composed format, and its scalar functions as text of C.

One text serves every target: a GPU's functions differ from a CPU's in their qualifiers alone. All
arithmetic is FP32, operation by operation that of `leapgen.formats`, so that equal numbers have
equal codes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from leapgen.emit import levels
from leapgen.emit.codec_text import GridText, converted
from leapgen.formats import packing, scales, transforms
from leapgen.formats.composed import LARGEST, Composed
from leapgen.formats.factors import LEAST_SCALE, Factor
from leapgen.formats.grids import GRIDS, Symmetric
from leapgen.formats.scales import Scale
from leapgen.schedule.arch import Arch
from leapgen.schedule.layout import can_fragment


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
        if of_grid.converted and format.grid.bits == 6:
            parts.append(of_grid.joined("leapgen_joined"))
    elif format.stochastic:
        parts.append(of_grid.cut())
    if format.stochastic:
        parts.append(_philox(of_grid))
    if format.scale.per != "none":
        parts.append(_scale(format, of_grid))
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


def _scale(format: Composed, t: GridText) -> str:
    scale, top = format.scale, f"{format.grid.top:.9g}"
    top = f"{top}f" if "." in top or "e" in top else f"{top}.0f"
    live = f"size >= {scales.LEAST:.9e}f"
    match scale.kind:
        case "fp32":
            return (
                f"{t.outer} float leapgen_scale(float size) "
                f"{{ return {live} ? size / {top} : 0.0f; }}\n"
                f"{t.outer} float leapgen_inverse(float size) "
                f"{{ return {live} ? {top} / size : 0.0f; }}"
            )
        case "bf16":
            return _bf16(scale, top, live, t)
        case "e8m0":
            return _e8m0(format, top, t)
    return _e4m3(scale, top, t)


def _bf16(scale: Scale, top: str, live: str, t: GridText) -> str:
    up = "  if (leapgen_float(b << 16) < x) b += 1;\n" if scale.rounding == "up" else ""
    return (
        f"{t.outer} float leapgen_scale(float size) {{\n"
        f"  float x = {live} ? size / {top} : 0.0f;\n"
        "  unsigned u = leapgen_bits(x), b = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;\n"
        f"{up}  return leapgen_float(b << 16);\n}}\n"
        f"{t.outer} float leapgen_inverse(float size) {{\n"
        "  float s = leapgen_scale(size);\n  return s > 0.0f ? 1.0f / s : 0.0f;\n}"
    )


def _e8m0(format: Composed, top: str, t: GridText) -> str:
    """The power of a size is its exponent field; below FP32's normal numbers only RCEIL can still
    round up to one."""
    rounding, grid = format.scale.rounding, format.grid
    first = {
        "rceil": f"  size = size / {top};\n",
        "even": "  size = leapgen_float(leapgen_bits(size) + "
        f"{1 << (22 - getattr(grid, 'mantissa', grid.bits - 2))}u);\n",
    }.get(rounding, "")
    up = "u & 0x007FFFFFu ? 1 : 0" if rounding in ("ceil", "rceil") else "0"
    binade = 0 if rounding == "rceil" else grid.binade
    return (
        f"{t.outer} int leapgen_scale(float size) {{\n"
        "  if (!(size > 0.0f)) return 0;\n"
        f"{first}  unsigned u = leapgen_bits(size);\n  int power = (int)(u >> 23), up = {up};\n"
        "  if (power == 0) up = up && u > 0x00400000u;\n"
        f"  power += up - {binade};\n  return power < 0 ? 0 : power > 254 ? 254 : power;\n}}\n"
        f"{power(t)}\n"
        f"{t.outer} float leapgen_inverse(float size) {{ "
        "return 1.0f / leapgen_spread(leapgen_scale(size)); }"
    )


def power(t: GridText) -> str:
    """2^(code - 127); code 255 is NaN."""
    head = f"{t.outer} float leapgen_spread(int code)"
    if "e8m0" in t.arch.converts:
        two = converted("leapgen_power", "e8m0", t.inner)
        return f"{two}\n{head} {{ return leapgen_float(leapgen_power(code) << 16); }}"
    return (
        f"{head} {{\n  unsigned u = (unsigned)code << 23;\n"
        "  return leapgen_float(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : u);\n}"
    )


def _e4m3(scale: Scale, top: str, t: GridText) -> str:
    block = GridText(GRIDS["e4m3"], False, t.arch)
    pair = _e4m3_pair(scale) if t.gpu and block.converted else ""
    up = "  if (leapgen_spread(c) < x) c += 1;\n" if scale.rounding == "up" else ""
    return (
        f"{block.value('leapgen_spread')}\n{block.code('leapgen_block')}\n"
        f"{t.outer} float leapgen_tensor(float largest) {{\n"
        "  float size = largest / 448.0f;\n"
        f"  if (!(size >= {scales.LEAST:.9e}f) || !(largest >= {scales.LEAST_HEAD:.9e}f))"
        f" return 0.0f;\n  return size / {top};\n}}\n"
        f"{t.outer} int leapgen_scale(float size, float tensor) {{\n"
        "  if (!(tensor > 0.0f)) return 0;\n"
        f"  float x = size / {top} / tensor;\n"
        f"  x = x < {scales.LEAST_E4M3!r}f ? {scales.LEAST_E4M3!r}f : x > 448.0f ? 448.0f : x;\n"
        f"  int c = leapgen_block(x);\n{up}  return c;\n}}\n"
        f"{t.outer} float leapgen_inverse(float size, float tensor) {{\n"
        "  if (!(tensor > 0.0f)) return 0.0f;\n"
        "  int c = leapgen_scale(size, tensor);\n"
        f"  return (1.0f / tensor) / leapgen_spread(c < 1 ? 1 : c);\n}}{pair}"
    )


def _e4m3_pair(scale: Scale) -> str:
    """Codes of two scales, a byte each, by instructions; `leapgen_scale` takes many more."""
    least = f"{scales.LEAST_E4M3!r}f"
    up = (
        "  if (leapgen_spread_of(c, 0) < low) codes += 1;\n"
        "  if (leapgen_spread_of(c, 1) < high) codes += 256;\n"
    )
    return (
        "\nstatic __device__ __forceinline__ unsigned leapgen_scales(float low, float high) {\n"
        f"  low = fminf(fmaxf(low, {least}), 448.0f), high = fminf(fmaxf(high, {least}), 448.0f);\n"
        "  unsigned short c;\n"
        '  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(c) : "f"(high), "f"(low));\n'
        f"  unsigned codes = c;\n{up if scale.rounding == 'up' else ''}  return codes;\n}}"
    )
