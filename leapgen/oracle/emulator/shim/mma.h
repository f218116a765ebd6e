// Matrix instructions of one warp. Fragment layouts: PTX ISA, "Warp Level Matrix Multiply-Accumulate".
// With lane = 4 g + t: an operand register holds neighbours along the inner dimension, row g of A
// (or column g of B); an accumulator holds columns 2 t and 2 t + 1 of rows g and g + 8.
#pragma once
#include "async.h"

namespace tl {
enum class DataType {
  kInt4, kUInt4, kInt8, kUInt8, kInt16, kUInt16, kInt32, kUInt32, kInt64, kUInt64,
  kFloat8_e4m3, kFloat8_e5m2, kFloat16, kBFloat16, kTensorFloat32, kFloat32, kFloat64,
  kBit1, kBit8, kBit16, kBit32, kBit64
};
}  // namespace tl

namespace lg {
template <tl::DataType type>
struct Operand;  // elements in a 32-bit register, and the value of one of them
template <>
struct Operand<tl::DataType::kInt8> {
  static constexpr int count = 4;
  static int value(unsigned word, int i) { return std::int8_t(word >> (8 * i)); }
};
template <>
struct Operand<tl::DataType::kUInt8> {
  static constexpr int count = 4;
  static int value(unsigned word, int i) { return int(word >> (8 * i) & 0xFFu); }
};
template <>
struct Operand<tl::DataType::kFloat16> {
  static constexpr int count = 2;
  static float value(unsigned word, int i) { return HalfFormat::decode(std::uint16_t(word >> (16 * i))); }
};
template <>
struct Operand<tl::DataType::kBFloat16> {
  static constexpr int count = 2;
  static float value(unsigned word, int i) { return BFloatFormat::decode(std::uint16_t(word >> (16 * i))); }
};
template <>
struct Operand<tl::DataType::kTensorFloat32> {
  static constexpr int count = 1;
  static float value(unsigned word, int) { return bits<float>(word & 0xFFFFE000u); }
};

template <int A, int B>
struct Fragments {
  unsigned a[A], b[B];
};

// D = A B + C for a tile of 16 x 8 x K; `read` and `write` access the four accumulators of a lane.
template <class In, int K, class C, class Read, class Write>
inline void multiply(const unsigned* a, const unsigned* b, Read read, Write write) {
  constexpr int half = 4 * In::count, parts = K / half;  // a register spans `half` inner indices
  static_assert(parts >= 1);
  using Mine = Fragments<2 * parts, parts>;
  Mine mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  auto all = gather(~0u, mine, "mma.sync");
  const int g = current->lane / 4, t = current->lane % 4;
  C sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = read(i);
  for (int inner = 0; inner < 4; ++inner) {
    for (int i = 0; i < 4; ++i) {
      const Mine row = all[g * 4 + inner], column = all[(2 * t + i % 2) * 4 + inner];
      for (int part = 0; part < parts; ++part)
        for (int e = 0; e < In::count; ++e)
          sum[i] += In::value(row.a[2 * part + i / 2], e) * In::value(column.b[part], e);
    }
  }
  for (int i = 0; i < 4; ++i) write(i, sum[i]);
}
}  // namespace lg

namespace tl {
template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransA, bool TransB,
          bool saturate = false, class Acc>
inline void mma_sync(Acc* c, const unsigned* a, const unsigned* b) {
  static_assert(M == 16 && N == 8 && !TransA && TransB && A == B, "mma shape not emulated");
  using In = lg::Operand<A>;
  if constexpr (C == DataType::kFloat16) {  // two accumulators in one register
    auto* halves = reinterpret_cast<half_t*>(c);
    lg::multiply<In, K, float>(a, b, [&](int i) { return float(halves[i]); },
                               [&](int i, float v) { halves[i] = half_t(v); });
  } else {
    lg::multiply<In, K, Acc>(a, b, [&](int i) { return c[i]; }, [&](int i, Acc v) { c[i] = v; });
  }
}

// Transposition of an 8 x 8 matrix of 16-bit elements: lane 4 g + t holds row g, columns 2t, 2t+1.
inline unsigned movmatrix_trans(unsigned word) {
  auto all = lg::gather(~0u, word, "movmatrix");
  int g = lg::current->lane / 4, t = lg::current->lane % 4;
  unsigned result = 0;
  for (int i = 0; i < 2; ++i)
    result |= (all[(2 * t + i) * 4 + g / 2] >> (g % 2 * 16) & 0xFFFFu) << (16 * i);
  return result;
}

// Loads `count` 8 x 8 matrices of 16-bit elements; lane 8 m + i gives the address of row i of m.
template <int count, bool transpose>
inline void ldmatrix(const void* row, void* registers) {
  auto rows = lg::gather(~0u, row, transpose ? "ldmatrix.trans" : "ldmatrix");
  int g = lg::current->lane / 4, t = lg::current->lane % 4;
  for (int m = 0; m < count; ++m) {
    std::uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      int line = transpose ? 2 * t + i : g, column = transpose ? g : 2 * t + i;
      pair[i] = static_cast<const std::uint16_t*>(rows[8 * m + line])[column];
    }
    static_cast<unsigned*>(registers)[m] = pair[0] | unsigned(pair[1]) << 16;
  }
}
#define LG_LDMATRIX(COUNT)                                                                         \
  template <class T, class U>                                                                      \
  inline void ptx_ldmatrix_x##COUNT(T* p, U* r) { ldmatrix<COUNT, false>(p, r); }                  \
  template <class T, class U>                                                                      \
  inline void ptx_ldmatrix_x##COUNT##_trans(T* p, U* r) { ldmatrix<COUNT, true>(p, r); }
LG_LDMATRIX(1)
LG_LDMATRIX(2)
LG_LDMATRIX(4)
}  // namespace tl
