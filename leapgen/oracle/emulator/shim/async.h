// Asynchronous copies and mbarriers. Data lands as late as the program allows: a cp.async at the
// wait for its group, a bulk copy when a thread waits for its mbarrier, so that a read before the
// wait sees the old contents.
#pragma once
#include "reduce.h"

namespace lg {

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes, zeros;
  std::uint64_t* barrier;  // null for cp.async and for stores
};
struct Groups {                      // of one thread: copies not yet committed, committed groups
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> committed;
};
inline std::vector<Groups> loads, stores;          // cp.async; bulk copies from shared memory
inline std::vector<Copy> bulk;                     // loads in flight towards an mbarrier
struct Waiter {
  std::uint64_t* barrier;
  Fiber* fiber;
};
inline std::vector<Waiter> waiters;

inline void land(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
  check_land(copy.to, copy.bytes + copy.zeros, copy.barrier);
}
inline void commit(std::vector<Groups>& all) {
  Groups& groups = all[std::size_t(current->linear)];
  groups.committed.push_back(std::move(groups.open));
  groups.open.clear();
}
inline void wait_groups(std::vector<Groups>& all, std::size_t pending) {
  auto& committed = all[std::size_t(current->linear)].committed;
  while (committed.size() > pending) {
    for (const Copy& copy : committed.front()) land(copy);
    committed.erase(committed.begin());
  }
}

// The 64 bits of an mbarrier: arrivals expected and missing, bytes in flight, parity of the phase.
struct Phase {
  std::uint16_t expected, missing : 15, parity : 1;
  std::int32_t bytes;
};
static_assert(sizeof(Phase) == 8);

inline std::uint64_t load_word(const std::uint64_t& barrier) {
  Atomic atomic;
  std::uint64_t word = barrier;
  asm volatile("" ::: "memory");
  return word;
}
inline void store_word(std::uint64_t& barrier, Phase phase) {
  Atomic atomic;
  barrier = bits<std::uint64_t>(phase);
  asm volatile("" ::: "memory");
}
inline Phase phase_of(std::uint64_t& barrier) {
  Phase phase = bits<Phase>(load_word(barrier));
  if (phase.expected == 0xFFFF) fail("an mbarrier is used before its initialisation");
  return phase;
}
inline void store_phase(std::uint64_t& barrier, Phase phase) {
  if (phase.missing == 0 && phase.bytes == 0) {
    phase.missing = phase.expected;
    phase.parity ^= 1;
    for (std::size_t i = 0; i < waiters.size();) {
      if (waiters[i].barrier != &barrier) { ++i; continue; }
      ready.push_back(waiters[i].fiber);
      waiters.erase(waiters.begin() + std::ptrdiff_t(i));
    }
  }
  store_word(barrier, phase);
}
inline void arrive(std::uint64_t& barrier, std::int32_t bytes) {
  check_release(&barrier);
  Phase phase = phase_of(barrier);
  if (phase.missing == 0) fail("more arrivals at an mbarrier than the %d expected", phase.expected);
  phase.missing = std::uint16_t(phase.missing - 1);
  phase.bytes += bytes;
  store_phase(barrier, phase);
}
inline void add_bytes(std::uint64_t& barrier, std::int32_t bytes) {
  Phase phase = phase_of(barrier);
  phase.bytes += bytes;
  store_phase(barrier, phase);
}
inline void land_bulk(std::uint64_t& barrier) {
  for (std::size_t i = 0; i < bulk.size();) {
    if (bulk[i].barrier != &barrier) { ++i; continue; }
    Copy copy = bulk[i];
    bulk.erase(bulk.begin() + std::ptrdiff_t(i));
    land(copy);
    add_bytes(barrier, -std::int32_t(copy.bytes));
  }
}
inline bool completed(std::uint64_t& barrier, unsigned parity) {
  if (phase_of(barrier).parity == (parity & 1u)) land_bulk(barrier);
  return phase_of(barrier).parity != (parity & 1u);
}
inline void wait_phase(std::uint64_t& barrier, unsigned parity) {
  while (!completed(barrier, parity)) {
    waiters.push_back({&barrier, current});
    suspend("an mbarrier");
  }
  check_acquire(&barrier, current->linear);
}

inline void async_block_started() {
  loads.assign(std::size_t(threads), {});
  stores.assign(std::size_t(threads), {});
  bulk.clear();
  waiters.clear();
}
inline void async_thread_ended() {
  for (auto* all : {&loads, &stores}) {
    commit(*all);
    wait_groups(*all, 0);
  }
}
inline void async_block_ended() {
  if (!bulk.empty()) fail("a bulk copy of %zu bytes is never waited for", bulk.front().bytes);
}
}  // namespace lg

