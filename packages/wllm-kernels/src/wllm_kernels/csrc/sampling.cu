// Second and third kernel of the sampler. Grid of both: slices x rows (one slice where all rows are greedy).
//
// sample_weigh: a greedy row has its token already. A random row without top-k and top-p draws: every slice finds its
// winner, the last slice to arrive the row's. Other rows get a histogram of tokens and mass over intervals of the
// distance, in which the last slice finds the interval where the row will be cut.
// sample_select, for those others: the slices gather the tokens down to that interval, usually few; the last to arrive
// finds the exact cut among them and draws. If they are more than the list holds, one block does the same with the row.
struct SampleTally {
  Counts counts;
  Masses masses;
};

DEVICE SampleTally tally_of(SampleMemory& memory) {
  return {{memory.counts}, {memory.mass_low, memory.mass_high}};
}

// The mass that larger values must not reach for a token to be kept: top_p of `total`.
DEVICE u64 wanted_mass(u64 total, float top_p) {
  return (u64)larger(ceil((double)total * top_p), 1.0);
}

DEVICE void draw_slice(const SampleParameters& p, const SampleRow& r, Scratch& scratch) {
  Race race{r.noise, r.limit};
  visit_logits(r.logits, r.begin, r.end, [&](float logit, int id, bool) {
    race.enter(distance_key(logit, r.largest, r.temperature), id);
  });
  const u64 best = block_largest(race.best, scratch);
  u64* drawn = p.drawn + (i64)blockIdx.y * p.num_slices;
  if (threadIdx.x == 0) drawn[blockIdx.x] = best;
  if (!arrives_last(&p.states[blockIdx.y].weighed, p.num_slices, scratch)) return;
  const u64 winner = largest_of_slices(drawn, p.num_slices);
  if (threadIdx.x == 0) p.out[r.row] = id_of(winner);
}

