// First kernel of the sampler: adds bias, bans what the bitmask bans, penalises, and finds the largest logit of each
// slice. Grid: slices x rows. Where something is adjusted, the adjusted logits go to a buffer, from which the other
// kernels read; the logits themselves stay as they are.
constexpr int TILE = STRIDE;

struct PrepareMemory {
  float tile[TILE];
  int entry_ids[LOGITS_THREADS];  // within the tile; -1: not there
  float entry_values[LOGITS_THREADS];
  Scratch scratch;
  int first_entry, last_entry;  // bias entries of this row lie between them
  int penalty;                  // this row's entry, or -1
};
static_assert(sizeof(PrepareMemory) <= 24832, "shared_bytes of device/sampling.py");

DEVICE void clear_state(SampleState& state) {
  const int first = blockIdx.x * LOGITS_THREADS + threadIdx.x;
  for (int i = first; i < INTERVALS; i += gridDim.x * LOGITS_THREADS) {
    state.masses[i] = 0;
    state.counts[i] = 0;
  }
  if (first == 0) state.taken = state.weighed = state.gathered = 0;
}

// Where the row's bias entries and its penalties are in their lists.
DEVICE void find_entries(const SampleParameters& p, int row, PrepareMemory& memory) {
  if (threadIdx.x == 0) {
    memory.first_entry = p.bias_entries;
    memory.last_entry = memory.penalty = -1;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.bias_entries; i += LOGITS_THREADS) {
    if (p.bias_rows[i] != row) continue;
    atomicMin(&memory.first_entry, i);
    atomicMax(&memory.last_entry, i);
  }
  for (int i = threadIdx.x; i < p.num_penalised; i += LOGITS_THREADS) {
    if (p.penalty_rows[i] == row) memory.penalty = i;
  }
  __syncthreads();
}

// Adds the row's bias entries to the tile of logits that starts at token `first`. Several entries for one token are
// added in the order of the list, by the thread that has the first of them.
DEVICE void add_bias(const SampleParameters& p, int row, int first, PrepareMemory& memory) {
  for (int start = memory.first_entry; start <= memory.last_entry; start += LOGITS_THREADS) {
    const int entry = start + threadIdx.x;
    int id = -1;
    if (entry <= memory.last_entry && p.bias_rows[entry] == row) {
      const i64 within = p.bias_ids[entry] - first;
      if (0 <= within && within < TILE) id = (int)within;
    }
    __syncthreads();  // the tile is complete; the entries before are done with
    memory.entry_ids[threadIdx.x] = id;
    memory.entry_values[threadIdx.x] = id < 0 ? 0.f : p.bias_values[entry];
    __syncthreads();
    if (id < 0) continue;
    bool is_first = true;
    for (int i = 0; i < threadIdx.x; i++) is_first &= memory.entry_ids[i] != id;
    if (!is_first) continue;
    float sum = memory.tile[id];
    for (int i = threadIdx.x; i < LOGITS_THREADS; i++) {
      if (memory.entry_ids[i] == id) sum += memory.entry_values[i];
    }
    memory.tile[id] = sum;
  }
  __syncthreads();
}

// The steps of the reference, each rounded as there: a fused multiply-add would change the winner among near equals.
DEVICE float penalise(const SampleParameters& p, int entry, int id, float logit) {
  const i64 place = p.penalty_slots[entry] * p.vocab_size + id;
  const int count = p.output_counts[place];
  if (count > 0 || p.prompt_seen[place]) {
    const float repetition = p.repetition[entry];
    logit = logit > 0.f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
  }
  logit = __fsub_rn(logit, __fmul_rn(p.frequency[entry], (float)count));
  return count > 0 ? __fsub_rn(logit, p.presence[entry]) : logit;
}

// Adjusts the tile that starts at token `first`, writes it and returns its best.
DEVICE u64 adjust_tile(const SampleParameters& p, const LogitRow& source, int row, int first, int end,
                       PrepareMemory& memory) {
  const int own = threadIdx.x * GROUP, id = first + own;
  float values[GROUP];
  read_group(source, id, end, values);
  if (memory.first_entry <= memory.last_entry) {
    UNROLL
    for (int i = 0; i < GROUP; i++) memory.tile[own + i] = values[i];
    add_bias(p, row, first, memory);
    UNROLL
    for (int i = 0; i < GROUP; i++) values[i] = memory.tile[own + i];
  }
  if (id >= end) return 0;
  // A group's bits lie in one word.
  const u32 allowed = p.bitmask ? p.bitmask[row * p.bitmask_stride + id / 32] >> id % 32 : WHOLE_WARP;
  u64 best = 0;
  UNROLL
  for (int i = 0; i < GROUP; i++) {
    if (id + i >= end) continue;
    if (!(allowed >> i & 1)) values[i] = -infinity();
    if (memory.penalty >= 0) values[i] = penalise(p, memory.penalty, id + i, values[i]);
    best = larger(best, to_best(values[i], id + i));
  }
  Vec16* target = (Vec16*)(p.adjusted + blockIdx.y * p.adjusted_stride + id);
  UNROLL
  for (int half = 0; half < 2; half++) {
    Vec16 words;
    UNROLL
    for (int i = 0; i < 4; i++) words.words[i] = __float_as_uint(values[4 * half + i]);
    store16(&target[half], words);
  }
  return best;
}

KERNEL(sample_prepare, SampleParameters, LOGITS_THREADS, 2) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  SHARED_MEMORY(shared);
  PrepareMemory& memory = *(PrepareMemory*)shared;
  const int row = params.first_row + blockIdx.y;
  const int begin = blockIdx.x * params.slice_size, end = smaller(begin + params.slice_size, params.vocab_size);
  if (params.temperature) clear_state(params.states[blockIdx.y]);
  const LogitRow source = row_of(params.logits, params.type, row * params.logits_stride);
  u64 best = 0;
  if (params.adjusted) {
    find_entries(params, row, memory);
    for (int first = begin; first < end; first += TILE) {
      best = larger(best, adjust_tile(params, source, row, first, end, memory));
    }
  } else {
    visit_logits(source, begin, end, [&](float logit, int id, bool inside) {
      if (inside) best = larger(best, to_best(logit, id));
    });
  }
  best = block_largest(best, memory.scratch);
  if (threadIdx.x == 0) params.largest[(i64)blockIdx.y * params.num_slices + blockIdx.x] = best;
}
