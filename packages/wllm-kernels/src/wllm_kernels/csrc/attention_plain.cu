// Paged attention without tensor cores, for what the other kernels do not serve: float32 and unusual head sizes. It
// takes every row of a step, whatever its number of queries.
//
// One block computes up to HEADS query heads of one token that share a KV head; its warps take the visible keys in
// turns, KEYS at a time. Lanes are columns of the head while keys and values are read, and one (key, head) pair each
// while scores become weights. The softmax is computed online (Milakov and Gimelshein: Online normalizer calculation
// for softmax, 2018); the warps' results are merged at the end.
struct PlainAttentionParameters {
  const void* q;            // [tokens, num_heads, head_dim]
  const void* kv;           // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const f16* kv_scale;      // [num_blocks, 2, num_kv_heads, block_size], of an int8 cache
  const int* block_table;   // [num_rows, max_blocks]
  const int* seq_lens;      // [num_rows], cached tokens
  const int* cu_q;          // [num_rows + 1], where the rows' queries begin
  void* out;                // [tokens, num_heads, head_dim]
  i64 q_token_stride;       // all strides in elements
  i64 q_head_stride;
  i64 out_token_stride;
  i64 out_head_stride;
  i64 kv_block_stride;
  i64 kv_value_stride;      // from a key to its value
  i64 kv_head_stride;
  i64 kv_cell_stride;
  i64 block_table_stride;
  int num_rows;
  int num_kv_heads;
  int group;                // query heads that share a KV head
  int head_dim;
  int block_size;
  int capacity;             // what a row of the block table can hold: a longer length would lead behind the table
  int causal;
  int window;               // keys that a query sees, or 0
  float scale;
  float softcap;            // or 0
};

constexpr int PLAIN_WARPS = 4;
constexpr int HEADS = 4;
constexpr int KEYS = WARP / HEADS;
constexpr int COLUMNS = 256 / WARP;  // of the head, of one lane: the largest head has 256

// The keys that a token sees, by their places in its row.
struct VisibleKeys {
  const int* blocks;
  int first, last;
};