// Adds the slice's tokens to the row's histogram.
DEVICE void weigh_slice(const SampleRow& r, const SampleTally& tally, SampleState& state) {
  clear(tally.counts);
  clear(tally.masses);
  visit_logits(r.logits, r.begin, r.end, [&](float logit, int, bool) {
    const u32 key = distance_key(logit, r.largest, r.temperature);
    if (key > r.limit) return;
    tally.counts.add(interval_of(key), key);
    tally.masses.add(interval_of(key), key);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < INTERVALS; i += LOGITS_THREADS) {
    if (tally.counts.amount(i) == 0) continue;
    atomicAdd(&state.counts[i], (u32)tally.counts.amount(i));
    atomicAdd(&state.masses[i], tally.masses.amount(i));
  }
}

// Where the row will be cut. With top-k: the interval of its last token, which holds all that top-p may keep; top-p
// alone: the interval that reaches its mass; neither, because min-p leaves fewer than k: the end.
DEVICE void find_last_interval(const SampleRow& r, SampleMemory& memory, SampleState& state) {
  const SampleTally tally = tally_of(memory);
  u64 count = 0, mass = 0;
  for (int i = threadIdx.x; i < INTERVALS; i += LOGITS_THREADS) {
    memory.counts[i] = load_volatile(&state.counts[i]);
    const u64 sum = load_volatile(&state.masses[i]);
    memory.mass_low[i] = (u32)sum;
    memory.mass_high[i] = (u32)(sum >> 32);
    count += memory.counts[i];
    mass += sum;
  }
  const u64 total_count = block_total(count, memory.scratch);
  __syncthreads();
  const u64 total_mass = block_total(mass, memory.scratch);
  __syncthreads();
  int last = INTERVALS - 1;
  if (r.top_k > 0 && r.top_k <= total_count) {
    last = first_reaching(tally.counts, r.top_k, memory.scratch).interval;
  } else if (r.top_p < 1.f) {
    last = first_reaching(tally.masses, wanted_mass(total_mass, r.top_p), memory.scratch).interval;
  }
  count = 0;
  for (int i = threadIdx.x; i <= last; i += LOGITS_THREADS) count += memory.counts[i];
  const u64 num_candidates = block_total(count, memory.scratch);
  if (threadIdx.x == 0) {
    state.total_count = (u32)total_count;
    state.total_mass = total_mass;
    state.num_candidates = (u32)num_candidates;
    state.last_interval = last;
  }
}

// Cuts `tokens`, which hold every token of the row that can be drawn, exactly, and draws one.
template <class Tokens>
DEVICE void choose(const SampleParameters& p, const SampleRow& r, const Tokens& tokens, const SampleState& state,
                   SampleMemory& memory) {
  const SampleTally tally = tally_of(memory);
  u32 limit = r.limit;
  const bool has_last_token = r.top_k > 0 && r.top_k <= state.total_count;
  if (has_last_token) {
    limit = smaller(limit, select(tokens, tally.counts, DISTANCE_BITS, limit, (u64)r.top_k, memory.scratch));
  }
  if (r.top_p < 1.f) {
    u64 mass = state.total_mass;
    if (has_last_token) {
      mass = 0;
      tokens.visit([&](u32 key, int) { mass += key <= limit ? mass_of(key) : 0; });
      mass = block_total(mass, memory.scratch);
    }
    const u64 wanted = wanted_mass(mass, r.top_p);
    limit = smaller(limit, select(tokens, tally.masses, DISTANCE_BITS, limit, wanted, memory.scratch));
  }
  Race race{r.noise, limit};
  tokens.visit([&](u32 key, int id) { race.enter(key, id); });
  const u64 winner = block_largest(race.best, memory.scratch);
  if (threadIdx.x == 0) p.out[r.row] = id_of(winner);
}

DEVICE void gather_slice(const SampleRow& r, SampleState& state, u64* candidates) {
  const int last = state.last_interval;
  visit_logits(r.logits, r.begin, r.end, [&](float logit, int id, bool) {
    const u32 key = distance_key(logit, r.largest, r.temperature);
    append(key <= r.limit && interval_of(key) <= last, (u64)key << 32 | (u32)id, candidates, &state.taken);
  });
}

// Whose fault it is that the row has no token: -1, the model's own logits are not all finite; -2, they are, and what
// was asked for leaves no token.
DEVICE void report_failure(const SampleParameters& p, const SampleRow& r, Scratch& scratch) {
  u64 broken = 0;
  visit_logits(row_of(p.logits, p.type, r.row * p.logits_stride), 0, p.vocab_size, [&](float logit, int, bool inside) {
    if (inside && !(fabsf(logit) < infinity())) broken = 1;
  });
  broken = block_largest(broken, scratch);
  if (threadIdx.x == 0) p.out[r.row] = broken ? -1 : -2;
}

KERNEL(sample_weigh, SampleParameters, LOGITS_THREADS, 2) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  SHARED_MEMORY(shared);
  SampleMemory& memory = *(SampleMemory*)shared;
  const SampleRow r = read_row(params);
  if (r.is_failed) {
    if (blockIdx.x == 0) report_failure(params, r, memory.scratch);
    return;
  }
  if (!r.is_random) {
    if (blockIdx.x == 0 && threadIdx.x == 0) params.out[r.row] = r.greedy;
    return;
  }
  if (!r.needs_search()) return draw_slice(params, r, memory.scratch);
  SampleState& state = params.states[blockIdx.y];
  weigh_slice(r, tally_of(memory), state);
  if (arrives_last(&state.weighed, params.num_slices, memory.scratch)) find_last_interval(r, memory, state);
}

KERNEL(sample_select, SampleParameters, LOGITS_THREADS, 2) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  SHARED_MEMORY(shared);
  SelectMemory& select_memory = *(SelectMemory*)shared;
  SampleMemory& memory = select_memory.common;
  const SampleRow r = read_row(params);
  if (!r.is_random || !r.needs_search()) return;
  SampleState& state = params.states[blockIdx.y];
  if (state.num_candidates > params.capacity) {
    if (blockIdx.x == 0) choose(params, r, RowTokens{r, params.vocab_size}, state, memory);
    return;
  }
  u64* candidates = params.candidates + (i64)blockIdx.y * params.capacity;
  gather_slice(r, state, candidates);
  if (!arrives_last(&state.gathered, params.num_slices, memory.scratch)) return;
  const int count = (int)state.num_candidates;
  if (count <= STAGED) {  // every thread will read what it wrote
    for (int i = threadIdx.x; i < count; i += LOGITS_THREADS) select_memory.staged[i] = load_volatile(&candidates[i]);
    candidates = select_memory.staged;
  }
  choose(params, r, Candidates{candidates, count}, state, memory);
}
