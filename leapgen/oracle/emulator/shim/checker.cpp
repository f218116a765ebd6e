// The checker: the kernel is compiled with -fsanitize=thread, which calls the __tsan_ functions
// below before every access to memory that other threads may see. Here they check the address, that
// shared memory was written before, and that conflicting accesses are ordered by vector clocks.
// This file is compiled without the sanitizer and linked first.
#define LG_CHECK
#include "runtime.h"

namespace lg {
namespace {

struct Cell {  // the history of one byte
  std::uint32_t write_clock, read_clock[2];
  std::uint32_t write_place, read_place[2];  // code addresses, relative to the library
  std::uint16_t writer, reader[2];           // thread + 1; 0: none
  std::uint16_t flags;
  std::uint32_t block;                       // serial number of the block of the entries above
};
constexpr std::uint16_t kWritten = 1, kFormerRead = 2, kFormerWrite = 4, kInFlight = 8;
constexpr std::size_t kSector = 32;

struct History {
  Cell* cells = nullptr;
  std::uint32_t *sector_read = nullptr, *sector_written = nullptr;  // last block that touched it
  std::size_t bytes = 0;
};
History* histories = nullptr;
std::size_t history_count = 0;
std::uint32_t block_serial = 0;
std::uint32_t* clocks = nullptr;  // [threads + 1][threads + 1]; the last thread: the copy engine
std::size_t clock_threads = 0;

struct Object {  // a barrier: the joined clocks of those that released it
  const void* key;
  std::uint32_t* clock;
};
Object objects[256];
std::size_t object_count = 0;

template <class T>
T* zeroed(std::size_t count) {
  void* area = mmap(nullptr, count * sizeof(T) + 1, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) std::abort();
  return static_cast<T*>(area);
}
template <class T>
void unmap(T* area, std::size_t count) {
  if (area) munmap(area, count * sizeof(T) + 1);
}

std::size_t width() { return clock_threads + 1; }
std::uint32_t* clock_of(std::size_t thread) { return clocks + thread * width(); }
void join(std::uint32_t* into, const std::uint32_t* from) {
  for (std::size_t i = 0; i < width(); ++i) into[i] = into[i] < from[i] ? from[i] : into[i];
}
std::uint32_t* object_clock(const void* key) {
  for (std::size_t i = 0; i < object_count; ++i)
    if (objects[i].key == key) return objects[i].clock;
  if (object_count == sizeof objects / sizeof *objects) fail("too many barriers to check");
  objects[object_count] = {key, zeroed<std::uint32_t>(width())};
  return objects[object_count++].clock;
}
void drop_objects() {
  for (std::size_t i = 0; i < object_count; ++i) unmap(objects[i].clock, width());
  object_count = 0;
}

std::uint32_t place_of(const void* code) {
  return std::uint32_t(reinterpret_cast<std::uintptr_t>(code) -
                       reinterpret_cast<std::uintptr_t>(&check_block_started));
}

// "PLACE<..>" is resolved to a line of the source by run.py.
[[noreturn]] void race(const Region& region, std::size_t offset, const char* now, std::uint32_t here,
                       const char* before, int thread, std::uint32_t there) {
  fail("race on byte %zu of %s: %s PLACE<%x>, %s by thread %d PLACE<%x>", offset, region.name, now,
       here, before, thread, there);
}

// Did the access (thread + 1, clock) happen before what the current thread does now?
bool ordered(std::uint16_t thread, std::uint32_t clock) {
  return thread == 0 || clock_of(std::size_t(current->linear))[thread - 1] >= clock;
}

void enter_block(Cell& cell) {
  if (cell.block == block_serial) return;
  std::uint16_t flags = cell.flags;
  if (cell.block) {
    if (cell.writer) flags |= kFormerWrite;
    if (cell.reader[0]) flags |= kFormerRead;
  }
  cell = Cell{};
  cell.flags = flags;
  cell.block = block_serial;
}

void check_conflicts(const Region& region, const Cell& cell, std::size_t offset, bool write,
                     std::uint32_t place) {
  const char* now = write ? "write" : "read";
  if (!ordered(cell.writer, cell.write_clock))
    race(region, offset, now, place, "write", cell.writer - 1, cell.write_place);
  if (cell.flags & kFormerWrite) race(region, offset, now, place, "write of another block", -1, 0);
  if (!write) return;
  for (int i = 0; i < 2; ++i)
    if (!ordered(cell.reader[i], cell.read_clock[i]))
      race(region, offset, now, place, "read", cell.reader[i] - 1, cell.read_place[i]);
  if (cell.flags & kFormerRead) race(region, offset, now, place, "read of another block", -1, 0);
}

void record(Cell& cell, bool write, std::uint32_t place, std::size_t thread) {
  const std::uint32_t clock = clock_of(thread)[thread];
  const auto id = std::uint16_t(thread + 1);
  if (write) {
    cell.writer = id;
    cell.write_clock = clock;
    cell.write_place = place;
    cell.reader[0] = cell.reader[1] = 0;
    return;
  }
  if (cell.reader[0] != id) {  // the last two different readers
    cell.reader[1] = cell.reader[0];
    cell.read_clock[1] = cell.read_clock[0];
    cell.read_place[1] = cell.read_place[0];
  }
  cell.reader[0] = id;
  cell.read_clock[0] = clock;
  cell.read_place[0] = place;
}

void count(Region& region, History& history, std::size_t offset, std::size_t bytes, bool write) {
  region.counts[write] += bytes;
  auto* marks = write ? history.sector_written : history.sector_read;
  const std::size_t skew = region.begin % kSector;
  for (std::size_t s = (offset + skew) / kSector; s <= (offset + skew + bytes - 1) / kSector; ++s) {
    if (marks[s] == block_serial) continue;
    marks[s] = block_serial;
    ++region.counts[2 + write];
  }
}

void touch(const void* address, std::size_t bytes, bool write, const void* code, bool natural) {
  if (!current || !bytes) return;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  Region* region = region_at(at);
  if (!region) return;
  const std::uint32_t place = place_of(code);
  if (at < region->begin || at + bytes > region->end) {
    char text[160];
    describe_outside(text, sizeof text, *region, at);
    fail("%s PLACE<%x>", text, place);
  }
  const std::size_t offset = at - region->begin;
  if (natural && at % bytes)
    fail("%zu bytes at byte %zu of %s, which is not aligned to them PLACE<%x>", bytes, offset,
         region->name, place);
  History& history = histories[region - regions];
  count(*region, history, offset, bytes, write);
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    Cell& cell = history.cells[i];
    enter_block(cell);
    if (region->shared == 1 && !write && !(cell.flags & kWritten))
      fail("read of byte %zu of %s, which is not written before PLACE<%x>", i, region->name, place);
    if (cell.flags & kInFlight)
      fail("%s of byte %zu of %s, to which an asynchronous copy is under way PLACE<%x>",
           write ? "write" : "read", i, region->name, place);
    if (write) cell.flags |= kWritten;
    if (region->races_allowed) continue;
    // an atomic access races with plain stores only, and leaves no trace
    check_conflicts(*region, cell, i, write && !atomic_access, place);
    if (atomic_access) continue;
    record(cell, write, place, std::size_t(current->linear));
  }
}
}  // namespace