namespace tl {
inline void mbarrier_init(uint64_t& barrier, uint32_t count) {
  // a plain store: whoever uses the barrier must be ordered after its initialisation
  barrier = lg::bits<uint64_t>(lg::Phase{std::uint16_t(count), std::uint16_t(count & 0x7FFF), 0, 0});
}
inline void mbarrier_wait(uint64_t& barrier, int parity) { lg::wait_phase(barrier, unsigned(parity)); }
inline uint32_t mbarrier_try_wait(uint64_t& barrier, int parity) {
  return lg::completed(barrier, unsigned(parity));
}
inline bool mbarrier_test_wait(uint64_t& barrier, int parity, uint32_t predicate = 1u) {
  return !predicate || lg::completed(barrier, unsigned(parity));
}
inline void mbarrier_arrive(uint64_t& barrier) { lg::arrive(barrier, 0); }
inline void mbarrier_expect_tx(uint64_t& barrier, uint32_t bytes) {
  lg::add_bytes(barrier, std::int32_t(bytes));
}
inline void mbarrier_arrive_expect_tx(uint64_t& barrier, uint32_t bytes) {
  lg::arrive(barrier, std::int32_t(bytes));
}
inline void fence_proxy_async() {}
inline void fence_barrier_init() {}
inline void tma_store_arrive() { lg::commit(lg::stores); }
template <int pending, bool read = true>
inline void tma_store_wait() { lg::wait_groups(lg::stores, pending); }
template <class Barrier>
inline void tma_load(void* to, const void* from, Barrier& barrier, uint32_t bytes) {
  if (bytes % 16 || reinterpret_cast<std::uintptr_t>(to) % 16 ||
      reinterpret_cast<std::uintptr_t>(from) % 16)
    lg::fail("a bulk copy of %u bytes that is not aligned to 16", bytes);
  lg::check_issue(to, from, bytes);
  lg::bulk.push_back({to, from, bytes, 0, reinterpret_cast<std::uint64_t*>(&barrier)});
}
inline void tma_store(void* to, void* from, uint32_t bytes) {
  lg::check_issue(to, from, bytes);
  lg::stores[std::size_t(lg::current->linear)].open.push_back({to, from, bytes, 0, nullptr});
}

template <int bytes>
inline void cp_async_gs_conditional(const void* to, const void* from, bool condition) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  for (auto* address : {to, from})
    if (reinterpret_cast<std::uintptr_t>(address) % bytes)
      lg::fail("cp.async of %d bytes at an address that is not aligned to them", bytes);
  std::size_t take = condition ? bytes : 0;
  lg::check_issue(const_cast<void*>(to), from, take);
  lg::loads[std::size_t(lg::current->linear)].open.push_back(
      {const_cast<void*>(to), from, take, bytes - take, nullptr});
}
template <int bytes>
inline void cp_async_gs(const void* to, const void* from) {
  cp_async_gs_conditional<bytes>(to, from, true);
}
inline void cp_async_commit() { lg::commit(lg::loads); }
template <int pending>
inline void cp_async_wait() {
  if (pending == 0) lg::commit(lg::loads);  // TileLang waits for all copies then, committed or not
  lg::wait_groups(lg::loads, pending);
}

#define LG_ACCESS(BITS, T)                                                                    \
  inline T load_global_##BITS(const void* p) { return *static_cast<const T*>(p); }            \
  inline T load_global_##BITS##_conditional(const void* p, bool on) {                         \
    return on ? *static_cast<const T*>(p) : T{};                                              \
  }                                                                                           \
  inline T load_shared_##BITS(const void* p) { return *static_cast<const T*>(p); }            \
  inline void store_shared_##BITS(void* p, T value) { *static_cast<T*>(p) = value; }          \
  inline void store_global_##BITS(void* p, T value) { *static_cast<T*>(p) = value; }          \
  inline void store_global_##BITS##_conditional(void* p, T value, bool on) {                  \
    if (on) *static_cast<T*>(p) = value;                                                      \
  }
LG_ACCESS(32, uint32_t)
LG_ACCESS(64, uint2)
LG_ACCESS(128, uint4)
}  // namespace tl

struct alignas(8) Barrier {
  uint64_t word;
  Barrier() = delete;
  void init(uint32_t count) { tl::mbarrier_init(word, count); }
  void wait(uint32_t parity) { tl::mbarrier_wait(word, int(parity)); }
  bool try_wait(uint32_t parity) { return tl::mbarrier_try_wait(word, int(parity)); }
  bool test_wait(uint32_t parity, uint32_t on = 1u) {
    return tl::mbarrier_test_wait(word, int(parity), on);
  }
  void arrive() { tl::mbarrier_arrive(word); }
  void expect_transaction(uint32_t bytes) { tl::mbarrier_expect_tx(word, bytes); }
  void arrive_and_expect_tx(uint32_t bytes) { tl::mbarrier_arrive_expect_tx(word, bytes); }
};
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
