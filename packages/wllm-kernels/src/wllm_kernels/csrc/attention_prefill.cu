// Attention of the long rows of a step (prompts and chunks of prompts) over the paged KV cache, on tensor cores.
//
// One block computes one tile of queries for one KV head. The grid is the most tiles that the tokens of the step can
// have, times KV heads; which tiles there are, attention_prefill_plan.cu has found from the lengths. Each warp owns 16
// or 32 lines of the tile: their scores, their softmax and their outputs never leave its registers, so the weights of
// one product are the operand of the next. Warps share only the ring of keys and values.
//
// The method is that of Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023),
// with the softmax of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018). Keys are read through
// a block table as in Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
// (2023); lines of several heads share a tile as in Ye et al., "FlashInfer: Efficient and Customizable Attention Engine
// for LLM Inference Serving" (2025).

// What a warp keeps of its lines between two tiles of keys. Each thread has, of every fragment of 16 lines, line
// lane / 4 (half 0) and line lane / 4 + 8 (half 1).
template <class Shape>
struct Accumulators {
  float outputs[Shape::FRAGMENTS][Shape::D / 8][4];
  float maxima[Shape::FRAGMENTS][2];  // of the scores
  float sums[Shape::FRAGMENTS][2];    // of the weights in this thread's columns
};

template <class Shape>
using Scores = float[Shape::FRAGMENTS][Shape::KEYS / 8][4];
// Pairs of weights, as the left operand of the product with the values.
template <class Shape>
using Weights = u32[Shape::FRAGMENTS][Shape::KEYS / 16][4];

DEVICE float minus_infinity() {
  return __uint_as_float(0xff800000u);
}

template <int VALUE>
struct Constant {
  static constexpr int value = VALUE;
};

template <class Shape>
DEVICE void clear(Accumulators<Shape>& a) {
  UNROLL
  for (int f = 0; f < Shape::FRAGMENTS; f++) {
    UNROLL
    for (int n = 0; n < Shape::D / 8; n++) {
      UNROLL
      for (int i = 0; i < 4; i++) a.outputs[f][n][i] = 0.f;
    }
    UNROLL
    for (int half = 0; half < 2; half++) {
      a.maxima[f][half] = minus_infinity();
      a.sums[f][half] = 0.f;
    }
  }
}

