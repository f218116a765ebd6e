// Faults of the emulated program: bad addresses end the launch with a message, not the process.
#pragma once
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "runtime.h"

namespace lg {

inline sigjmp_buf escape;
inline pthread_t watched_thread;
inline struct sigaction former_segv, former_bus, former_fpe;

inline void on_fault(int signal, siginfo_t* info, void*) {
  if (!pthread_equal(pthread_self(), watched_thread)) {  // not ours: give it back and fault again
    sigaction(SIGSEGV, &former_segv, nullptr);
    sigaction(SIGBUS, &former_bus, nullptr);
    sigaction(SIGFPE, &former_fpe, nullptr);
    return;
  }
  auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  int used = std::snprintf(error_text, sizeof error_text, "block (%u,%u,%u) thread %d: ", block_idx.x,
                           block_idx.y, block_idx.z, current ? current->linear : -1);
  char* rest = error_text + used;
  const std::size_t room = sizeof error_text - std::size_t(used);
  if (signal == SIGFPE) std::snprintf(rest, room, "integer division by zero");
  else if (const Region* region = region_at(address)) describe_outside(rest, room, *region, address);
  else std::snprintf(rest, room, "access to an address of no buffer, or a misaligned one");
  failed = true;
  siglongjmp(escape, 1);
}

// While it lives, memory faults of this thread return from `run` with false.
class Watch {
  stack_t former_stack_{};
  std::vector<unsigned char> stack_ = std::vector<unsigned char>(64 * 1024);

 public:
  Watch() {
    watched_thread = pthread_self();
    stack_t own{};
    own.ss_sp = stack_.data();
    own.ss_size = stack_.size();
    sigaltstack(&own, &former_stack_);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &former_segv);
    sigaction(SIGBUS, &action, &former_bus);
    sigaction(SIGFPE, &action, &former_fpe);
  }
  ~Watch() {
    sigaction(SIGSEGV, &former_segv, nullptr);
    sigaction(SIGBUS, &former_bus, nullptr);
    sigaction(SIGFPE, &former_fpe, nullptr);
    if (!(former_stack_.ss_flags & SS_DISABLE)) {
      sigaltstack(&former_stack_, nullptr);
      return;
    }
    stack_t off{};
    off.ss_flags = SS_DISABLE;
    sigaltstack(&off, nullptr);
  }
  Watch(const Watch&) = delete;
  bool run(void (*body)()) {
    if (sigsetjmp(escape, 1)) {
      current = nullptr;
      return false;
    }
    body();
    return true;
  }
};
}  // namespace lg
