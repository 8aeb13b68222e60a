// Log-probabilities of raw logits: three kernels, grid slices x rows.
//
// logprobs_reduce: each slice's largest logit, sum of exponentials, and how many logits exceed the row's token.
// logprobs_rank: the row's value and rank from those. For the best `top_n`, also a histogram of how far logits are below
// the largest, in which the last slice to arrive finds the interval of the last of them.
// logprobs_top: the slices gather the tokens down to that interval; the last to arrive orders them by counting, for
// each, how many are better. If they do not fit, one block orders the row, as many tokens at a time as fit.
constexpr int RANKED = 2048;  // tokens that a block orders at once

struct SliceSummary {
  float largest;
  float sum;  // of exponentials, relative to the largest if that is finite
  u32 num_larger;
  u32 unused;
};

struct RankState {
  u32 counts[INTERVALS];
  u32 num_candidates;
  int last_interval;
  u32 taken;
  u32 weighed;   // slices
  u32 gathered;  // slices
  u32 unused;
};
static_assert(sizeof(RankState) == 8216, "STATE_BYTES of device/logprobs.py");

struct LogprobParameters {
  const void* logits;    // [rows, vocab] of `type`
  const i64* token_ids;  // [rows]
  float* logprob;        // [rows]
  i64* rank;             // [rows]
  i64* top_ids;          // [rows, top_n]
  float* top_logprobs;   // [rows, top_n]
  SliceSummary* summaries;  // [rows of this launch, num_slices]
  RankState* states;        // [rows of this launch]
  u64* candidates;          // [rows of this launch, RANKED]
  i64 logits_stride;
  int type;
  int first_row;  // of this launch
  int vocab_size;
  int slice_size;  // a multiple of GROUP, at most 2 * STRIDE
  int num_slices;
  int top_n;
};

struct LogprobMemory {
  u64 ranked[RANKED];
  u32 counts[INTERVALS];
  float warps[WARP];
  Scratch scratch;
  u32 num_ranked;
};
static_assert(sizeof(LogprobMemory) <= 24960, "shared_bytes of device/logprobs.py");

DEVICE LogitRow logits_of(const LogprobParameters& p) {
  return row_of(p.logits, p.type, (p.first_row + (i64)blockIdx.y) * p.logits_stride);
}

// Exponentials are taken relative to it.
DEVICE float finite_or_zero(float largest) {
  return fabsf(largest) < infinity() ? largest : 0.f;
}

// Tokens in the order of the result: larger logits first, lower ids first among equals.
constexpr int ID_BITS = 31;
constexpr int ORDER_BITS = 32 + ID_BITS;
DEVICE u64 order_of(float logit, int id) {
  return (u64)~to_ordered(logit) << ID_BITS | (u32)id;
}
DEVICE float logit_of(u64 order) {
  return from_ordered(~(u32)(order >> ID_BITS));
}

DEVICE int interval_below(float largest, float logit) {
  const float distance = largest - logit;
  return distance >= 0.f ? interval_of(__float_as_uint(distance)) : 0;  // 0: NaN is the largest
}

struct RowSummary {
  float largest;
  float log_sum;
  u32 num_larger;
};

DEVICE RowSummary summarise(const LogprobParameters& p) {
  const SliceSummary* slices = p.summaries + (i64)blockIdx.y * p.num_slices;
  RowSummary row = {-infinity(), 0.f, 0};
  for (int i = 0; i < p.num_slices; i++) {
    row.largest = fmaxf(row.largest, slices[i].largest);
    row.num_larger += slices[i].num_larger;
  }
  const float reference = finite_or_zero(row.largest);
  float sum = 0.f;
  for (int i = 0; i < p.num_slices; i++) {
    if (slices[i].sum != 0.f) sum += slices[i].sum * expf(finite_or_zero(slices[i].largest) - reference);
  }
  row.log_sum = reference + logf(sum);
  return row;
}

KERNEL(logprobs_reduce, LogprobParameters, LOGITS_THREADS, 2) {
  SHARED_MEMORY(shared);
  LogprobMemory& memory = *(LogprobMemory*)shared;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const LogitRow row = logits_of(params);
  const int begin = blockIdx.x * params.slice_size, end = smaller(begin + params.slice_size, params.vocab_size);
  const int first = begin + threadIdx.x * GROUP;
  float values[2][GROUP];
  UNROLL
  for (int half = 0; half < 2; half++) read_group(row, first + half * STRIDE, end, values[half]);

  const i64 token = params.token_ids[params.first_row + blockIdx.y];
  const bool exists = 0 <= token && token < params.vocab_size;
  const float chosen = exists ? read_logit(row, (int)token) : __uint_as_float(0x7fffffffu);
  float largest = -infinity();
  u32 num_larger = 0;
  UNROLL
  for (int half = 0; half < 2; half++) {
    UNROLL
    for (int i = 0; i < GROUP; i++) {
      largest = fmaxf(largest, values[half][i]);
      num_larger += values[half][i] > chosen;
    }
  }
  largest = score_of(block_largest(to_best(largest, 0), memory.scratch));
  const float reference = finite_or_zero(largest);
  float sum = 0.f;
  UNROLL
  for (int half = 0; half < 2; half++) {
    UNROLL
    for (int i = 0; i < GROUP; i++) sum += expf(values[half][i] - reference);
  }
  sum = block_sum(sum, memory.warps);
  num_larger = (u32)block_total(num_larger, memory.scratch);
  if (threadIdx.x == 0) {
    params.summaries[(i64)blockIdx.y * params.num_slices + blockIdx.x] = {largest, sum, num_larger, 0};
  }
  if (params.top_n == 0) return;
  RankState& state = params.states[blockIdx.y];
  const int place = blockIdx.x * LOGITS_THREADS + threadIdx.x;
  for (int i = place; i < INTERVALS; i += gridDim.x * LOGITS_THREADS) state.counts[i] = 0;
  if (place == 0) state.taken = state.weighed = state.gathered = 0;
}

