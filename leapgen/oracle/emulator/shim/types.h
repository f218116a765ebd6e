// CUDA's keywords and vector types, and the 16-bit floating-point types under TileLang's names.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// Static shared memory: all of it in one section, so that it can be filled before each block.
#define __shared__ static __attribute__((section("lg_shared")))
#define TL_DEVICE static inline
#define threadIdx (lg::current->tid)
#define blockIdx (lg::block_idx)
#define blockDim (lg::block_dim)
#define gridDim (lg::grid_dim)

using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;
using std::int8_t;
using std::uint32_t;
using std::uint64_t;
using std::max;
using std::min;

// name, element, alignment of the vectors of 2 and 4 (CUDA Programming Guide, built-in vectors)
#define LG_VECTORS(NAME, T, A1, A2, A4)                                               \
  struct alignas(A1) NAME##1 { T x; };                                                \
  struct alignas(A2) NAME##2 { T x, y; };                                             \
  struct NAME##3 { T x, y, z; };                                                      \
  struct alignas(A4) NAME##4 { T x, y, z, w; };                                       \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                  \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                          \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                  \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
LG_VECTORS(char, signed char, 1, 2, 4)
LG_VECTORS(uchar, unsigned char, 1, 2, 4)
LG_VECTORS(short, short, 2, 4, 8)
LG_VECTORS(ushort, unsigned short, 2, 4, 8)
LG_VECTORS(int, int, 4, 8, 16)
LG_VECTORS(uint, unsigned, 4, 8, 16)
LG_VECTORS(longlong, long long, 8, 16, 16)
LG_VECTORS(ulonglong, unsigned long long, 8, 16, 16)
LG_VECTORS(float, float, 4, 8, 16)
LG_VECTORS(double, double, 8, 16, 16)
using int4_t = int4;

namespace lg {
template <class To, class From>
inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Conversions of the formats; both round to nearest, ties to even.
struct HalfFormat {
  static std::uint16_t encode(float value) { return bits<std::uint16_t>(_Float16(value)); }
  static float decode(std::uint16_t code) { return float(bits<_Float16>(code)); }
};
struct BFloatFormat {
  static std::uint16_t encode(float value) {
    auto word = bits<std::uint32_t>(value);
    if (std::isnan(value)) return 0x7FFF;
    return std::uint16_t((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
  }
  static float decode(std::uint16_t code) { return bits<float>(std::uint32_t(code) << 16); }
};

// A 16-bit number: every operation is done in FP32 and rounded once (exact for + - * /).
template <class Format>
struct Number16 {
  std::uint16_t storage;
  Number16() = default;
  explicit Number16(float value) : storage(Format::encode(value)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  explicit Number16(T value) : storage(Format::encode(float(value))) {}
  template <class Other>
  explicit Number16(Number16<Other> other) : storage(Format::encode(float(other))) {}
  operator float() const { return Format::decode(storage); }
  static Number16 bitcast(std::uint16_t code) {
    Number16 number;
    number.storage = code;
    return number;
  }
  Number16 to_half() const { return *this; }
  Number16 to_nv_bfloat16() const { return *this; }
  std::uint16_t raw() const { return storage; }
  Number16 operator-() const { return bitcast(std::uint16_t(storage ^ 0x8000u)); }
  friend Number16 operator+(Number16 a, Number16 b) { return Number16(float(a) + float(b)); }
  friend Number16 operator-(Number16 a, Number16 b) { return Number16(float(a) - float(b)); }
  friend Number16 operator*(Number16 a, Number16 b) { return Number16(float(a) * float(b)); }
  friend Number16 operator/(Number16 a, Number16 b) { return Number16(float(a) / float(b)); }
  Number16& operator+=(Number16 b) { return *this = *this + b; }
  Number16& operator-=(Number16 b) { return *this = *this - b; }
  Number16& operator*=(Number16 b) { return *this = *this * b; }
  friend bool operator<(Number16 a, Number16 b) { return float(a) < float(b); }
  friend bool operator<=(Number16 a, Number16 b) { return float(a) <= float(b); }
  friend bool operator>(Number16 a, Number16 b) { return float(a) > float(b); }
  friend bool operator>=(Number16 a, Number16 b) { return float(a) >= float(b); }
  friend bool operator==(Number16 a, Number16 b) { return float(a) == float(b); }
  friend bool operator!=(Number16 a, Number16 b) { return float(a) != float(b); }
};

template <class T>
struct Pair16 {
  T x, y;
};
}  // namespace lg

using half_t = lg::Number16<lg::HalfFormat>;
using bfloat16_t = lg::Number16<lg::BFloatFormat>;
using half = half_t;
using __half = half_t;
using nv_bfloat16 = bfloat16_t;
using __nv_bfloat16 = bfloat16_t;
struct alignas(4) half2 : lg::Pair16<half_t> {};
struct alignas(4) __nv_bfloat162 : lg::Pair16<bfloat16_t> {};
using __half2 = half2;
namespace cutlass {
using ::bfloat16_t;
using ::half_t;
}  // namespace cutlass