void check_release(const void* object) {
  const auto thread = std::size_t(current->linear);
  join(object_clock(object), clock_of(thread));
  ++clock_of(thread)[thread];
}
void check_acquire(const void* object, int thread) {
  join(clock_of(std::size_t(thread)), object_clock(object));
}
void check_issue(void* to, const void* from, std::size_t bytes) {
  const void* code = __builtin_return_address(0);
  touch(from, bytes, false, code, false);
  touch(to, bytes, true, code, false);
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  Region* region = region_at(at);
  if (!region || !current) return;
  Cell* cells = histories[region - regions].cells + (at - region->begin);
  for (std::size_t i = 0; i < bytes; ++i) cells[i].flags |= kInFlight;
}
void check_land(void* to, std::size_t bytes, const void* barrier) {
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  Region* region = region_at(at);
  if (!region || !current) return;
  std::size_t thread = std::size_t(current->linear);
  if (barrier) {  // the engine writes, and whoever waits for the barrier comes after it
    thread = clock_threads;
    join(object_clock(barrier), clock_of(thread));
  }
  for (std::size_t i = at - region->begin; i < at - region->begin + bytes; ++i) {
    Cell& cell = histories[region - regions].cells[i];
    enter_block(cell);
    cell.flags = std::uint16_t((cell.flags | kWritten) & ~kInFlight);
    record(cell, true, cell.write_place, thread);
  }
  if (barrier) ++clock_of(thread)[thread];
}

