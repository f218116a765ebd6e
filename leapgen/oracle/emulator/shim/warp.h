// Collectives of a warp: every lane named in the mask meets, then reads what the others brought.
#pragma once
#include <map>
#include <memory>

#include "math.h"

namespace lg {

// One meeting place for one mask of one warp. Two buffers alternate: a lane can only begin the
// round after the next when all lanes have arrived at the next, hence finished reading this one.
struct Meeting {
  unsigned mask = 0, arrived = 0, round = 0;
  const char* operation = nullptr;
  bool orders = false;  // __syncwarp orders memory accesses, the exchange of registers does not
  std::vector<Fiber*> waiting;
  alignas(16) unsigned char values[2][kWarp][64];
};
struct Warp {
  unsigned alive = 0;
  std::vector<std::unique_ptr<Meeting>> meetings;
};
inline std::vector<Warp> warps;

inline void warps_reset() {
  warps.resize(std::size_t((threads + kWarp - 1) / kWarp));
  for (std::size_t w = 0; w < warps.size(); ++w) {
    int lanes = std::min(kWarp, threads - int(w) * kWarp);
    warps[w].alive = lanes == kWarp ? ~0u : (1u << lanes) - 1u;
    for (auto& meeting : warps[w].meetings) {
      meeting->arrived = meeting->round = 0;
      meeting->waiting.clear();
    }
  }
}

inline Meeting& meeting_for(Warp& warp, unsigned mask) {
  for (auto& meeting : warp.meetings)
    if (meeting->mask == mask) return *meeting;
  warp.meetings.push_back(std::make_unique<Meeting>());
  warp.meetings.back()->mask = mask;
  return *warp.meetings.back();
}

inline void finish_if_complete(Warp& warp, Meeting& meeting) {
  if (!meeting.arrived || (meeting.mask & warp.alive & ~meeting.arrived)) return;
  meeting.arrived = 0;
  ++meeting.round;
  for (Fiber* fiber : meeting.waiting) {
    if (meeting.orders) check_acquire(&meeting, fiber->linear);
    ready.push_back(fiber);
  }
  meeting.waiting.clear();
}

inline void warp_thread_ended(Fiber& fiber) {
  Warp& warp = warps[std::size_t(fiber.warp)];
  warp.alive &= ~(1u << fiber.lane);
  for (auto& meeting : warp.meetings) finish_if_complete(warp, *meeting);
}

// The values of all lanes in one collective; lanes that do not take part hold all-ones bytes.
template <class T>
struct Gathered {
  const unsigned char (*values)[64];
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, values[lane], sizeof value);
    return value;
  }
};

template <class T>
inline Gathered<T> gather(unsigned mask, const T& value, const char* operation) {
  static_assert(sizeof(T) <= 64);
  Fiber& self = *current;
  Warp& warp = warps[std::size_t(self.warp)];
  if (!(mask >> self.lane & 1u)) fail("%s with mask %08x that leaves out its caller", operation, mask);
  Meeting& meeting = meeting_for(warp, mask);
  auto* values = meeting.values[meeting.round & 1u];
  if (!meeting.arrived) {
    meeting.operation = operation;
    meeting.orders = !std::strcmp(operation, "__syncwarp");
    if ((mask & warp.alive) != ~0u) std::memset(values, 0xFF, sizeof meeting.values[0]);
  }
  if (std::strcmp(meeting.operation, operation))
    fail("lanes of one warp meet in %s and in %s", meeting.operation, operation);
  std::memcpy(values[self.lane], &value, sizeof value);
  meeting.arrived |= 1u << self.lane;
  if (meeting.orders) check_release(&meeting);
  meeting.waiting.push_back(&self);
  finish_if_complete(warp, meeting);
  suspend(operation);
  return {values};
}

template <class T, class F>
inline T fold(unsigned mask, T value, const char* operation, F combine) {
  auto all = gather(mask, value, operation);
  bool first = true;
  T result{};
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    result = first ? all[lane] : combine(result, all[lane]);
    first = false;
  }
  return result;
}
}  // namespace lg

inline void __syncthreads() { lg::barrier_arrive(0, 0, true); }
inline void __syncwarp(unsigned mask = ~0u) { lg::gather(mask, 0, "__syncwarp"); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __sync_thread_partial(int id = 0, int count = 0) { lg::barrier_arrive(id, count, true); }
namespace tl {
using ::__sync_thread_partial;
}
inline void __named_barrier_arrive(int id, int count) { lg::barrier_arrive(id, count, false); }
inline int __syncthreads_count(int predicate) {
  static int sums[2];  // in turn: one is read while the other is empty
  int slot = int(lg::current->epoch / 2 % 2);
  if (predicate) ++sums[slot];
  __syncthreads();
  int result = sums[slot];
  __syncthreads();
  sums[slot] = 0;
  return result;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  auto all = lg::gather(mask, value, "__shfl_sync");
  int lane = lg::current->lane;
  return all[(lane & ~(width - 1)) + (source & (width - 1))];
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  auto all = lg::gather(mask, value, "__shfl_xor_sync");
  int lane = lg::current->lane, other = lane ^ bits;
  return all[(other & ~(width - 1)) <= (lane & ~(width - 1)) ? other : lane];
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  auto all = lg::gather(mask, value, "__shfl_down_sync");
  int lane = lg::current->lane;
  return all[lane % width + int(delta) < width ? lane + int(delta) : lane];
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  auto all = lg::gather(mask, value, "__shfl_up_sync");
  int lane = lg::current->lane;
  return all[lane % width >= int(delta) ? lane - int(delta) : lane];
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return lg::fold(mask, predicate ? 1u << lg::current->lane : 0u, "__ballot_sync",
                  [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __activemask() { return lg::warps[std::size_t(lg::current->warp)].alive; }
template <class T>
inline T __reduce_max_sync(unsigned mask, T value) {
  return lg::fold(mask, value, "__reduce_max_sync", [](T a, T b) { return a > b ? a : b; });
}
template <class T>
inline T __reduce_min_sync(unsigned mask, T value) {
  return lg::fold(mask, value, "__reduce_min_sync", [](T a, T b) { return a < b ? a : b; });
}
template <class T>
inline T __reduce_add_sync(unsigned mask, T value) {
  return lg::fold(mask, value, "__reduce_add_sync", [](T a, T b) { return T(a + b); });
}
template <class T>
inline T __reduce_or_sync(unsigned mask, T value) {
  return lg::fold(mask, value, "__reduce_or_sync", [](T a, T b) { return T(a | b); });
}
