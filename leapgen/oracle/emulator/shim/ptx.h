// PTX instructions that kernels use through inline assembly. ptx.py turns a statement
// "name.a.b d, x, y;" into name_a_b(d, x, y) with the operands of the asm statement.
// Semantics: PTX ISA. `.ftz` and `.approx` are computed exactly, subnormals included.
#pragma once
#include "mma.h"

namespace ptx {
using U = std::uint32_t;

// The destination of an instruction: any 32-bit variable.
class Out {
  void* to_;

 public:
  template <class T>
    requires(sizeof(T) == 4)
  Out(T& to) : to_(&to) {}
  Out& operator=(U value) {
    std::memcpy(to_, &value, sizeof value);
    return *this;
  }
};

inline void ex2_approx_ftz_f32(float& d, float x) { d = std::exp2(x); }
inline void ex2_approx_f32(float& d, float x) { d = std::exp2(x); }
inline void lg2_approx_ftz_f32(float& d, float x) { d = std::log2(x); }
inline void lg2_approx_f32(float& d, float x) { d = std::log2(x); }
inline void rcp_approx_ftz_f32(float& d, float x) { d = 1.0f / x; }
inline void rcp_approx_f32(float& d, float x) { d = 1.0f / x; }
inline void rsqrt_approx_ftz_f32(float& d, float x) { d = 1.0f / std::sqrt(x); }
inline void rsqrt_approx_f32(float& d, float x) { d = 1.0f / std::sqrt(x); }
inline void sqrt_approx_f32(float& d, float x) { d = std::sqrt(x); }
inline void tanh_approx_f32(float& d, float x) { d = std::tanh(x); }
inline void fma_rn_f32(float& d, float a, float b, float c) { d = std::fma(a, b, c); }
inline void abs_f32(float& d, float x) { d = std::fabs(x); }
inline void max_f32(float& d, float x, float y) { d = std::fmax(x, y); }

using H = std::uint16_t;
template <class A>
inline void mov_b32(Out d, A a) { d = lg::bits<U>(a); }
inline void mov_b32(H& low, H& high, U word) { low = H(word), high = H(word >> 16); }
inline void mov_b32(Out d, H low, H high) { d = low | U(high) << 16; }
inline void mov_b16(std::uint8_t& low, std::uint8_t& high, H word) { low = H(word & 255), high = H(word >> 8); }
inline void mov_u32(Out d, U a) { d = a; }
inline void setp_ne_b32(bool& p, U a, U b) { p = a != b; }
inline void setp_ne_u32(bool& p, U a, U b) { p = a != b; }
inline void setp_eq_u32(bool& p, U a, U b) { p = a == b; }
inline void setp_lt_s32(bool& p, int a, int b) { p = a < b; }
inline void setp_lt_u32(bool& p, U a, U b) { p = a < b; }
inline void prmt_b32(Out d, U a, U b, U selector) { d = __byte_perm(a, b, selector); }
inline void lop3_b32(Out d, U a, U b, U c, int table) {
  U result = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  d = result;
}
inline void shf_r_wrap_b32(Out d, U low, U high, U n) {
  d = U((std::uint64_t(high) << 32 | low) >> (n & 31u));
}
inline void bfe_s32(Out d, int a, U start, U length) {
  d = length ? int(std::int64_t(a) << (64 - start - length) >> (64 - length)) : 0;
}
inline void dp4a_s32_s32(Out d, int a, int b, int c) { d = __dp4a(a, b, c); }

// Packed FP16 and BF16: each half on its own.
template <class T, class F>
inline U each(U a, U b, U c, F f) {
  U d = 0;
  for (int i = 0; i < 32; i += 16) {
    auto at = [i](U word) { return T::bitcast(std::uint16_t(word >> i)); };
    d |= U(T(f(at(a), at(b), at(c))).storage) << i;
  }
  return d;
}
#define LG_PACKED(SUFFIX, T)                                                                      \
  inline void add_##SUFFIX(Out d, U a, U b) { d = each<T>(a, b, 0, [](T x, T y, T) { return x + y; }); } \
  inline void sub_##SUFFIX(Out d, U a, U b) { d = each<T>(a, b, 0, [](T x, T y, T) { return x - y; }); } \
  inline void mul_##SUFFIX(Out d, U a, U b) { d = each<T>(a, b, 0, [](T x, T y, T) { return x * y; }); } \
  inline void max_##SUFFIX(Out d, U a, U b) { d = each<T>(a, b, 0, [](T x, T y, T) { return max(x, y); }); } \
  inline void min_##SUFFIX(Out d, U a, U b) { d = each<T>(a, b, 0, [](T x, T y, T) { return min(x, y); }); } \
  inline void fma_rn_##SUFFIX(Out d, U a, U b, U c) {                                              \
    d = each<T>(a, b, c, [](T x, T y, T z) { return lg_fma16(x, y, z); });                        \
  }                                                                                               \
  inline void abs_##SUFFIX(Out d, U a) { d = a & 0x7FFF7FFFu; }                                    \
  inline void neg_##SUFFIX(Out d, U a) { d = a ^ 0x80008000u; }
