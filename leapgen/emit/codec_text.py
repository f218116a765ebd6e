"""C text of a payload grid: what codes stand for, and how a number becomes one."""

from __future__ import annotations

from dataclasses import dataclass

from leapgen.formats.grids import Grid, Levels, Minifloat, Symmetric, Wide
from leapgen.schedule.arch import Arch

_INSTRUCTIONS = {
    "e4m3": "cvt.rn.f16x2.e4m3x2 %0, %1;",
    "e3m2": "cvt.rn.f16x2.e3m2x2 %0, %1;",
    "e2m3": "cvt.rn.f16x2.e2m3x2 %0, %1;",
    "e2m1": "{.reg .b8 c, z; mov.b16 {c, z}, %1; cvt.rn.f16x2.e2m1x2 %0, c;}",
    "e8m0": "cvt.rn.bf16x2.ue8m0x2 %0, %1;",
}
"""From two codes, a byte each (`e2m1`: a nibble each), to two numbers of 16 bits that are equal to
them: FP16 has every value of the small types, BF16 every power of two of E8M0."""


def converted(name: str, kind: str, qualifiers: str) -> str:
    """`unsigned name(int codes)`: what an instruction makes of two codes of a type."""
    return (
        f"{qualifiers} unsigned {name}(int codes) {{\n  unsigned d;\n"
        f'  asm("{_INSTRUCTIONS[kind]}" : "=r"(d) : "h"((unsigned short)codes));\n  return d;\n}}'
    )


