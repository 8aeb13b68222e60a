// A grid of CUDA threads on one CPU thread: every thread is a fiber, and a few blocks run at a time. What hardware may
// do in any order happens here in an order drawn from a seed: which block comes next, which of them and which of its
// warps runs ahead and how far, which of its lanes comes first.
//
// Reported, with block, thread and source line: a collective that lanes of one warp reach at different places or that
// some never reach, barriers likewise, accesses outside of shared memory or of a guarded tensor, unaligned ones, copies
// that outlive their thread; and of an overlapping kernel threads that touch a guarded tensor, or end, before they have
// waited for the previous kernel.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __device__
#define __forceinline__ inline
#define __restrict__
#define __align__(BYTES) alignas(BYTES)

namespace emulator {

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

struct Place {
  const char* what = nullptr;
  const char* file = "";
  int line = 0;
};

struct Copy {
  u32 target;
  const void* source;
  bool valid;
};

constexpr int MAX_GROUPS = 16, MAX_COPIES = 1024;

// Copies to shared memory that a thread has issued; groups[i] is where the i-th closed group ends.
struct CopyQueue {
  Copy copies[MAX_COPIES];
  int groups[MAX_GROUPS];
  int num_copies, num_groups;
};

struct Fiber;
struct Block;
typedef void (*Compute)(Fiber* const* warp, u32 lanes);

struct Fiber {
  Block* block;
  ucontext_t start;
  jmp_buf resume;
  bool started = false;
  bool previous_ended;  // it may see what earlier kernels wrote
  Place place;          // where it waits
  // Of the collective it waits in: the lanes that take part, its own part, and what the last to come does for all.
  u32 mask = 0;
  void* data = nullptr;
  Compute compute = nullptr;
  int number, warp, lane;
  Dimensions thread;
  CopyQueue queue;
};

// Each thread is in one of these sets, or at the barrier.
struct Warp {
  u32 running, meeting, done;
};

constexpr int LANES = 32, MAX_THREADS = 1024, MAX_SHARED = 256 * 1024, PAGE = 4096, GUARD = 1024 * 1024;
constexpr size_t STACK = 256 * 1024;
constexpr u32 SHARED_BASE = 1024;  // of shared addresses; no pointer is 0

// A block that runs, or the place of one.
struct Block {
  Dimensions index;
  bool running;
  int num_done, num_at_barrier;
  int slow_warp;  // or -1
  bool barrier_vote, barrier_result;  // of __syncthreads_or
  Warp warps[MAX_THREADS / LANES];
  Fiber* fibers[MAX_THREADS];
  u8 *arena, *shared;  // its shared memory ends where the arena ends
};
constexpr int BLOCKS = 3;

static Block blocks[BLOCKS];
static Fiber* current;
static Dimensions grid, block_size;
static int num_threads, num_warps;
static unsigned long long random_state;
static jmp_buf scheduler, abandoned;
static void (*body)(const void*);
static const void* body_params;
static char report[1024];
static int shared_bytes;

// Guarded tensors, out of reach while a thread runs for which the previous kernel has not ended.
struct Region {
  void* address;
  u64 size;
};
static const Region* regions;
static int num_regions;
static bool overlaps, hidden;

// Of a long region both ends: every page costs time.
static void hide(bool now) {
  constexpr u64 END = 64 * 1024;
  if (now == hidden) return;
  hidden = now;
  const int protection = now ? PROT_NONE : PROT_READ | PROT_WRITE;
  for (int i = 0; i < num_regions; i++) {
    const Region& region = regions[i];
    const u64 end = region.size > 2 * END ? END : region.size;
    mprotect(region.address, end, protection);
    if (end < region.size) mprotect((u8*)region.address + region.size - end, end, protection);
  }
}

static u32 draw(u32 limit) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)((random_state >> 33) % limit);
}

[[noreturn]] static void fail(const char* what) {
  const Dimensions& index = current->block->index;
  snprintf(report + strlen(report), sizeof(report) - strlen(report), "%s (block %u %u %u, thread %d)", what, index.x,
           index.y, index.z, current->number);
  siglongjmp(abandoned, 1);
}