LG_PACKED(f16x2, half_t)
inline void fma_rn_sat_f16x2(Out d, U a, U b, U c) {  // NaN becomes zero
  d = each<half_t>(a, b, c, [](half_t x, half_t y, half_t z) {
    return std::fmin(std::fmax(float(lg_fma16(x, y, z)), 0.0f), 1.0f);
  });
}
LG_PACKED(bf16x2, bfloat16_t)
inline void ex2_approx_f16x2(Out d, U a) {
  d = each<half_t>(a, 0, 0, [](half_t x, half_t, half_t) { return std::exp2(float(x)); });
}
// cvt packs its first source into the upper half.
inline void cvt_rn_f16x2_f32(Out d, float high, float low) { d = __pack_half2(half_t(low), half_t(high)); }
inline void cvt_rn_bf16x2_f32(Out d, float high, float low) {
  d = __pack_half2(bfloat16_t(low), bfloat16_t(high));
}
inline void cvt_rn_f16_f32(std::uint16_t& d, float x) { d = half_t(x).storage; }
inline void cvt_f32_f16(float& d, std::uint16_t x) { d = float(half_t::bitcast(x)); }
// Two codes to two numbers: sign, exponent and mantissa fields, read one by one. NAN_CODE 0: none.
inline float small_float(U code, int exponent, int mantissa, U nan_code) {
  const U magnitude = code & ((1u << (exponent + mantissa)) - 1), field = magnitude >> mantissa;
  const float fraction = float(magnitude & ((1u << mantissa) - 1)) / float(1 << mantissa);
  const int bias = (1 << (exponent - 1)) - 1;
  const float size = field ? std::ldexp(1 + fraction, int(field) - bias) : std::ldexp(fraction, 1 - bias);
  if (nan_code && magnitude == nan_code) return std::nanf("");
  return code >> (exponent + mantissa) & 1 ? -size : size;
}
template <class T>
inline U two(T low, T high) { return low.storage | U(high.storage) << 16; }
#define LG_SMALL(NAME, WORD, BITS, EXPONENT, MANTISSA, NAN_CODE)                                  \
  inline void NAME(Out d, WORD codes) {                                                           \
    d = two(half_t(small_float(codes, EXPONENT, MANTISSA, NAN_CODE)),                             \
            half_t(small_float(codes >> BITS, EXPONENT, MANTISSA, NAN_CODE)));                    \
  }
LG_SMALL(cvt_rn_f16x2_e4m3x2, H, 8, 4, 3, 0x7Fu)
LG_SMALL(cvt_rn_f16x2_e3m2x2, H, 8, 3, 2, 0)
LG_SMALL(cvt_rn_f16x2_e2m3x2, H, 8, 2, 3, 0)
LG_SMALL(cvt_rn_f16x2_e2m1x2, std::uint8_t, 4, 2, 1, 0)
// The nearest code, of two the even one; beyond the largest, the largest.
inline U small_code(float x) {
  const float size = std::fmin(std::fabs(x), 448.0f);
  U best = 0;
  for (U code = 1; code < 0x7Fu; ++code) {
    const float gap = std::fabs(small_float(code, 4, 3, 0) - size), least = std::fabs(small_float(best, 4, 3, 0) - size);
    if (gap < least || (gap == least && code % 2 == 0)) best = code;
  }
  return std::isnan(x) ? 0x7Fu : best | U(std::signbit(x)) << 7;
}
inline void cvt_rn_satfinite_e4m3x2_f32(H& d, float high, float low) {
  d = H(small_code(low) | small_code(high) << 8);
}
inline float power_of_two(U code) { return code == 255 ? std::nanf("") : std::ldexp(1.0f, int(code) - 127); }
inline void cvt_rn_bf16x2_ue8m0x2(Out d, H codes) {
  d = two(bfloat16_t(power_of_two(codes & 255u)), bfloat16_t(power_of_two(codes >> 8)));
}
inline void cvt_rni_s32_f32(Out d, float x) {
  d = std::isnan(x) ? 0
      : x >= 2147483648.0f ? 2147483647
      : x <= -2147483648.0f ? int(-2147483647 - 1) : int(std::nearbyint(x));
}
inline void cvt_rni_sat_s8_f32(Out d, float x) {
  d = std::isnan(x) ? 0 : int(std::nearbyint(std::fmin(127.0f, std::fmax(-128.0f, x))));
}