KERNEL(logprobs_rank, LogprobParameters, LOGITS_THREADS, 2) {
  SHARED_MEMORY(shared);
  LogprobMemory& memory = *(LogprobMemory*)shared;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const LogitRow row = logits_of(params);
  const RowSummary summary = summarise(params);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const int index = params.first_row + blockIdx.y;
    const i64 token = params.token_ids[index];
    const bool exists = 0 <= token && token < params.vocab_size;
    const float chosen = exists ? read_logit(row, (int)token) : __uint_as_float(0x7fffffffu);
    params.logprob[index] = chosen - summary.log_sum;
    params.rank[index] = summary.num_larger + 1;
  }
  if (params.top_n == 0) return;

  RankState& state = params.states[blockIdx.y];
  const Counts tally = {memory.counts};
  const int begin = blockIdx.x * params.slice_size, end = smaller(begin + params.slice_size, params.vocab_size);
  clear(tally);
  visit_logits(row, begin, end, [&](float logit, int id, bool inside) {
    if (inside) tally.add(interval_below(summary.largest, logit), 0);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < INTERVALS; i += LOGITS_THREADS) {
    if (memory.counts[i]) atomicAdd(&state.counts[i], memory.counts[i]);
  }
  if (!arrives_last(&state.weighed, params.num_slices, memory.scratch)) return;
  for (int i = threadIdx.x; i < INTERVALS; i += LOGITS_THREADS) memory.counts[i] = load_volatile(&state.counts[i]);
  __syncthreads();
  const Reached reached = first_reaching(tally, (u64)params.top_n, memory.scratch);
  if (threadIdx.x == 0) {
    state.last_interval = reached.interval;
    state.num_candidates = (u32)(reached.before + reached.amount);
  }
}

// Writes those of the `count` tokens in memory.ranked that are among the next `wanted`; `written` are before them.
DEVICE void write_ranked(const LogprobParameters& p, const LogprobMemory& memory, int count, int wanted, int written,
                         float log_sum) {
  const i64 start = (p.first_row + (i64)blockIdx.y) * p.top_n + written;
  for (int i = threadIdx.x; i < count; i += LOGITS_THREADS) {
    const u64 own = memory.ranked[i];
    int num_better = 0;
    for (int j = 0; j < count; j++) num_better += memory.ranked[j] < own;
    if (num_better >= wanted) continue;
    p.top_ids[start + num_better] = (i64)(own & (((u64)1 << ID_BITS) - 1));
    p.top_logprobs[start + num_better] = logit_of(own) - log_sum;
  }
}

// The tokens of a row that come after those written already.
struct OrderedRow {
  const LogitRow& row;
  int vocab_size;
  u64 first;

  template <class Visit>
  void visit(const Visit& visit) const {
    visit_logits(row, 0, vocab_size, [&](float logit, int id, bool inside) {
      if (inside && order_of(logit, id) >= first) visit(order_of(logit, id), id);
    });
  }
};

// Orders the row by one block, RANKED tokens at a time.
DEVICE void write_whole_row(const LogprobParameters& p, const LogitRow& row, LogprobMemory& memory, float log_sum) {
  u64 first = 0;
  for (int written = 0; written < p.top_n; written += RANKED) {
    const OrderedRow rest = {row, p.vocab_size, first};
    const int wanted = smaller(RANKED, p.top_n - written);
    const u64 last =
        select(rest, Counts{memory.counts}, ORDER_BITS, ~(u64)0 >> 1, (u64)wanted, memory.scratch);
    if (threadIdx.x == 0) memory.num_ranked = 0;
    __syncthreads();
    rest.visit([&](u64 order, int) {
      if (order <= last) memory.ranked[atomicAdd(&memory.num_ranked, 1u)] = order;
    });
    __syncthreads();
    write_ranked(p, memory, wanted, wanted, written, log_sum);
    first = last + 1;
  }
}

KERNEL(logprobs_top, LogprobParameters, LOGITS_THREADS, 2) {
  SHARED_MEMORY(shared);
  LogprobMemory& memory = *(LogprobMemory*)shared;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const LogitRow row = logits_of(params);
  const RowSummary summary = summarise(params);
  RankState& state = params.states[blockIdx.y];
  const int count = (int)state.num_candidates, last = state.last_interval;
  if (count > RANKED) {
    if (blockIdx.x == 0) write_whole_row(params, row, memory, summary.log_sum);
    return;
  }
  u64* candidates = params.candidates + (i64)blockIdx.y * RANKED;
  const int begin = blockIdx.x * params.slice_size, end = smaller(begin + params.slice_size, params.vocab_size);
  visit_logits(row, begin, end, [&](float logit, int id, bool inside) {
    const bool wanted = inside && interval_below(summary.largest, logit) <= last;
    append(wanted, order_of(logit, id), candidates, &state.taken);
  });
  if (!arrives_last(&state.gathered, params.num_slices, memory.scratch)) return;
  for (int i = threadIdx.x; i < count; i += LOGITS_THREADS) memory.ranked[i] = load_volatile(&candidates[i]);
  __syncthreads();
  write_ranked(params, memory, count, params.top_n, 0, summary.log_sum);
}