@dataclass(frozen=True)
class GridText:
    """Functions of one grid, for one arch. `stochastic`: codes take a draw in [0, 1)."""

    grid: Grid
    stochastic: bool
    arch: Arch

    @property
    def gpu(self) -> bool:
        """Whether it is CUDA's C."""
        return self.arch.gpu

    @property
    def converted(self) -> bool:
        """Whether the arch has an instruction for the grid's codes."""
        return self.grid.name in self.arch.converts

    @property
    def outer(self) -> str:
        """Qualifiers of functions that kernels call: a CPU's compiler sees their prototypes."""
        return "static __device__ __forceinline__" if self.gpu else 'extern "C" inline'

    @property
    def inner(self) -> str:
        """Qualifiers of the others."""
        return "static __device__ __forceinline__" if self.gpu else "static inline"

    @property
    def _constant(self) -> str:
        return "static __device__ const float" if self.gpu else "static const float"

    def _call(self, name: str) -> str:
        """A function of <math.h>, of which no header is in sight."""
        return name if self.gpu else f"__builtin_{name}"

    def common(self) -> str:
        """Bits of numbers, and rounding to whole ones."""
        lines = [
            f"{self.inner} float leapgen_float(unsigned bits) "
            "{ union { unsigned u; float f; } x; x.u = bits; return x.f; }",
            f"{self.inner} unsigned leapgen_bits(float f) "
            "{ union { unsigned u; float f; } x; x.f = f; return x.u; }",
            f"{self.inner} float leapgen_nearest(float x) {{ return {self._call('rintf')}(x); }}",
        ]
        if self.stochastic:
            # Not floor(x + draw): that sum rounds by itself when the draw is near one.
            lines.append(
                f"{self.inner} float leapgen_drawn(float x, float draw) {{ float low = "
                f"{self._call('floorf')}(x); return low + (draw < x - low ? 1.0f : 0.0f); }}"
            )
        return "\n".join(lines)

    @property
    def _draw(self) -> str:
        return ", float draw" if self.stochastic else ""

    def _whole(self, x: str) -> str:
        return f"leapgen_drawn({x}, draw)" if self.stochastic else f"leapgen_nearest({x})"

    def value(self, name: str) -> str:
        """`float name(int code)`; and `float name_of(int codes, int odd)`, one of two codes, where
        an instruction decodes both."""
        head = f"{self.outer} float {name}(int code)"
        grid = self.grid
        if self.converted:
            return f"{self._either(name)}\n{head} {{ return {name}_of(code, 0); }}"
        if isinstance(grid, Symmetric):
            sign = 1 << (grid.bits - 1)
            body = f"return (float)((code & {2 * sign - 1} ^ {sign}) - {sign});"
            return f"{head} {{ {body} }}"
        if isinstance(grid, Levels):
            levels = self._table(f"{name}_levels", grid.levels)
            return f"{levels}\n{head} {{ return {name}_levels[code]; }}"
        assert isinstance(grid, Minifloat)
        shift, size = 23 - grid.mantissa, grid.bits - 1
        # As the mantissa and exponent of an FP32 number; the factor makes up for the bias, and
        # subnormal numbers come out right with it.
        nan = f"  if ((code & {grid.nan}) == {grid.nan}) return leapgen_float(0x7FC00000u);\n"
        return (
            f"{head} {{\n{nan if grid.nan else ''}"
            f"  unsigned u = (unsigned)(code & {(1 << size) - 1}) << {shift};\n"
            f"  u = leapgen_bits(leapgen_float(u) * {2.0 ** (127 - grid.bias):.9e}f);\n"
            f"  return leapgen_float(u | (unsigned)(code >> {size} & 1) << 31);\n}}"
        )

    def _either(self, name: str) -> str:
        # Equal conversions of neighbouring elements become one: the assembly has no side effects.
        return (
            f"{converted(f'{name}_pair', self.grid.name, self.inner)}\n"
            f"{self.outer} float {name}_of(int codes, int odd) {{\n"
            f"  unsigned two = {name}_pair(codes);\n  float f;\n"
            "  unsigned short one = odd ? two >> 16 : two;\n"
            '  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(one));\n'
            "  return f;\n}"
        )

    def code_pair(self, name: str) -> str:
        """`unsigned name(float low, float high)`: codes of two numbers that are no NaN, by an
        instruction that rounds to nearest even and saturates; the first in the lower byte."""
        return (
            f"{self.inner} unsigned {name}(float low, float high) {{\n  unsigned short d;\n"
            f'  asm("cvt.rn.satfinite.{self.grid.name}x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), '
            '"f"(low));\n  return d;\n}'
        )

    def joined(self, name: str) -> str:
        """`int name(int low, int high)`: two codes of six bits, a byte each, of their nibbles and
        of their upper pairs of bits."""
        return (
            f"{self.outer} int {name}(int low, int high) "
            "{ return (low | low << 4) & 0x0F0F | (high << 4 | high << 10) & 0x3030; }"
        )

    def code(self, name: str) -> str:
        """`int name(float x)`, or `(float x, float draw)`: of a number that is not NaN."""
        head = f"{self.outer} int {name}(float x{self._draw})"
        grid = self.grid
        if isinstance(grid, Symmetric):
            top = f"{grid.top:.1f}f"
            return (
                f"{head} {{\n  float w = {self._whole('x')};\n"
                f"  return (int)(w > {top} ? {top} : w < -{top} ? -{top} : w);\n}}"
            )
        if isinstance(grid, Levels):
            edges = (grid.levels[1:] + grid.levels[:-1]) / grid.levels.dtype.type(2)
            return (
                f"{self._table(f'{name}_edges', edges)}\n{head} {{\n  int c = 0;\n"
                f"  for (int h = {1 << (grid.bits - 1)}; h; h >>= 1)\n"
                f"    if (x > {name}_edges[c + h - 1]) c += h;\n  return c;\n}}"
            )
        assert isinstance(grid, Minifloat)
        least = 1 - grid.bias
        steps = f"size * leapgen_float((unsigned)({254 + grid.mantissa} - field) << 23)"
        return (
            f"{head} {{\n"
            "  unsigned u = leapgen_bits(x);\n"
            "  float size = leapgen_float(u & 0x7FFFFFFFu);\n"
            f"  size = size < {grid.top:.9e}f ? size : {grid.top:.9e}f;\n"
            f"  float least = size > {2.0**least:.9e}f ? size : {2.0**least:.9e}f;\n"
            "  int field = (int)(leapgen_bits(least) >> 23);\n"
            f"  float w = {self._whole(steps)};\n"
            f"  int code = ((field - {127 + least}) << {grid.mantissa}) + (int)w;\n"
            f"  code = code < {grid.largest} ? code : {grid.largest};\n"
            f"  return code | (int)(u >> 31) << {grid.bits - 1};\n}}"
        )

    def cut(self) -> str:
        """`float leapgen_cut(float x, float draw)`: x as a number of the grid's type, rounded up
        with the probability of what is cut off."""
        assert isinstance(self.grid, Wide)
        low = 16 if self.grid.dtype == "bf16" else 13
        top = f"{self.grid.top:.9e}f"
        small = (  # below FP16's normal numbers its steps are fixed
            "  if (size < 6.103515625e-05f) {\n"
            "    float w = leapgen_drawn(size * 16777216.0f, draw) * 5.9604644775390625e-08f;\n"
            "    return leapgen_float(leapgen_bits(w) | u & 0x80000000u);\n  }\n"
            if low == 13
            else ""
        )
        mask = hex(0xFFFFFFFF << low & 0xFFFFFFFF)
        return (
            f"{self.outer} float leapgen_cut(float x, float draw) {{\n"
            f"  x = x > {top} ? {top} : x < -{top} ? -{top} : x;\n"
            "  unsigned u = leapgen_bits(x);\n  float size = leapgen_float(u & 0x7FFFFFFFu);\n"
            f"{small}"
            f"  unsigned c = u + (unsigned)(draw * {float(1 << low)}f) & {mask}u;\n"
            "  return (c & 0x7F800000u) == 0x7F800000u ? x : leapgen_float(c);\n}"
        )

    def _table(self, name: str, numbers: object) -> str:
        words = ", ".join(f"{float(x):.9e}f" for x in numbers)  # type: ignore[attr-defined]
        return f"{self._constant} {name}[] = {{{words}}};"
