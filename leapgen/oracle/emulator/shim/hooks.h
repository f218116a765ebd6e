// What the runtime tells the checker (checker.cpp). Without LG_CHECK all of it vanishes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace lg {

// One range of memory that a kernel may use; mirrored by run.py. Arguments lie in a larger reserved
// range, so that an address beside one is recognised.
struct Region {
  std::uintptr_t begin, end, outer_begin, outer_end;
  const char* name;
  std::uint64_t races_allowed;  // 1: plain stores of several threads or blocks are meant
  std::uint64_t shared;         // 1: shared memory; 2: of which unwritten bytes may be read
  std::uint64_t counts[4];      // out: bytes read, written, sectors read, written (sum over blocks)
};
inline Region* regions = nullptr;
inline std::size_t region_count = 0;
inline bool atomic_access = false;

// While one lives, accesses are atomic: they race with nothing.
struct Atomic {
  Atomic() { set(true); }
  ~Atomic() { set(false); }
  static void set(bool value) {
    atomic_access = value;
    asm volatile("" ::: "memory");
  }
};

inline Region* region_at(std::uintptr_t address) {
  for (std::size_t i = 0; i < region_count; ++i)
    if (address >= regions[i].outer_begin && address < regions[i].outer_end) return &regions[i];
  return nullptr;
}

inline void describe_outside(char* text, std::size_t room, const Region& region,
                             std::uintptr_t address) {
  if (address < region.begin)
    std::snprintf(text, room, "access %zu bytes before the start of %s", region.begin - address,
                  region.name);
  else
    std::snprintf(text, room, "access at byte %zu of %s, which has %zu", address - region.begin,
                  region.name, region.end - region.begin);
}

#ifdef LG_CHECK
void check_launch_started();
void check_launch_ended();
void check_block_started();
// Everything before a release of an object happens before what follows its acquisition.
void check_release(const void* object);
void check_acquire(const void* object, int thread);
void check_issue(void* to, const void* from, std::size_t bytes);             // of an async copy
void check_land(void* to, std::size_t bytes, const void* barrier);           // and its end
#else
inline void check_launch_started() {}
inline void check_launch_ended() {}
inline void check_block_started() {}
inline void check_release(const void*) {}
inline void check_acquire(const void*, int) {}
inline void check_issue(void*, const void*, std::size_t) {}
inline void check_land(void*, std::size_t, const void*) {}
#endif
}  // namespace lg
