"""C text of a composition's scales: from the size of what shares one to its code, and back."""

from __future__ import annotations

from leapgen.emit.codec_text import GridText, converted
from leapgen.formats import scales
from leapgen.formats.composed import Composed
from leapgen.formats.grids import GRIDS
from leapgen.formats.scales import Scale


def scale(format: Composed, t: GridText) -> str:
    """Functions `leapgen_scale` and `leapgen_inverse` of a composition, and those of its kind."""
    kind, top = format.scale, f"{format.grid.top:.9g}"
    top = f"{top}f" if "." in top or "e" in top else f"{top}.0f"
    live = f"size >= {scales.LEAST:.9e}f"
    match kind.kind:
        case "fp32":
            return (
                f"{t.outer} float leapgen_scale(float size) "
                f"{{ return {live} ? size / {top} : 0.0f; }}\n"
                f"{t.outer} float leapgen_inverse(float size) "
                f"{{ return {live} ? {top} / size : 0.0f; }}"
            )
        case "bf16":
            return _bf16(kind, top, live, t)
        case "e8m0":
            return _e8m0(format, top, t)
    return _e4m3(kind, top, t)


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
    pair = (_e4m3_pair(scale) if block.converted else _e4m3_two(scale)) if t.gpu else ""
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


def _e4m3_two(scale: Scale) -> str:
    """The same where there are no such instructions."""
    up = "  if (leapgen_spread(c) < x) c += 1;\n" if scale.rounding == "up" else ""
    outer = "static __device__ __forceinline__"
    return (
        f"\n{outer} float leapgen_spread_of(unsigned codes, int at) "
        "{ return leapgen_spread((int)(codes >> 8 * at & 255)); }\n"
        f"{outer} unsigned leapgen_scale_of(float x) {{\n"
        f"  x = fminf(fmaxf(x, {scales.LEAST_E4M3!r}f), 448.0f);\n"
        f"  int c = leapgen_block(x);\n{up}  return (unsigned)c;\n}}\n"
        f"{outer} unsigned leapgen_scales(float low, float high) "
        "{ return leapgen_scale_of(low) | leapgen_scale_of(high) << 8; }"
    )
