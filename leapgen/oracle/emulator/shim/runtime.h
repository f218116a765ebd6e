// Runtime of the emulator: one CUDA block at a time on one CPU thread, each CUDA thread a fiber.
// A fiber runs until it meets a rendezvous (barrier, warp collective, mbarrier wait) and is resumed
// when the rendezvous is complete; among the runnable fibers the next is drawn at random.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hooks.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace lg {

constexpr int kWarp = 32;
constexpr std::size_t kStack = 256 * 1024;  // virtual; only touched pages cost memory
constexpr std::size_t kGuard = 16 * 1024;   // unreadable pages below each stack

struct Fiber {
  void* sp = nullptr;
  unsigned char* stack = nullptr;
  dim3 tid;
  int lane = 0, warp = 0, linear = 0;
  unsigned epoch = 0;          // barriers of the whole block passed so far
  const char* waits = "";      // what the fiber waits for, for the deadlock report
  bool done = false;
};

inline dim3 grid_dim, block_dim, block_idx;
inline Fiber* current = nullptr;
inline std::vector<Fiber*> fibers, ready;
inline void* scheduler_sp = nullptr;
inline int threads = 0, alive = 0;
inline std::uint64_t random_state = 0;   // 0: fixed order
inline char error_text[512] = "";
inline bool failed = false;

// --- context switch ---------------------------------------------------------------------------
#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack, loads them from the new one.
extern "C" void lg_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.weak lg_switch
.hidden lg_switch
.type lg_switch,@function
lg_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rax
  jmp *%rax
.size lg_switch, .-lg_switch
)");
inline void* prepare(unsigned char* stack, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(stack + kStack) & ~std::uintptr_t(15);
  auto* sp = reinterpret_cast<void**>(top) - 2;  // a call leaves rsp = 8 mod 16 at the entry
  sp[0] = reinterpret_cast<void*>(entry);
  sp -= 6;
  std::memset(sp, 0, 6 * sizeof(void*));
  return sp;
}
#else
#include <ucontext.h>
// The portable form: slower (a system call a switch), same behaviour.
inline void lg_switch(void** save, void* load) {
  auto* from = new ucontext_t;
  *save = from;
  auto* to = static_cast<ucontext_t*>(load);
  swapcontext(from, to);
  delete to;
}
inline void* prepare(unsigned char* stack, void (*entry)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif

// --- scheduling -------------------------------------------------------------------------------
inline unsigned draw(unsigned n) {  // xorshift64*, uniform enough for an order
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return unsigned((random_state * 0x2545F4914F6CDD1DULL) >> 33) % n;
}

inline Fiber* next_ready() {
  if (ready.empty()) return nullptr;
  if (random_state) std::swap(ready[draw(unsigned(ready.size()))], ready.back());
  Fiber* fiber = ready.back();
  ready.pop_back();
  return fiber;
}

// Leaves the current fiber (which must stand in some waiting list) for another or the scheduler.
inline void suspend(const char* why) {
  Fiber* self = current;
  self->waits = why;
  Fiber* next = next_ready();
  if (next == self) return;
  current = next;
  lg_switch(&self->sp, next ? next->sp : scheduler_sp);
}

// Stops the block: the fibers are abandoned where they stand.
[[noreturn]] inline void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  int used = 0;
  if (current)
    used = std::snprintf(error_text, sizeof error_text, "block (%u,%u,%u) thread %d: ", block_idx.x,
                         block_idx.y, block_idx.z, current->linear);
  std::vsnprintf(error_text + used, sizeof error_text - std::size_t(used), format, list);
  va_end(list);
  failed = true;
  Fiber* self = current;
  void* unused = nullptr;
  current = nullptr;
  lg_switch(self ? &self->sp : &unused, scheduler_sp);
  std::abort();
}

// --- barriers of the block --------------------------------------------------------------------
struct BlockBarrier {
  int arrived = 0, expected = 0;  // expected 0: all threads that have not returned
  std::vector<Fiber*> waiting;
};
constexpr int kBarriers = 16;
inline BlockBarrier barriers[kBarriers];

inline void release_if_complete(BlockBarrier& barrier) {
  if (barrier.arrived == 0) return;
  if (barrier.arrived < (barrier.expected ? barrier.expected : alive)) return;
  barrier.arrived = 0;
  for (Fiber* fiber : barrier.waiting) {
    check_acquire(&barrier, fiber->linear);
    if (barrier.expected == 0 || barrier.expected == threads) ++fiber->epoch;
    ready.push_back(fiber);
  }
  barrier.waiting.clear();
}

inline void barrier_arrive(int id, int expected, bool wait) {
  if (id < 0 || id >= kBarriers) fail("barrier %d does not exist", id);
  BlockBarrier& barrier = barriers[id];
  if (barrier.arrived && barrier.expected != expected)
    fail("barrier %d met with %d and with %d threads", id, barrier.expected, expected);
  barrier.expected = expected;
  ++barrier.arrived;
  check_release(&barrier);
  if (wait) barrier.waiting.push_back(current);
  release_if_complete(barrier);
  if (wait) suspend("a barrier of the block");
}

// --- end of a thread --------------------------------------------------------------------------
void warp_thread_ended(Fiber& fiber);   // warp.h
void async_thread_ended();              // async.h
void async_block_started();
void async_block_ended();
void warps_reset();
void kernel_thread();                   // calls the kernel with the launch's arguments

inline void fiber_main() {
  kernel_thread();
  async_thread_ended();
  current->done = true;
  --alive;
  warp_thread_ended(*current);
  for (auto& barrier : barriers) release_if_complete(barrier);
  suspend("nothing");
  std::abort();
}

// --- one block --------------------------------------------------------------------------------
inline unsigned char* new_stack() {
  void* area = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) std::abort();
  mprotect(area, kGuard, PROT_NONE);
  return static_cast<unsigned char*>(area) + kGuard;
}

inline void prepare_fibers() {
  while (fibers.size() < std::size_t(threads)) {
    auto* fiber = new Fiber;
    fiber->stack = new_stack();
    fibers.push_back(fiber);
  }
  ready.clear();
  for (int i = threads - 1; i >= 0; --i) {  // the last is taken first: thread 0 begins
    Fiber& fiber = *fibers[std::size_t(i)];
    fiber.linear = i;
    fiber.tid = {unsigned(i) % block_dim.x, unsigned(i) / block_dim.x % block_dim.y,
                 unsigned(i) / (block_dim.x * block_dim.y)};
    fiber.lane = i % kWarp;
    fiber.warp = i / kWarp;
    fiber.epoch = 0;
    fiber.done = false;
    fiber.sp = prepare(fiber.stack, fiber_main);
    ready.push_back(&fiber);
  }
  alive = threads;
}

inline void report_deadlock() {
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *fibers[std::size_t(i)];
    if (fiber.done) continue;
    std::snprintf(error_text, sizeof error_text,
                  "block (%u,%u,%u): deadlock, %d of %d threads wait; thread %d waits for %s",
                  block_idx.x, block_idx.y, block_idx.z, alive, threads, i, fiber.waits);
    failed = true;
    return;
  }
}

inline void run_block() {
  for (auto& barrier : barriers) barrier = BlockBarrier();
  warps_reset();
  async_block_started();
  prepare_fibers();
  while (!failed && !ready.empty()) {
    current = next_ready();
    lg_switch(&scheduler_sp, current->sp);
  }
  current = nullptr;
  if (!failed && alive) report_deadlock();
  if (!failed) async_block_ended();
}

}  // namespace lg