// The row of `token`: the first whose queries end behind it; num_rows for a token of no row.
DEVICE int find_row(const int* cu_q, int num_rows, int token) {
  int low = 0, high = num_rows;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cu_q[middle + 1] > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

DEVICE VisibleKeys visible_keys(const PlainAttentionParameters& p, int token) {
  const int row = find_row(p.cu_q, p.num_rows, token);
  if (row == p.num_rows) return {nullptr, 0, 0};
  const int length = smaller(p.seq_lens[row], p.capacity), position = length - (p.cu_q[row + 1] - token);
  const int first = p.window ? larger(0, position - p.window + 1) : 0;
  return {p.block_table + row * p.block_table_stride, first, p.causal ? position + 1 : length};
}

// Sums 2 * COUNT values over the 2 * COUNT lanes whose numbers differ in the lowest bits: lane l gets the total of
// values[l]. Each step halves what a lane is in charge of: 31 shuffles for 32 values, not 160.
template <int COUNT>
DEVICE float transposed_sum(float (&values)[WARP]) {
  const bool upper = threadIdx.x & COUNT;
  UNROLL
  for (int i = 0; i < COUNT; i++) {
    const float other = __shfl_xor_sync(WHOLE_WARP, upper ? values[i] : values[i + COUNT], COUNT);
    values[i] = (upper ? values[i + COUNT] : values[i]) + other;
  }
  if constexpr (COUNT > 1) {
    return transposed_sum<COUNT / 2>(values);
  } else {
    return values[0];
  }
}

// A key in the cache: where it begins, in elements, and the factors of its row and of its value's.
struct Cell {
  i64 offset;
  float key_scale, value_scale;
};

template <class Cached>
DEVICE Cell find_cell(const PlainAttentionParameters& p, const VisibleKeys& visible, int kv_head, int key) {
  const int block = visible.blocks[key / p.block_size], cell = key % p.block_size;
  Cell found = {block * p.kv_block_stride + kv_head * p.kv_head_stride + cell * p.kv_cell_stride, 1.f, 1.f};
  if constexpr (same_type<Cached, i8>) {
    const f16* scales = p.kv_scale + ((i64)block * 2 * p.num_kv_heads + kv_head) * p.block_size + cell;
    found.key_scale = to_float(scales[0]);
    found.value_scale = to_float(scales[p.num_kv_heads * p.block_size]);
  }
  return found;
}

template <class E>
DEVICE float column_of(const E* row, int column, int head_dim) {
  return column < head_dim ? to_float(row[column]) : 0.f;
}

// What one warp has seen. Each lane has the columns lane, lane + WARP, ... of all heads, but the maximum and its part
// of the sum of weights of head lane % HEADS only.
struct Seen {
  float maximum = LOWEST, sum = 0.f;
  float values[HEADS][COLUMNS] = {};
};

// The products of the lane's key and head, one of KEYS x HEADS.
template <class Cached>
DEVICE float dot_products(const float (&q)[HEADS][COLUMNS], const Cached* cache, const i64 (&offsets)[KEYS],
                          int head_dim) {
  const int lane = threadIdx.x % WARP;
  float products[KEYS * HEADS] = {};
  UNROLL
  for (int i = 0; i < COLUMNS; i++) {
    if (i * WARP < head_dim) {
      UNROLL
      for (int key = 0; key < KEYS; key++) {
        const float element = column_of(cache + offsets[key], i * WARP + lane, head_dim);
        UNROLL
        for (int head = 0; head < HEADS; head++) products[key * HEADS + head] += q[head][i] * element;
      }
    }
  }
  return transposed_sum<WARP / 2>(products);
}

// Adds values, each with the weight that lane key * HEADS + head holds, to what is left of the earlier ones.
template <class Cached>
DEVICE void add_values(Seen& seen, float weight, float rescale, const Cached* cache, const i64 (&offsets)[KEYS],
                       int head_dim) {
  const int lane = threadIdx.x % WARP;
  float weights[KEYS][HEADS], rescales[HEADS];
  UNROLL
  for (int source = 0; source < WARP; source++) {
    weights[source / HEADS][source % HEADS] = __shfl_sync(WHOLE_WARP, weight, source);
  }
  UNROLL
  for (int head = 0; head < HEADS; head++) rescales[head] = __shfl_sync(WHOLE_WARP, rescale, head);
  UNROLL
  for (int i = 0; i < COLUMNS; i++) {
    if (i * WARP < head_dim) {
      UNROLL
      for (int head = 0; head < HEADS; head++) seen.values[head][i] *= rescales[head];
      UNROLL
      for (int key = 0; key < KEYS; key++) {
        const float element = column_of(cache + offsets[key], i * WARP + lane, head_dim);
        UNROLL
        for (int head = 0; head < HEADS; head++) seen.values[head][i] += weights[key][head] * element;
      }
    }
  }
}

// Over the keys, for each head apart.
DEVICE float max_of_head(float value) {
  UNROLL
  for (int distance = HEADS; distance < WARP; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
  }
  return value;
}
DEVICE float sum_of_head(float value) {
  UNROLL
  for (int distance = HEADS; distance < WARP; distance *= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  return value;
}

// The warp's share of the visible keys: KEYS of every PLAIN_WARPS * KEYS.
template <class Cached>
DEVICE void see_keys(Seen& seen, const PlainAttentionParameters& p, const float (&q)[HEADS][COLUMNS],
                     const VisibleKeys& visible, int kv_head) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Cached* cache = (const Cached*)p.kv;
  for (int first = visible.first + warp * KEYS; first < visible.last; first += PLAIN_WARPS * KEYS) {
    const int key = first + lane / HEADS;
    // Behind the last key its cell is read again: no other is known to hold numbers.
    const Cell cell = find_cell<Cached>(p, visible, kv_head, smaller(key, visible.last - 1));
    i64 offsets[KEYS];
    UNROLL
    for (int i = 0; i < KEYS; i++) offsets[i] = __shfl_sync(WHOLE_WARP, cell.offset, i * HEADS);
    float score = dot_products(q, cache, offsets, p.head_dim) * cell.key_scale * p.scale;
    if (p.softcap != 0.f) score = tanhf(score / p.softcap) * p.softcap;
    score *= LOG2_E;
    const float maximum = larger(seen.maximum, max_of_head(score));
    const float weight = key < visible.last ? exp2_fast(score - maximum) : 0.f;
    const float rescale = exp2_fast(seen.maximum - maximum);
    seen.maximum = maximum;
    seen.sum = seen.sum * rescale + weight;
    add_values(seen, weight * cell.value_scale, rescale, cache + p.kv_value_stride, offsets, p.head_dim);
  }
}

// What the warps leave for each other in shared memory.
struct WarpResult {
  float maximum[HEADS];
  float sum[HEADS];
  float values[HEADS][COLUMNS * WARP];
};

DEVICE void leave_result(WarpResult& result, const Seen& seen) {
  const int lane = threadIdx.x % WARP;
  const float sum = sum_of_head(seen.sum);
  if (lane < HEADS) {
    result.maximum[lane] = seen.maximum;
    result.sum[lane] = sum;
  }
  UNROLL
  for (int head = 0; head < HEADS; head++) {
    UNROLL
    for (int i = 0; i < COLUMNS; i++) result.values[head][i * WARP + lane] = seen.values[head][i];
  }
}

// One element of the output; 0 where no key was seen.
DEVICE float merge_results(const WarpResult* results, int head, int column) {
  float maximum = LOWEST, sum = 0.f, value = 0.f;
  for (int warp = 0; warp < PLAIN_WARPS; warp++) maximum = larger(maximum, results[warp].maximum[head]);
  for (int warp = 0; warp < PLAIN_WARPS; warp++) {
    const float rescale = exp2_fast(results[warp].maximum[head] - maximum);
    sum += results[warp].sum[head] * rescale;
    value += results[warp].values[head][column] * rescale;
  }
  return sum == 0.f ? 0.f : value / sum;  // NaN stays NaN
}

template <class T, class Cached>
DEVICE void plain_attention(const PlainAttentionParameters& p) {
  SHARED_MEMORY(shared);
  const int token = blockIdx.x, kv_head = blockIdx.y, first_head = blockIdx.z * HEADS, lane = threadIdx.x % WARP;
  const int num_heads = smaller(HEADS, p.group - first_head);
  const i64 head_of_all = (i64)kv_head * p.group + first_head;
  const T* q_rows = (const T*)p.q + token * p.q_token_stride + head_of_all * p.q_head_stride;
  let_next_kernel_start();
  wait_for_previous_kernel();
  float q[HEADS][COLUMNS];
  UNROLL
  for (int head = 0; head < HEADS; head++) {
    UNROLL
    for (int i = 0; i < COLUMNS; i++) {
      q[head][i] = head < num_heads ? column_of(q_rows + head * p.q_head_stride, i * WARP + lane, p.head_dim) : 0.f;
    }
  }
  Seen seen;
  see_keys<Cached>(seen, p, q, visible_keys(p, token), kv_head);

  WarpResult* results = (WarpResult*)shared;
  leave_result(results[threadIdx.x / WARP], seen);
  __syncthreads();
  T* out = (T*)p.out + token * p.out_token_stride + head_of_all * p.out_head_stride;
  for (int i = threadIdx.x; i < num_heads * p.head_dim; i += PLAIN_WARPS * WARP) {
    const int head = i / p.head_dim, column = i % p.head_dim;
    out[head * p.out_head_stride + column] = from_float<T>(merge_results(results, head, column));
  }
}

#define PLAIN_ATTENTION(NAME, T, CACHED) \
  KERNEL(NAME, PlainAttentionParameters, PLAIN_WARPS * WARP, 3) { plain_attention<T, CACHED>(params); }

#ifdef E4M3_CACHE
PLAIN_ATTENTION(attention_plain_f32_e4m3, float, e4m3)
PLAIN_ATTENTION(attention_plain_f16_e4m3, f16, e4m3)
PLAIN_ATTENTION(attention_plain_bf16_e4m3, bf16, e4m3)
#else
PLAIN_ATTENTION(attention_plain_f32, float, float)
PLAIN_ATTENTION(attention_plain_f16, f16, f16)
PLAIN_ATTENTION(attention_plain_bf16, bf16, bf16)
PLAIN_ATTENTION(attention_plain_f32_i8, float, i8)
PLAIN_ATTENTION(attention_plain_f16_i8, f16, i8)
PLAIN_ATTENTION(attention_plain_bf16_i8, bf16, i8)
#endif