inline void movmatrix_sync_aligned_m8n8_trans_b16(Out d, U a) { d = tl::movmatrix_trans(a); }
inline void redux_sync_max_u32(Out d, U a, U mask) { d = __reduce_max_sync(mask, a); }
inline void redux_sync_min_u32(Out d, U a, U mask) { d = __reduce_min_sync(mask, a); }
inline void redux_sync_add_u32(Out d, U a, U mask) { d = __reduce_add_sync(mask, a); }
inline void redux_sync_max_s32(Out d, int a, U mask) { d = __reduce_max_sync(mask, a); }
inline void redux_sync_add_s32(Out d, int a, U mask) { d = __reduce_add_sync(mask, a); }
inline void bar_sync(int id, int threads) { __sync_thread_partial(id, threads); }
inline void bar_arrive(int id, int threads) { __named_barrier_arrive(id, threads); }

// mma.sync: the braces of the operand lists are dropped, so the registers arrive one by one.
template <tl::DataType In, int K, class Acc, class D>
inline void mma32(D& d0, D& d1, D& d2, D& d3, const U* a, const U* b, D c0, D c1, D c2, D c3) {
  Acc c[4] = {lg::bits<Acc>(c0), lg::bits<Acc>(c1), lg::bits<Acc>(c2), lg::bits<Acc>(c3)};
  constexpr auto out = std::is_same_v<Acc, float> ? tl::DataType::kFloat32 : tl::DataType::kInt32;
  tl::mma_sync<In, In, out, 16, 8, K, false, true>(c, a, b);
  d0 = lg::bits<D>(c[0]), d1 = lg::bits<D>(c[1]), d2 = lg::bits<D>(c[2]), d3 = lg::bits<D>(c[3]);
}
#define LG_MMA_FULL(NAME, IN, K, ACC)                                                           \
  template <class D, class C>                                                                   \
  inline void NAME(D& d0, D& d1, D& d2, D& d3, U a0, U a1, U a2, U a3, U b0, U b1, C c0, C c1,  \
                   C c2, C c3) {                                                                \
    const U a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                           \
    mma32<tl::DataType::IN, K, ACC, D>(d0, d1, d2, d3, a, b, D(c0), D(c1), D(c2), D(c3));       \
  }
LG_MMA_FULL(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, kInt8, 32, int)
LG_MMA_FULL(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, kFloat16, 16, float)
LG_MMA_FULL(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, kBFloat16, 16, float)
LG_MMA_FULL(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, kTensorFloat32, 8, float)
inline void mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(
    float& d0, float& d1, float& d2, float& d3, U a0, U a1, U b0, float c0, float c1, float c2,
    float c3) {
  const U a[2] = {a0, a1}, b[1] = {b0};
  mma32<tl::DataType::kFloat16, 8, float>(d0, d1, d2, d3, a, b, c0, c1, c2, c3);
}
template <int K>
inline void mma16(Out d0, Out d1, const U* a, const U* b, U c0, U c1) {
  U c[2] = {c0, c1};
  tl::mma_sync<tl::DataType::kFloat16, tl::DataType::kFloat16, tl::DataType::kFloat16, 16, 8, K,
               false, true>(c, a, b);
  d0 = c[0], d1 = c[1];
}
inline void mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(Out d0, Out d1, U a0, U a1, U a2, U a3,
                                                              U b0, U b1, U c0, U c1) {
  const U a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  mma16<16>(d0, d1, a, b, c0, c1);
}
inline void mma_sync_aligned_m16n8k8_row_col_f16_f16_f16_f16(Out d0, Out d1, U a0, U a1, U b0, U c0,
                                                             U c1) {
  const U a[2] = {a0, a1}, b[1] = {b0};
  mma16<8>(d0, d1, a, b, c0, c1);
}
}  // namespace ptx
