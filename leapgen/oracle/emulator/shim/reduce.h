// TileLang's reductions over a warp or a block, and atomics.
#pragma once
#include "warp.h"

namespace tl {
template <class T>
inline T shfl_xor_sync(unsigned mask, T value, int bits) { return __shfl_xor_sync(mask, value, bits); }
template <class T>
inline T shfl_down_sync(unsigned mask, T value, int n) { return __shfl_down_sync(mask, value, unsigned(n)); }
template <class T>
inline T shfl_up_sync(unsigned mask, T value, int n) { return __shfl_up_sync(mask, value, unsigned(n)); }
template <class T>
inline T shfl_sync(unsigned mask, T value, int source) { return __shfl_sync(mask, value, source); }

struct SumOp {
  template <class T>
  T operator()(T a, T b) const { return T(a + b); }
};
struct MaxOp {
  template <class T>
  T operator()(T a, T b) const { return max(a, b); }
};
struct MinOp {
  template <class T>
  T operator()(T a, T b) const { return min(a, b); }
};
struct BitAndOp {
  template <class T>
  T operator()(T a, T b) const { return a & b; }
};
struct BitOrOp {
  template <class T>
  T operator()(T a, T b) const { return a | b; }
};
struct BitXorOp {
  template <class T>
  T operator()(T a, T b) const { return a ^ b; }
};

// Butterfly from the widest exchange to the narrowest: the order of the additions is TileLang's.
template <class T, class Op>
inline T warp_reduce(T value, Op op) {
  for (int bits = 16; bits; bits >>= 1) value = op(value, __shfl_xor_sync(~0u, value, bits));
  return value;
}
template <class T>
inline T warp_reduce_sum(T value) { return warp_reduce(value, SumOp()); }
template <class T>
inline T warp_reduce_max(T value) { return warp_reduce(value, MaxOp()); }
template <class T>
inline T warp_reduce_min(T value) { return warp_reduce(value, MinOp()); }
template <class T>
inline T warp_reduce_bitand(T value) { return warp_reduce(value, BitAndOp()); }
template <class T>
inline T warp_reduce_bitor(T value) { return warp_reduce(value, BitOrOp()); }

struct SyncThreadsBarrier {
  template <int phase = 0>
  static void sync() { __syncthreads(); }
};
template <int all_threads>
struct NamedBarrier {
  template <int phase = 1>
  static void sync() { __sync_thread_partial(phase, all_threads); }
};

// All threads of a group of `threads` neighbours, `scale` apart, end with the reduction.
template <class Op, int threads, int scale, int thread_offset = 0,
          class Barrier = SyncThreadsBarrier, int batch_size = 1, int workspace_stride = 0>
struct AllReduce {
  template <class T>
  static T run(T value, T* scratch = nullptr) {
    for (int offset = threads / 2; offset >= scale; offset /= 2) {
      if (offset < lg::kWarp) {
        value = Op()(value, __shfl_xor_sync(~0u, value, offset));
        continue;
      }
      int self = int(threadIdx.x) - thread_offset;
      Barrier::template sync<1>();
      scratch[self] = value;
      Barrier::template sync<2>();
      value = Op()(value, scratch[self ^ offset]);
    }
    return value;
  }
  template <class T>
  static void run_batch(T* values, T* scratch = nullptr) {
    for (int i = 0; i < batch_size; ++i)
      values[i] = run(values[i], scratch ? scratch + i * workspace_stride : nullptr);
  }
};

// One thread of each group of `extent` threads; 0: one thread of the block.
template <int extent>
inline bool tl_shuffle_elect() {
  if (extent == 0) return lg::current->linear == 0;
  return lg::current->lane == 0 && lg::current->warp % ((extent + 31) / 32) == 0;
}
}  // namespace tl

// Fibers are switched at rendezvous only, so a plain read-modify-write is atomic.
template <class T, class U, class F>
inline T lg_atomic(T* address, U operand, F combine) {
  lg::Atomic atomic;
  T old = *address;
  *address = T(combine(old, T(operand)));
  asm volatile("" ::: "memory");
  return old;
}
#define LG_ATOMIC(CUDA, TILE, EXPRESSION)                                                     \
  template <class T, class U>                                                                 \
  inline T CUDA(T* p, U v) { return lg_atomic(p, v, [](T a, T b) { return EXPRESSION; }); }   \
  template <class T, class U>                                                                 \
  inline void TILE(T* p, U v, int = 0) { CUDA(p, v); }                                        \
  template <class T, class U>                                                                 \
  inline void TILE(T& p, U v, int = 0) { CUDA(&p, v); }                                       \
  template <class T, class U>                                                                 \
  inline T TILE##Ret(T* p, U v, int = 0) { return CUDA(p, v); }
LG_ATOMIC(atomicAdd, AtomicAdd, a + b)
LG_ATOMIC(atomicMax, AtomicMax, a < b ? b : a)
LG_ATOMIC(atomicMin, AtomicMin, b < a ? b : a)
template <class T, class U>
inline T atomicExch(T* p, U v) { return lg_atomic(p, v, [](T, T b) { return b; }); }
template <class T, class U>
inline T atomicOr(T* p, U v) { return lg_atomic(p, v, [](T a, T b) { return a | b; }); }
template <class T, class U>
inline T atomicAnd(T* p, U v) { return lg_atomic(p, v, [](T a, T b) { return a & b; }); }
template <class T>
inline T atomicCAS(T* p, T expected, T desired) {
  return lg_atomic(p, desired, [expected](T a, T b) { return a == expected ? b : a; });
}
template <class T>
inline T AtomicLoad(T* place, int) {
  lg::Atomic atomic;
  T value = *place;
  asm volatile("" ::: "memory");
  return value;
}
template <class T, class U>
inline void AtomicStore(T* place, U value, int) { atomicExch(place, value); }
