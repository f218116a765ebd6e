// Included before the emitted source: everything it may name, and the launch.
#pragma once
#include "check.h"
#include "mma.h"
#include "ptx.h"

#include <tuple>
#include <utility>

extern unsigned char __start_lg_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_lg_shared[] __attribute__((weak, visibility("hidden")));

namespace lg {
// All-ones bytes: NaN as FP32, FP16 and BF16, -1 as an integer.
inline void poison(unsigned char* from, unsigned char* to) {
  if (from < to) std::memset(from, 0xFF, std::size_t(to - from));
}

inline void (*call_kernel)(void**) = nullptr;
inline void** kernel_arguments = nullptr;
inline void kernel_thread() { call_kernel(kernel_arguments); }

template <class... P>
struct Call {
  template <void (*kernel)(P...), std::size_t... I>
  static void unpack(void** values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<P>*>(values[I])...);
  }
};
template <auto kernel, class... P>
inline void call_with(void** values, void (*)(P...)) {
  Call<P...>::template unpack<kernel>(values, std::index_sequence_for<P...>());
}
template <auto kernel>
inline void call(void** values) { call_with<kernel>(values, kernel); }

struct Launch {  // mirrored by run.py
  std::uint32_t grid[3], block[3];
  std::uint64_t seed;
  Region* regions;  // the last two are filled here: static and dynamic shared memory
  std::uint64_t region_count;
  std::uint64_t unwritten_allowed;
};

inline void shared_region(Region& region, unsigned char* from, unsigned char* to, const char* name,
                          bool unwritten_allowed) {
  region = Region{};
  region.begin = region.outer_begin = reinterpret_cast<std::uintptr_t>(from);
  region.end = region.outer_end = reinterpret_cast<std::uintptr_t>(to);
  region.name = name;
  region.shared = unwritten_allowed ? 2 : 1;
}

inline int launch(void (*kernel)(void**), void** arguments, const Launch& info,
                  unsigned char* dynamic, std::size_t dynamic_bytes) {
  call_kernel = kernel;
  kernel_arguments = arguments;
  grid_dim = {info.grid[0], info.grid[1], info.grid[2]};
  block_dim = {info.block[0], info.block[1], info.block[2]};
  threads = int(info.block[0] * info.block[1] * info.block[2]);
  random_state = info.seed ? info.seed * 0x9E3779B97F4A7C15ULL | 1u : 0;
  failed = false;
  error_text[0] = 0;
  regions = info.regions;
  region_count = info.region_count;
  const bool lax = info.unwritten_allowed;
  shared_region(regions[region_count - 2], __start_lg_shared, __stop_lg_shared,
                "static shared memory", lax);
  shared_region(regions[region_count - 1], dynamic, dynamic + dynamic_bytes,
                "dynamic shared memory", lax);
  Watch watch;
  check_launch_started();
  const unsigned total = info.grid[0] * info.grid[1] * info.grid[2];
  std::vector<unsigned> order(total);
  for (unsigned i = 0; i < total; ++i) order[i] = i;
  for (unsigned i = total; random_state && i > 1; --i) std::swap(order[i - 1], order[draw(i)]);
  for (unsigned block : order) {
    block_idx = {block % info.grid[0], block / info.grid[0] % info.grid[1],
                 block / (info.grid[0] * info.grid[1])};
    poison(__start_lg_shared, __stop_lg_shared);
    poison(dynamic, dynamic + dynamic_bytes);
    check_block_started();
    if (!watch.run(run_block) || failed) break;
  }
  check_launch_ended();
  return failed;
}
}  // namespace lg
