// Arithmetic that CUDA and TileLang's templates offer to a single thread.
#pragma once
#include "types.h"

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_INF_FP16 half_t(__builtin_inff())
#define CUDART_INF_BF16 bfloat16_t(__builtin_inff())

inline float __int_as_float(int x) { return lg::bits<float>(x); }
inline int __float_as_int(float x) { return lg::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return lg::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return lg::bits<unsigned>(x); }
inline float __half2float(half_t x) { return float(x); }
inline half_t __float2half(float x) { return half_t(x); }
inline half_t __float2half_rn(float x) { return half_t(x); }
inline float __bfloat162float(bfloat16_t x) { return float(x); }
inline bfloat16_t __float2bfloat16(float x) { return bfloat16_t(x); }
inline bfloat16_t __float2bfloat16_rn(float x) { return bfloat16_t(x); }
inline float2 __half22float2(half2 p) { return {float(p.x), float(p.y)}; }
inline half2 __float22half2_rn(float2 p) { return {{half_t(p.x), half_t(p.y)}}; }
inline half2 __floats2half2_rn(float x, float y) { return {{half_t(x), half_t(y)}}; }
inline half2 __halves2half2(half_t x, half_t y) { return {{x, y}}; }
inline half2 make_half2(half_t x, half_t y) { return {{x, y}}; }
inline float2 __bfloat1622float2(__nv_bfloat162 p) { return {float(p.x), float(p.y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 p) {
  return {{bfloat16_t(p.x), bfloat16_t(p.y)}};
}
inline unsigned __pack_half2(half_t x, half_t y) { return x.storage | unsigned(y.storage) << 16; }
inline unsigned __pack_half2(bfloat16_t x, bfloat16_t y) {
  return x.storage | unsigned(y.storage) << 16;
}
inline unsigned __pack_nv_bfloat162(bfloat16_t x, bfloat16_t y) { return __pack_half2(x, y); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __saturatef(float x) { return std::isnan(x) ? 0.0f : std::fmin(1.0f, std::fmax(0.0f, x)); }
inline float lg_expf(float x) { return std::exp(x); }
inline float lg_log2f(float x) { return std::log2(x); }
inline float lg_logf(float x) { return std::log(x); }
#define __expf(x) lg_expf(x)   // the C library keeps names of its own with two underscores
#define __logf(x) lg_logf(x)
#define __log2f(x) lg_log2f(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) exp10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
// max of CUDA takes the number when the other is NaN, std::max does not.
inline float max(float x, float y) { return std::fmax(x, y); }
inline float min(float x, float y) { return std::fmin(x, y); }
inline double max(double x, double y) { return std::fmax(x, y); }
inline double min(double x, double y) { return std::fmin(x, y); }
inline half_t max(half_t x, half_t y) { return half_t(std::fmax(float(x), float(y))); }
inline half_t min(half_t x, half_t y) { return half_t(std::fmin(float(x), float(y))); }
inline bfloat16_t max(bfloat16_t x, bfloat16_t y) {
  return bfloat16_t(std::fmax(float(x), float(y)));
}
inline bfloat16_t min(bfloat16_t x, bfloat16_t y) {
  return bfloat16_t(std::fmin(float(x), float(y)));
}
template <class T>
inline T lg_abs16(T x) { return T::bitcast(std::uint16_t(x.storage & 0x7FFFu)); }
inline half_t __habs(half_t x) { return lg_abs16(x); }
inline bfloat16_t __habs(bfloat16_t x) { return lg_abs16(x); }
inline half_t __hmax(half_t x, half_t y) { return max(x, y); }
inline half_t __hmin(half_t x, half_t y) { return min(x, y); }
inline bfloat16_t __hmax(bfloat16_t x, bfloat16_t y) { return max(x, y); }
inline bfloat16_t __hmin(bfloat16_t x, bfloat16_t y) { return min(x, y); }
template <class T>
inline T lg_fma16(T x, T y, T z) {  // the FP64 sum of an exact product, rounded once more
  return T(float(double(float(x)) * double(float(y)) + double(float(z))));
}
inline half_t __hfma(half_t x, half_t y, half_t z) { return lg_fma16(x, y, z); }
inline bfloat16_t __hfma(bfloat16_t x, bfloat16_t y, bfloat16_t z) { return lg_fma16(x, y, z); }
#define LG_UNARY16(NAME, EXPRESSION)                                             \
  inline half_t NAME(half_t v) { float x = float(v); return half_t(EXPRESSION); } \
  inline bfloat16_t NAME(bfloat16_t v) { float x = float(v); return bfloat16_t(EXPRESSION); }
LG_UNARY16(hexp, std::exp(x))
LG_UNARY16(hexp2, std::exp2(x))
LG_UNARY16(hlog, std::log(x))
LG_UNARY16(hlog2, std::log2(x))
LG_UNARY16(hsqrt, std::sqrt(x))
LG_UNARY16(hrsqrt, 1.0f / std::sqrt(x))
LG_UNARY16(hrcp, 1.0f / x)
LG_UNARY16(htanh, std::tanh(x))
LG_UNARY16(hfloor, std::floor(x))
LG_UNARY16(hceil, std::ceil(x))
LG_UNARY16(hrint, std::nearbyint(x))

#define LG_PAIR2(NAME, EXPRESSION)                                                            \
  template <class T, class = std::enable_if_t<std::is_base_of_v<lg::Pair16<half_t>, T> ||     \
                                              std::is_base_of_v<lg::Pair16<bfloat16_t>, T>>>  \
  inline T NAME(T a, T b) {                                                                   \
    auto one = [](auto x, auto y) { return EXPRESSION; };                                     \
    return {{one(a.x, b.x), one(a.y, b.y)}};                                                  \
  }                                                                                           \
  inline float2 NAME(float2 a, float2 b) {                                                    \
    auto one = [](float x, float y) { return EXPRESSION; };                                   \
    return {one(a.x, b.x), one(a.y, b.y)};                                                    \
  }
LG_PAIR2(__hadd2, x + y)
LG_PAIR2(__hsub2, x - y)
LG_PAIR2(__hmul2, x * y)
LG_PAIR2(__hmax2, max(x, y))
LG_PAIR2(__hmin2, min(x, y))
template <class T>
inline T __hfma2(T a, T b, T c) { return {{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}}; }

namespace tl {
template <class V, class U>
inline V broadcast(U unit) {  // a vector of equal elements
  static_assert(sizeof(V) % sizeof(U) == 0);
  V whole;
  for (std::size_t at = 0; at < sizeof(V); at += sizeof(U)) {
    std::memcpy(reinterpret_cast<char*>(&whole) + at, &unit, sizeof(U));
  }
  return whole;
}
LG_PAIR2(add2, x + y)
LG_PAIR2(sub2, x - y)
LG_PAIR2(mul2, x * y)
LG_PAIR2(max2, max(x, y))
LG_PAIR2(min2, min(x, y))
template <class T>
inline T fma2(T a, T b, T c) { return __hfma2(a, b, c); }
inline float2 fma2(float2 a, float2 b, float2 c) {
  return {std::fma(a.x, b.x, c.x), std::fma(a.y, b.y, c.y)};
}
template <class T>
inline T abs2(T a) { return {{__habs(a.x), __habs(a.y)}}; }
inline float2 abs2(float2 a) { return {std::fabs(a.x), std::fabs(a.y)}; }
template <class T>
inline uint1 to_uint1(T pair) { return {lg::bits<unsigned>(pair)}; }
template <class T>
inline T from_uint1(uint1 word) { return lg::bits<T>(word.x); }
inline uint1 pack_half2(half_t a, half_t b) { return {__pack_half2(a, b)}; }
inline uint1 pack_half2(bfloat16_t a, bfloat16_t b) { return {__pack_half2(a, b)}; }
inline float fast_rcp(float x) { return 1.0f / x; }
inline float clamp(float x, float lo, float hi) {
  return std::isnan(x) ? x : std::fmin(std::fmax(x, lo), hi);
}
inline half_t clamp(half_t x, half_t lo, half_t hi) { return half_t(clamp(float(x), float(lo), float(hi))); }
inline bfloat16_t clamp(bfloat16_t x, bfloat16_t lo, bfloat16_t hi) {
  return bfloat16_t(clamp(float(x), float(lo), float(hi)));
}
template <class T>
inline T fast_max(T a, T b) { return max(a, b); }
template <class T>
inline T fast_min(T a, T b) { return min(a, b); }
template <class T>
inline bool Any(T* a, int n) { return std::any_of(a, a + n, [](T x) { return bool(x); }); }
template <class T>
inline bool All(T* a, int n) { return std::all_of(a, a + n, [](T x) { return bool(x); }); }
}  // namespace tl
using tl::fast_rcp;

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  std::uint64_t bytes = a | std::uint64_t(b) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned pick = selector >> (4 * i) & 0xFu;
    unsigned byte = unsigned(bytes >> (8 * (pick & 7u))) & 0xFFu;
    if (pick & 8u) byte = byte & 0x80u ? 0xFFu : 0u;  // replicate the sign
    result |= byte << (8 * i);
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int(std::int8_t(a >> (8 * i))) * int(std::int8_t(b >> (8 * i)));
  return c;
}
template <class T>
inline T __ldg(const T* p) { return *p; }
