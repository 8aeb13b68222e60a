// Second half of the emulator's runtime, behind runtime.h: which block, warp and lane runs next, and a launch.
namespace emulator {

static bool is_done(const Fiber* fiber) {
  return fiber->block->warps[fiber->warp].done >> fiber->lane & 1;
}

// None in half of the blocks, so that some get far ahead of others.
static int draw_slow_warp() {
  return draw(2) ? (int)draw(num_warps) : -1;
}

static void open_barrier(Block& block) {
  block.num_at_barrier = 0;
  block.slow_warp = draw_slow_warp();
  block.barrier_result = block.barrier_vote;
  block.barrier_vote = false;
  const Fiber* first = nullptr;
  for (int thread = 0; thread < num_threads; thread++) {
    Fiber* fiber = block.fibers[thread];
    if (is_done(fiber)) continue;
    if (!first) first = fiber;
    if (!same_place(fiber->place, first->place)) {
      current = fiber;
      note_difference("threads of a block at different barriers", first->place, fiber->place);
      fail("");
    }
    block.warps[fiber->warp].running |= 1u << fiber->lane;
  }
}

[[noreturn]] static void report_stuck(Block& block) {
  const Fiber *first = nullptr, *other = nullptr;
  for (int thread = 0; thread < num_threads; thread++) {
    if (is_done(block.fibers[thread])) continue;
    current = block.fibers[thread];
    if (!first) first = current;
    if (!same_place(current->place, first->place)) other = current;
  }
  if (other) {
    note_difference("threads wait for each other", first->place, other->place);
  } else {
    snprintf(report, sizeof(report), "some lanes never reach %s (%s:%d) ", first->place.what, first->place.file,
             first->place.line);
  }
  fail("");
}

// The lanes of a warp in an order that changes, each until it waits.
static void run_lanes(Block& block, int number) {
  Warp& warp = block.warps[number];
  Fiber* const* of_warp = block.fibers + number * LANES;
  const u32 first = draw(LANES), step = draw(2) ? 1 : LANES - 1;
  u32 running = 0, early = 0;
  for (u32 lane = 0; lane < LANES; lane++) {
    if (!(warp.running >> lane & 1)) continue;
    running |= 1u << lane;
    if (!of_warp[lane]->previous_ended) early |= 1u << lane;
  }
  hide(early);
  for (u32 i = 0; i < LANES; i++) {
    const u32 lane = (first + i * step) % LANES;
    if (!((early ? early : running) >> lane & 1)) continue;
    resume(of_warp[lane]);
    if (!(warp.done >> lane & 1)) continue;
    // Lanes may have waited for this one only.
    for (u32 other = 0; other < LANES; other++) {
      if (warp.meeting >> other & 1) try_to_meet(of_warp[other]);
    }
  }
}

static void start_block(Block& block, unsigned position) {
  block.index = {position % grid.x, position / grid.x % grid.y, position / (grid.x * grid.y)};
  block.running = true;
  block.num_done = block.num_at_barrier = 0;
  block.slow_warp = draw_slow_warp();
  block.barrier_vote = false;
  for (int warp = 0; warp < num_warps; warp++) {
    const int lanes = num_threads - warp * LANES;
    const u32 absent = lanes >= LANES ? 0u : ~0u << lanes;
    block.warps[warp] = {~absent, 0u, absent};
  }
  for (int thread = 0; thread < num_threads; thread++) {
    block.fibers[thread]->queue.num_copies = block.fibers[thread]->queue.num_groups = 0;
    block.fibers[thread]->previous_ended = !overlaps;
  }
  block.shared = block.arena + MAX_SHARED - (shared_bytes + 127) / 128 * 128;
  memset(block.shared, 0xff, block.arena + MAX_SHARED - block.shared);  // NaN in every float type
}

static void end_block(Block& block) {
  block.running = false;
  for (u8* byte = block.shared + shared_bytes; byte < block.arena + MAX_SHARED; byte++) {
    if (*byte != 0xff) fail("wrote behind the end of shared memory");
  }
}

static void advance(Block& block) {
  if (block.num_at_barrier && block.num_at_barrier + block.num_done == num_threads) open_barrier(block);
  const int first = draw(num_warps);
  int warp = -1;
  for (int i = 0; i < num_warps; i++) {
    const int candidate = (first + i) % num_warps;
    if (block.warps[candidate].running && (warp < 0 || warp == block.slow_warp)) warp = candidate;
  }
  if (warp < 0) report_stuck(block);
  // One warp is left behind, most of the time also when all others wait for it: the other blocks may go on meanwhile.
  if (warp == block.slow_warp && draw(256)) return;
  // Bursts of very different length: near lockstep as well as one warp far ahead.
  for (int burst = 1 << draw(10); burst && block.warps[warp].running; burst--) run_lanes(block, warp);
  if (block.num_done == num_threads) end_block(block);
}

static void run_grid() {
  const unsigned num_blocks = grid.x * grid.y * grid.z;
  // A step that shares no factor with the count visits every block once.
  unsigned position = draw(num_blocks), step = 1 + draw(num_blocks);
  for (;; step++) {
    unsigned a = step, b = num_blocks;
    while (b) {
      unsigned rest = a % b;
      a = b;
      b = rest;
    }
    if (a == 1) break;
  }
  for (Block& block : blocks) block.running = false;
  unsigned started = 0;
  for (;;) {
    Block& block = blocks[draw(BLOCKS)];
    if (!block.running && started < num_blocks) {
      start_block(block, position);
      position = (unsigned)(((u64)position + step) % num_blocks);
      started++;
    }
    if (block.running) advance(block);
    bool any = started < num_blocks;
    for (const Block& other : blocks) any |= other.running;
    if (!any) return;
  }
}

static u8* reserve(size_t size, int protection) {
  return (u8*)mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void prepare_fiber(Block& block, int thread) {
  Fiber* fiber = block.fibers[thread] = new Fiber;
  fiber->block = &block;
  fiber->number = thread;
  fiber->warp = thread / LANES;
  fiber->lane = thread % LANES;
  fiber->thread = {(unsigned)thread, 0, 0};
  u8* stack = reserve(STACK, PROT_READ | PROT_WRITE);
  mprotect(stack, PAGE, PROT_NONE);
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = stack;
  fiber->start.uc_stack.ss_size = STACK;
}

// Fibers that do not stand at the end of a kernel begin anew.
static void prepare_blocks(bool anew) {
  for (Block& block : blocks) {
    if (!block.arena) {
      block.arena = reserve(MAX_SHARED + 2 * GUARD, PROT_NONE) + GUARD;
      mprotect(block.arena, MAX_SHARED, PROT_READ | PROT_WRITE);
    }
    for (int thread = 0; thread < num_threads; thread++) {
      const bool is_new = !block.fibers[thread];
      if (is_new) prepare_fiber(block, thread);
      if (!is_new && !anew) continue;
      block.fibers[thread]->started = false;
      makecontext(&block.fibers[thread]->start, run_fiber, 0);
    }
  }
}

// Null, or what went wrong.
static const char* launch(void (*kernel)(const void*), const void* params, const int (&sizes)[3], int threads,
                          int dynamic_shared_bytes, u32 seed) {
  static u8 signal_stack[64 * 1024];
  const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
  struct sigaction action = {}, previous[4];
  stack_t alternate = {}, previous_stack;
  alternate.ss_sp = signal_stack;
  alternate.ss_size = sizeof(signal_stack);
  sigaltstack(&alternate, &previous_stack);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &previous[i]);

  body = kernel;
  body_params = params;
  grid = {(unsigned)sizes[0], (unsigned)sizes[1], (unsigned)sizes[2]};
  block_size = {(unsigned)threads, 1, 1};
  num_threads = threads;
  num_warps = (threads + LANES - 1) / LANES;
  random_state = seed;
  report[0] = 0;
  shared_bytes = dynamic_shared_bytes;
  prepare_blocks(false);
  const bool failed = sigsetjmp(abandoned, 1);
  if (!failed) {
    run_grid();
  } else {
    prepare_blocks(true);
  }

  hide(false);
  overlaps = false;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &previous[i], nullptr);
  sigaltstack(&previous_stack, nullptr);
  return failed ? report : nullptr;
}

// The next launch begins while the previous kernel may still run.
extern "C" void overlap_next_launch(const Region* guarded, int count) {
  overlaps = true;
  regions = guarded;
  num_regions = count;
}

}  // namespace emulator