// scores = queries * keys.
template <class Shape>
DEVICE void multiply_keys(u32 queries, u32 keys, Scores<Shape>& scores) {
  constexpr int CHUNKS = Shape::CHUNKS, FRAGMENTS = Shape::FRAGMENTS;
  const u32 lane = threadIdx.x % WARP;
  UNROLL
  for (int f = 0; f < FRAGMENTS; f++) {
    UNROLL
    for (int n = 0; n < Shape::KEYS / 8; n++) {
      UNROLL
      for (int i = 0; i < 4; i++) scores[f][n][i] = 0.f;
    }
  }
  queries += swizzled<CHUNKS>(lane % 16, lane / 16);
  keys += swizzled<CHUNKS>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  UNROLL
  for (int k = 0; k < Shape::D / 16; k++) {
    u32 a[FRAGMENTS][4];
    UNROLL
    for (int f = 0; f < FRAGMENTS; f++) {
      load_matrices(a[f], chunk_pair<CHUNKS>(queries, k) + 16 * f * Shape::LINE_BYTES);
    }
    UNROLL
    for (int n = 0; n < Shape::KEYS / 16; n++) {
      u32 b[4];
      load_matrices(b, chunk_pair<CHUNKS>(keys, k) + 16 * n * Shape::LINE_BYTES);
      UNROLL
      for (int f = 0; f < FRAGMENTS; f++) {
        multiply_add<typename Shape::T>(scores[f][2 * n], a[f], b[0], b[1]);
        multiply_add<typename Shape::T>(scores[f][2 * n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

// outputs += weights * values.
template <class Shape>
DEVICE void multiply_values(const Weights<Shape>& weights, u32 values, Accumulators<Shape>& a) {
  const u32 lane = threadIdx.x % WARP;
  values += swizzled<Shape::CHUNKS>(lane % 16, lane / 16);
  UNROLL
  for (int k = 0; k < Shape::KEYS / 16; k++) {
    UNROLL
    for (int n = 0; n < Shape::D / 16; n++) {
      u32 b[4];
      load_matrices_transposed(b, chunk_pair<Shape::CHUNKS>(values, n) + 16 * k * Shape::LINE_BYTES);
      UNROLL
      for (int f = 0; f < Shape::FRAGMENTS; f++) {
        multiply_add<typename Shape::T>(a.outputs[f][2 * n], weights[f][k], b[0], b[1]);
        multiply_add<typename Shape::T>(a.outputs[f][2 * n + 1], weights[f][k], b[2], b[3]);
      }
    }
  }
}

// score = tanh(score * scale), up to the factor that score_scale has.
template <class Shape>
DEVICE void cap_scores(Scores<Shape>& scores, float cap_scale) {
  UNROLL
  for (int f = 0; f < Shape::FRAGMENTS; f++) {
    UNROLL
    for (int n = 0; n < Shape::KEYS / 8; n++) {
      UNROLL
      for (int i = 0; i < 4; i++) {
        scores[f][n][i] = 1.f - 2.f * reciprocal_fast(1.f + exp2_fast(scores[f][n][i] * cap_scale));
      }
    }
  }
}

// Whether some line of the tile does not see some of the keys from `first_key` on.
template <class Shape>
DEVICE bool needs_mask(const PrefillParameters& p, const QueryTile& t, int first_key) {
  return first_key + Shape::KEYS > t.first_end || (p.window && first_key < t.last_end - p.window);
}

// Hides what a line does not see of the keys from `first_key` on; `first_line` of the tile is the warp's first.
template <class Shape>
DEVICE void mask_scores(
    const PrefillParameters& p, const QueryTile& t, int first_line, int first_key, Scores<Shape>& scores) {
  const int lane = threadIdx.x % WARP;
  UNROLL
  for (int f = 0; f < Shape::FRAGMENTS; f++) {
    UNROLL
    for (int half = 0; half < 2; half++) {
      const int line = first_line + 16 * f + 8 * half + lane / 4;
      const int end = p.causal ? t.first_end + (t.phase + line) / p.group : t.last_end;
      // The keys that the line sees, counted from this thread's first column on.
      const int column = first_key + lane % 4 * 2;
      const int first_seen = (p.window ? end - p.window : 0) - column, end_seen = end - column;
      UNROLL
      for (int n = 0; n < Shape::KEYS / 8; n++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
          const int key = 8 * n + i;
          float& score = scores[f][n][2 * half + i];
          score = key >= first_seen && key < end_seen ? score : minus_infinity();
        }
      }
    }
  }
}

// The largest of the scores of one line in this tile and of `largest`.
template <class Shape>
DEVICE float line_maximum(const Scores<Shape>& scores, int f, int half, float largest) {
  UNROLL
  for (int n = 0; n < Shape::KEYS / 8; n++) {
    largest = fmaxf(largest, fmaxf(scores[f][n][2 * half], scores[f][n][2 * half + 1]));
  }
  largest = fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 2));
}

// The maximum as an exponent of 2. While a line has seen no key it is 0 instead of minus infinity, so that its weights
// are exp2(-inf - 0) = 0 and not NaN.
DEVICE float exponent(float maximum, float score_scale) {
  return maximum == minus_infinity() ? 0.f : maximum * score_scale;
}

// Brings the outputs and sums of a fragment to new maxima.
template <class Shape>
DEVICE void rescale(Accumulators<Shape>& a, int f, const float (&maxima)[2], float score_scale) {
  UNROLL
  for (int half = 0; half < 2; half++) {
    const float factor = exp2_fast(a.maxima[f][half] * score_scale - exponent(maxima[half], score_scale));
    a.maxima[f][half] = maxima[half];
    a.sums[f][half] *= factor;
    UNROLL
    for (int n = 0; n < Shape::D / 8; n++) {
      a.outputs[f][n][2 * half] *= factor;
      a.outputs[f][n][2 * half + 1] *= factor;
    }
  }
}

// Scores become weights.
template <class Shape>
DEVICE void weigh(Scores<Shape>& scores, Weights<Shape>& weights, Accumulators<Shape>& a, float score_scale) {
  UNROLL
  for (int f = 0; f < Shape::FRAGMENTS; f++) {
    const float maxima[2] = {line_maximum<Shape>(scores, f, 0, a.maxima[f][0]),
                             line_maximum<Shape>(scores, f, 1, a.maxima[f][1])};
    // Most tiles of a long row leave the maxima of all lines as they are.
    const bool rose = maxima[0] != a.maxima[f][0] || maxima[1] != a.maxima[f][1];
    if (__any_sync(WHOLE_WARP, rose)) rescale<Shape>(a, f, maxima, score_scale);
    UNROLL
    for (int half = 0; half < 2; half++) {
      const float shift = exponent(a.maxima[f][half], score_scale);
      float sum = 0.f;
      UNROLL
      for (int n = 0; n < Shape::KEYS / 8; n++) {
        const float low = exp2_fast(scores[f][n][2 * half] * score_scale - shift);
        const float high = exp2_fast(scores[f][n][2 * half + 1] * score_scale - shift);
        sum += low + high;
        weights[f][n / 2][n % 2 * 2 + half] = pack2<typename Shape::T>(low, high);
      }
      a.sums[f][half] += sum;
    }
  }
}

// Outputs over sums, through the lines of shared memory that held this warp's queries, to `out`.
template <class Shape>
DEVICE void write_outputs(
    const PrefillParameters& p, const QueryTile& t, int kv_head, int first_line, u8* lines, Accumulators<Shape>& a) {
  constexpr int CHUNKS = Shape::CHUNKS;
  const int lane = opaque(threadIdx.x) & (WARP - 1);
  UNROLL
  for (int f = 0; f < Shape::FRAGMENTS; f++) {
    UNROLL
    for (int half = 0; half < 2; half++) {
      float sum = a.sums[f][half];
      sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
      sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
      const float factor = sum > 0.f ? reciprocal_fast(sum) : 0.f;
      UNROLL
      for (int n = 0; n < Shape::D / 8; n++) {
        u8* chunk = lines + swizzled<CHUNKS>(16 * f + 8 * half + lane / 4, n);
        *(u32*)(chunk + lane % 4 * 4) = pack2<typename Shape::T>(
            a.outputs[f][n][2 * half] * factor, a.outputs[f][n][2 * half + 1] * factor);
      }
    }
  }
  __syncwarp();
  u8* heads = (u8*)p.out + t.first_token * p.out_token_bytes + (i64)kv_head * p.group * p.out_head_bytes;
  constexpr int PIECES = 16 * Shape::FRAGMENTS * CHUNKS;
  for (int piece = lane; piece < PIECES; piece += WARP) {
    const int line = piece / CHUNKS, chunk = piece % CHUNKS, line_of_row = first_line + line;
    if (line_of_row >= t.num_lines) break;
    const int token = line_of_row / p.group, head = line_of_row % p.group;
    store16(heads + token * p.out_token_bytes + head * p.out_head_bytes + chunk * 16,
            load16(lines + swizzled<CHUNKS>(line, chunk)));
  }
}

// The slots of the ring in turn, as offsets from the first.
template <class Shape>
DEVICE u32 next_slot(u32 slot) {
  return slot + Shape::SLOT_BYTES == Shape::SLOTS * Shape::SLOT_BYTES ? 0 : slot + Shape::SLOT_BYTES;
}
template <class Shape>
DEVICE u32 previous_slot(u32 slot) {
  return (slot == 0 ? Shape::SLOTS * Shape::SLOT_BYTES : slot) - Shape::SLOT_BYTES;
}

template <class Shape>
DEVICE void attend(const PrefillParameters& p) {
  SHARED_MEMORY(shared);
  const int kv_head = blockIdx.x % p.num_kv_heads, tile = blockIdx.x / p.num_kv_heads, warp = threadIdx.x / WARP;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const QueryTile t = read_query_tile<Shape>(p, tile);
  if (t.row == p.rows) return;
  const int warp_line = warp * 16 * Shape::FRAGMENTS, warp_key = warp * Shape::WARP_KEYS;
  u8* const warp_queries = shared + warp_line * Shape::LINE_BYTES;
  u8* const ring = shared + Shape::QUERY_BYTES;
  u8* const warp_slice = ring + warp * Shape::WARP_BYTES;
  int key = first_seen(p, t) & ~15;  // the first of the tile of keys; a slice of 16 lies in one block
  int block = look_up<Shape>(p, t, key + warp_key);
  // Fills the slot for what is read HALVES half steps later: a tile has one for its keys and one for its values.
  auto fill = [&](auto halves, int key, u32 slot) {
    constexpr int HALVES = decltype(halves)::value;
    key += HALVES / 2 * Shape::KEYS;
    if (key < t.last_end) {
      copy_slice<Shape, HALVES % 2>(p, t, block, kv_head, key + warp_key, shared_address(warp_slice) + slot);
    }
    copy_async_commit();  // always, so that groups can be counted
  };

  // Where no key is seen, nobody would wait for the queries.
  if (key < t.last_end) copy_queries<Shape>(p, t, kv_head, shared_address(shared));
  fill(Constant<0>(), key, 0);
  if constexpr (Shape::SLOTS > 2) fill(Constant<1>(), key, Shape::SLOT_BYTES);
  if constexpr (Shape::SLOTS > 3) fill(Constant<2>(), key, 2 * Shape::SLOT_BYTES);

  Accumulators<Shape> accumulators;
  clear<Shape>(accumulators);
  u32 slot = 0;
  for (; key < t.last_end; key += Shape::KEYS) {
    Scores<Shape> scores;
    receive<Shape>(p, warp_slice + slot);
    fill(Constant<Shape::SLOTS - 1>(), key, previous_slot<Shape>(slot));
    multiply_keys<Shape>(shared_address(warp_queries), shared_address(ring) + slot, scores);
    slot = next_slot<Shape>(slot);
    if (p.cap_scale != 0.f) cap_scores<Shape>(scores, p.cap_scale);
    if (needs_mask<Shape>(p, t, key)) mask_scores<Shape>(p, t, warp_line, key, scores);
    Weights<Shape> weights;
    weigh<Shape>(scores, weights, accumulators, p.score_scale);
    receive<Shape>(p, warp_slice + slot);
    fill(Constant<Shape::SLOTS>(), key, previous_slot<Shape>(slot));
    multiply_values<Shape>(weights, shared_address(ring) + slot, accumulators);
    slot = next_slot<Shape>(slot);
  }
  // Found again, so that the loop above need not keep all of it in registers.
  const QueryTile again = read_query_tile<Shape>(p, tile);
  write_outputs<Shape>(p, again, kv_head, again.first_line + warp_line, warp_queries, accumulators);
}

// The build gives the element type, the head dim and the shape of the tiles, and names the kernel (families.py).
using Shape = PrefillShape<PREFILL_ELEMENT, PREFILL_HEAD_DIM, PREFILL_FRAGMENTS, PREFILL_WARPS, PREFILL_KEYS,
                           PREFILL_SLOTS>;

KERNEL(PREFILL_NAME, PrefillParameters, Shape::THREADS, PREFILL_BLOCKS) {
  attend<Shape>(params);
}
