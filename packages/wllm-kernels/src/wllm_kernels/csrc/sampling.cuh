// What the three kernels of the sampler share: their parameters, the options of a row, and the state that a row keeps
// between them.
struct SampleParameters {
  const void* logits;       // [rows, vocab] of `type`
  float* adjusted;          // [rows of this launch, adjusted_stride], or null: no bias, bitmask or penalty
  const float* temperature;  // [rows], as the next five; null, as each of the filters: off
  const i64* top_k;
  const float* top_p;
  const float* min_p;
  const i64* seeds;
  const i64* positions;
  const i64* bias_rows;     // [bias_entries], as the next two
  const i64* bias_ids;
  const float* bias_values;
  const u32* bitmask;       // [rows, bitmask_stride] or null
  const i64* penalty_rows;  // [num_penalised], as the next four
  const i64* penalty_slots;
  const float* repetition;
  const float* presence;
  const float* frequency;
  const int* output_counts;  // [slots, vocab]
  const u8* prompt_seen;     // [slots, vocab]
  i64* out;                  // [rows]
  u64* largest;              // [rows of this launch, num_slices]: each slice's largest logit and its token
  u64* drawn;                // [rows of this launch, num_slices]: each slice's winner
  struct SampleState* states;  // [rows of this launch]
  u64* candidates;             // [rows of this launch, capacity]: key and token id
  i64 logits_stride;
  i64 adjusted_stride;  // a multiple of GROUP
  i64 bitmask_stride;
  int type;
  int first_row;  // of this launch
  int vocab_size;
  int slice_size;  // a multiple of GROUP
  int num_slices;
  int bias_entries;
  int num_penalised;
  int capacity;
};

// What the second kernel finds out about a row with top-k or top-p. The first one clears it.
struct SampleState {
  u64 masses[INTERVALS];
  u64 total_mass;
  u32 counts[INTERVALS];
  u32 total_count;
  u32 num_candidates;  // tokens in the intervals up to last_interval, which hold all that can be drawn
  int last_interval;
  u32 taken;    // candidates gathered so far
  u32 weighed;  // slices
  u32 gathered;  // slices
};
// The launch code allocates it.
static_assert(sizeof(SampleState) == 24608, "STATE_BYTES of device/sampling.py");

struct SampleMemory {
  u32 counts[INTERVALS];
  u32 mass_low[INTERVALS];
  u32 mass_high[INTERVALS];
  Scratch scratch;
};
static_assert(sizeof(SampleMemory) <= 24832, "shared_bytes of device/sampling.py");

// Candidates up to so many are looked at in shared memory: several rounds of loads from elsewhere take long.
constexpr int STAGED = 2048;

struct SelectMemory {
  SampleMemory common;
  u64 staged[STAGED];
};
static_assert(sizeof(SelectMemory) <= 41216, "shared_bytes of device/sampling.py");

// A temperature below it means greedy.
constexpr float GREEDY_BELOW = 1e-5f;

// The row of a block, with what earlier kernels and the caller say about it.
struct SampleRow {
  LogitRow logits;  // adjusted
  int row;
  int begin, end;  // the slice of this block
  int greedy;      // the token with the largest logit
  bool is_failed;  // the largest logit is not finite
  bool is_random;
  float largest;
  float temperature;
  i64 top_k;    // 0 or less: off
  float top_p;  // 1 or more: off
  u32 limit;    // the largest key that min-p allows
  NoiseKey noise;

  bool needs_search() const { return top_k > 0 || top_p < 1.f; }
};

DEVICE LogitRow adjusted_row(const SampleParameters& p) {
  if (p.adjusted) return row_of(p.adjusted, F32, blockIdx.y * p.adjusted_stride);
  return row_of(p.logits, p.type, (p.first_row + (i64)blockIdx.y) * p.logits_stride);
}

// Whole warps call it: all of them read the largest logit of every slice.
DEVICE SampleRow read_row(const SampleParameters& p) {
  SampleRow r;
  r.logits = adjusted_row(p);
  r.row = p.first_row + blockIdx.y;
  r.begin = blockIdx.x * p.slice_size;
  r.end = smaller(r.begin + p.slice_size, p.vocab_size);
  // All loads first: one latency instead of several.
  r.temperature = p.temperature ? p.temperature[r.row] : 0.f;
  if (p.temperature) {
    const float min_p = p.min_p ? p.min_p[r.row] : 0.f;
    r.top_p = p.top_p ? p.top_p[r.row] : 1.f;
    r.top_k = p.top_k ? p.top_k[r.row] : 0;
    if (r.top_k >= p.vocab_size) r.top_k = 0;
    r.noise = noise_key(p.seeds[r.row], p.positions[r.row]);
    r.limit = min_p > 0.f ? __float_as_uint(fmaxf(-logf(min_p), 0.f)) : LAST_FINITE;
  }
  const u64 best = largest_of_slices(p.largest + (i64)blockIdx.y * p.num_slices, p.num_slices);
  r.greedy = id_of(best);
  r.largest = score_of(best);
  r.is_failed = !(fabsf(r.largest) < infinity());
  r.is_random = !r.is_failed && r.temperature >= GREEDY_BELOW;
  return r;
}

// Sources of tokens for `select` and for the draw: a whole row, and the candidates that all slices have gathered.
struct RowTokens {
  const SampleRow& r;
  int vocab_size;

  template <class Visit>
  void visit(const Visit& visit) const {
    visit_logits(r.logits, 0, vocab_size, [&](float logit, int id, bool) {
      visit(distance_key(logit, r.largest, r.temperature), id);
    });
  }
};

struct Candidates {
  const u64* entries;
  int count;

  template <class Visit>
  void visit(const Visit& visit) const {
    for (int i = threadIdx.x; i < count; i += LOGITS_THREADS) {
      const u64 entry = load_volatile(&entries[i]);
      visit((u32)(entry >> 32), (int)(u32)entry);
    }
  }
};