void check_launch_started() {
  check_launch_ended();
  clock_threads = std::size_t(threads);
  clocks = zeroed<std::uint32_t>(width() * width());
  history_count = region_count;
  histories = zeroed<History>(history_count);
  for (std::size_t i = 0; i < history_count; ++i) {
    const std::size_t bytes = regions[i].end - regions[i].begin, sectors = bytes / kSector + 2;
    histories[i] = {zeroed<Cell>(bytes), zeroed<std::uint32_t>(sectors),
                    zeroed<std::uint32_t>(sectors), bytes};
  }
  block_serial = 0;
}
void check_launch_ended() {
  for (std::size_t i = 0; i < history_count; ++i) {
    unmap(histories[i].cells, histories[i].bytes);
    unmap(histories[i].sector_read, histories[i].bytes / kSector + 2);
    unmap(histories[i].sector_written, histories[i].bytes / kSector + 2);
  }
  unmap(histories, history_count);
  drop_objects();
  unmap(clocks, width() * width());
  histories = nullptr;
  clocks = nullptr;
  history_count = 0;
}
void check_block_started() {
  ++block_serial;
  atomic_access = false;
  drop_objects();
  std::memset(clocks, 0, width() * width() * sizeof *clocks);
  for (std::size_t t = 0; t < width(); ++t) clock_of(t)[t] = 1;
  for (std::size_t i = 0; i < history_count; ++i)
    if (regions[i].shared) std::memset(histories[i].cells, 0, histories[i].bytes * sizeof(Cell));
}
}  // namespace lg

// The sanitizer's interface (GCC, gcc/sanitizer.def).
#define LG_HOOK(NAME, BYTES, WRITE, NATURAL)                                          \
  extern "C" void NAME(void* p) {                                                     \
    lg::touch(p, BYTES, WRITE, __builtin_return_address(0), NATURAL);                 \
  }
#define LG_HOOKS(BYTES)                                                               \
  LG_HOOK(__tsan_read##BYTES, BYTES, false, true)                                     \
  LG_HOOK(__tsan_write##BYTES, BYTES, true, true)                                     \
  LG_HOOK(__tsan_unaligned_read##BYTES, BYTES, false, true)                           \
  LG_HOOK(__tsan_unaligned_write##BYTES, BYTES, true, true)                           \
  LG_HOOK(__tsan_volatile_read##BYTES, BYTES, false, true)                            \
  LG_HOOK(__tsan_volatile_write##BYTES, BYTES, true, true)
LG_HOOKS(1)
LG_HOOKS(2)
LG_HOOKS(4)
LG_HOOKS(8)
LG_HOOKS(16)
extern "C" void __tsan_read_range(void* p, unsigned long n) {
  lg::touch(p, n, false, __builtin_return_address(0), false);
}
extern "C" void __tsan_write_range(void* p, unsigned long n) {
  lg::touch(p, n, true, __builtin_return_address(0), false);
}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

// -fsanitize=alignment,bounds (libsanitizer/ubsan): a misaligned access, an index outside a local
// array. The data begin with the place.
namespace {
struct Place {
  const char* file;
  std::uint32_t line, column;
};
std::uint32_t line_of(const Place& place) {  // 0 outside the kernel's text
  return place.file && !std::strcmp(place.file, "kernel.cu") ? place.line : 0;
}
struct Mismatch {
  Place place;
  const void* type;
  unsigned char log_alignment, kind;
};
}  // namespace
extern "C" void __ubsan_handle_type_mismatch_v1(Mismatch* data, std::uintptr_t address) {
  const lg::Region* region = lg::region_at(address);
  lg::fail("an access at byte %zu of %s is not aligned to %d bytes LINE<%x>",
           region ? std::size_t(address - region->begin) : std::size_t(address),
           region ? region->name : "memory", 1 << data->log_alignment, line_of(data->place));
}
extern "C" void __ubsan_handle_out_of_bounds(Place* place, std::uintptr_t index) {
  lg::fail("index %lld is outside a local array LINE<%x>", static_cast<long long>(index),
           line_of(*place));
}