static void on_signal(int, siginfo_t* info, void*) {
  const bool memory = info->si_signo == SIGSEGV || info->si_signo == SIGBUS;
  snprintf(report, sizeof(report), "%s at address %p",
           memory && hidden ? "access before the previous kernel has ended"
           : memory         ? "access outside of allocated memory"
                            : "unaligned access or index outside of an array",
           info->si_addr);
  fail("");
}

// What an overlapping kernel may look at, or ask for, before it may touch it: a guarded tensor, or (`others`) what is not
// the surroundings of one.
static void expect_guarded(const u8* source, u32 bytes, bool others) {
  if (!overlaps) return;
  bool near = false;
  for (int i = 0; i < num_regions; i++) {
    const u8 *const begin = (const u8*)regions[i].address, *const end = begin + regions[i].size;
    if (source >= begin && source + bytes <= end) return;
    near |= source + bytes > begin - GUARD && source < end + GUARD;
  }
  if (near || !others) fail("a look or a prefetch outside of guarded tensors");
}

static void run_fiber() {
  for (;;) {
    body(body_params);
    if (current->queue.num_copies) fail("a thread ends while copies to shared memory are on their way");
    if (!current->previous_ended) fail("a thread ends before the previous kernel has");
    Warp& warp = current->block->warps[current->warp];
    warp.running &= ~(1u << current->lane);
    warp.done |= 1u << current->lane;
    current->block->num_done++;
    if (!_setjmp(current->resume)) _longjmp(scheduler, 1);
  }
}

// To the scheduler, until the thread is set running again.
static __attribute__((noinline)) void wait() {
  if (!_setjmp(current->resume)) _longjmp(scheduler, 1);
}

static void wait_for_previous_kernel() {
  if (current->previous_ended) return;
  current->previous_ended = true;
  wait();  // so that the tensors change their protection once a warp, not once a thread
}

static __attribute__((noinline)) void resume(Fiber* fiber) {
  current = fiber;
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->resume, 1);
  fiber->started = true;
  setcontext(&fiber->start);
}

static bool same_place(const Place& a, const Place& b) {
  return a.what == b.what && a.line == b.line && !strcmp(a.file, b.file);
}

static void note_difference(const char* what, const Place& a, const Place& b) {
  snprintf(report, sizeof(report), "%s: some at %s (%s:%d), some at %s (%s:%d) ", what, a.what, a.file, a.line, b.what,
           b.file, b.line);
}

// Ends the collective that `fiber` waits in if all have come: the lanes of its mask, but for those that exited.
static bool try_to_meet(const Fiber* fiber) {
  Warp& warp = fiber->block->warps[fiber->warp];
  if ((warp.meeting & fiber->mask) != (fiber->mask & ~warp.done)) return false;
  const u32 lanes = warp.meeting & fiber->mask;
  Fiber* const* of_warp = fiber->block->fibers + fiber->warp * LANES;
  for (int lane = 0; lane < LANES; lane++) {
    if (!(lanes >> lane & 1)) continue;
    if (!same_place(of_warp[lane]->place, fiber->place) || of_warp[lane]->mask != fiber->mask) {
      note_difference("lanes of a warp in different collectives", fiber->place, of_warp[lane]->place);
      fail("");
    }
  }
  if (fiber->compute) fiber->compute(of_warp, lanes);
  warp.meeting &= ~lanes;
  warp.running |= lanes;
  return true;
}

static void meet(const Place& place, u32 mask, void* data, Compute compute) {
  Fiber* fiber = current;
  fiber->place = place;
  fiber->mask = mask;
  fiber->data = data;
  fiber->compute = compute;
  if (!(mask >> fiber->lane & 1)) fail("a lane is missing in its own mask");
  Warp& warp = fiber->block->warps[fiber->warp];
  warp.running &= ~(1u << fiber->lane);
  warp.meeting |= 1u << fiber->lane;
  if (!try_to_meet(fiber)) wait();
}

static void pass_barrier(const Place& place) {
  Block* block = current->block;
  current->place = place;
  block->warps[current->warp].running &= ~(1u << current->lane);
  block->num_at_barrier++;
  wait();
}

}  // namespace emulator
