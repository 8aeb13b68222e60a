// Norms the query and key heads of a step, turns them by their positions, and writes keys and values into the paged
// cache. A team of 2^team_log2 neighbouring lanes takes a few heads of one token and keeps them in its registers: the
// sums of the norm and of the scale stay within the team, and no barrier is needed. With E4M3_CACHE the family has the
// kernels of FP8 caches, else the others.
// Grid: enough blocks of ROPE_THREADS for `teams` teams of each token, token by token.
// Method: rotary position embedding (Jianlin Su et al., RoFormer, 2021).
struct RopeParameters {
  const void* qkv;        // [tokens, num_heads + 2 * num_kv_heads, head_dim]
  const i64* positions;   // [tokens]: rows of cos_sin
  const void* cos_sin;    // [max_positions, rotary_dim]: cosines, then sines; T, or float if wide_angles
  void* kv;               // [num_blocks, 2, num_kv_heads, block_size, head_dim], with these strides in elements
  i64 block_stride, side_stride, head_stride, cell_stride;
  const i64* cells;       // [tokens]: block * block_size + offset, -1 for none
  const void* q_norm;     // [head_dim] or null
  const void* k_norm;     // [head_dim] or null
  f16* kv_scale;          // [num_blocks, 2, num_kv_heads, block_size] of an int8 cache
  void* out;              // [tokens, num_heads, head_dim]
  int tokens;
  int num_heads, num_kv_heads;
  int head_dim, rotary_dim;
  int block_size;
  int team_log2;
  int teams;              // of a token
  int team_heads;         // heads of a team, at most ROPE_HEADS
  int interleaved;        // a pair is two neighbours; else one of the first and one of the second half
  int wide_angles;
  float eps;
};

constexpr int ROPE_THREADS = 128;
// As many blocks on a multiprocessor as registers allow without spilling.
template <class T>
constexpr int ROPE_BLOCKS = same_type<T, f16> ? 7 : 8;
// Enough loads on their way, and one look at the token's position, angles and cell for all of them.
constexpr int ROPE_HEADS = 2;
constexpr float INT8_LARGEST = 127.f;
constexpr float F16_SMALLEST_NORMAL = 6.103515625e-5f;

enum Role { QUERY, KEY, VALUE };

struct Head {
  Role role;
  int index;  // among the heads of its role
};

// Where a lane's share of a head lies: two runs of N elements. Those that turn together are in the same place of both,
// or side by side if pairs are interleaved.
struct Span {
  int first, second;  // elements in front of the two runs
  int pair;           // the first of its N pairs
  bool held;          // a lane without a share has nothing to load or store
  bool in_rotary;
};

DEVICE Head head_of(const RopeParameters& p, int index) {
  if (index < p.num_heads) return {QUERY, index};
  if (index < p.num_heads + p.num_kv_heads) return {KEY, index - p.num_heads};
  return {VALUE, index - p.num_heads - p.num_kv_heads};
}

template <int N>
DEVICE Span span_of(const RopeParameters& p, int index) {
  Span span;
  span.held = index * 2 * N < p.head_dim;
  span.in_rotary = index * 2 * N < p.rotary_dim;
  const bool halves = span.in_rotary && !p.interleaved;
  span.first = halves ? index * N : index * 2 * N;
  span.second = span.first + (halves ? p.rotary_dim / 2 : N);
  span.pair = index * N;
  return span;
}

DEVICE float team_sum(const RopeParameters& p, float value) {
  for (int distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  }
  return value;
}

// The larger one, or the one that is not a number: such a row must not look healthy.
DEVICE float larger_or_nan(float a, float b) {
  return a > b || a != a ? a : b;
}

DEVICE float team_max(const RopeParameters& p, float value) {
  for (int distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {
    value = larger_or_nan(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
  }
  return value;
}

// N cosines or sines from `offset` of a row, rounded to T.
template <class T, int N>
DEVICE Run<T, N> load_angles(const RopeParameters& p, i64 row, int offset) {
  const i64 first = row * p.rotary_dim + offset;
  if (same_type<T, float> || !p.wide_angles) return load_run<T, N>((const T*)p.cos_sin + first);
  constexpr int STEP = N == 1 ? 1 : PIECE<float>;
  float values[N];
  UNROLL
  for (int k = 0; k < N; k += STEP) {
    float wide[STEP];
    unpack(wide, load_run<float, STEP>((const float*)p.cos_sin + first + k));
    UNROLL
    for (int i = 0; i < STEP; i++) values[k + i] = wide[i];
  }
  return pack<T>(values);
}

// Turns the pair (x, y); the first products are rounded on their own, the results by whoever packs them.
template <class T>
DEVICE void turn(float& x, float& y, float cos, float sin) {
  float x_cos = x * cos, y_cos = y * cos;
  round_both<T>(x_cos, y_cos);
  const float turned_x = fmaf(-y, sin, x_cos);
  y = fmaf(x, sin, y_cos);
  x = turned_x;
}

template <class T, int N>
DEVICE void turn_span(const RopeParameters& p, float (&x)[N], float (&y)[N], const float (&cos)[N],
                      const float (&sin)[N]) {
  if (N > 1 && p.interleaved) {
    UNROLL
    for (int i = 0; i < N / 2; i++) {
      turn<T>(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
      turn<T>(y[2 * i], y[2 * i + 1], cos[N / 2 + i], sin[N / 2 + i]);
    }
  } else {
    UNROLL
    for (int i = 0; i < N; i++) turn<T>(x[i], y[i], cos[i], sin[i]);
  }
}

template <class T, int N>
DEVICE float sum_of_squares(const Run<T, N>& run) {
  float values[N], sum = 0.f;
  unpack(values, run);
  UNROLL
  for (int i = 0; i < N; i++) sum += values[i] * values[i];
  return sum;
}

template <class T, int N>
DEVICE Run<T, N> scaled_run(const Run<T, N>& run, float scale, const T* weights) {
  float values[N], weight[N];
  unpack(values, run);
  unpack(weight, load_run<T, N>(weights));
  UNROLL
  for (int i = 0; i < N; i++) values[i] *= scale;
  round_all<T>(values);
  UNROLL
  for (int i = 0; i < N; i++) values[i] *= weight[i];
  return pack<T>(values);
}

template <class T, int N>
DEVICE float largest_magnitude(const Run<T, N>& run) {
  float values[N], largest = 0.f;
  unpack(values, run);
  UNROLL
  for (int i = 0; i < N; i++) largest = larger_or_nan(fabsf(values[i]), largest);
  return largest;
}

// Stores N elements, as they are or as bytes of the cache's type.
template <class T, class Cache, int N>
DEVICE void store_cached(Cache* target, const Run<T, N>& run, float scale) {
  if constexpr (same_type<T, Cache>) {
    store_run(target, run);
  } else {
    float values[N];
    unpack(values, run);
    u8 bytes[N];
    UNROLL
    for (int i = 0; i < N; i++) {
      if constexpr (same_type<Cache, i8>) {
        bytes[i] = (u8)(i8)fmaxf(fminf(rintf(values[i] / scale), INT8_LARGEST), -INT8_LARGEST);
      } else {
        bytes[i] = from_float<Cache>(values[i]).bits;
      }
    }
    if constexpr (N == 1) {
      *(u8*)target = bytes[0];
    } else {
      u32 words[N / 4];
      UNROLL
      for (int k = 0; k < N / 4; k++) {
        words[k] = bytes[4 * k] | bytes[4 * k + 1] << 8 | bytes[4 * k + 2] << 16 | (u32)bytes[4 * k + 3] << 24;
      }
      if constexpr (N == 8) {
        *(uint2*)target = make_uint2(words[0], words[1]);
      } else {
        *(u32*)target = words[0];
      }
    }
  }
}

template <class T, int N, int SPANS>
DEVICE void norm_head(const RopeParameters& p, Role role, const Span (&spans)[SPANS], Run<T, N> (&runs)[SPANS][2]) {
  float squares = 0.f;
  UNROLL
  for (int k = 0; k < SPANS; k++) {
    if (spans[k].held) squares += sum_of_squares(runs[k][0]) + sum_of_squares(runs[k][1]);
  }
  // Every lane takes part in the sum, also those of heads that have no norm.
  const float scale = 1.f / sqrtf(team_sum(p, squares) / p.head_dim + p.eps);
  const T* weight = (const T*)(role == QUERY ? p.q_norm : role == KEY ? p.k_norm : nullptr);
  if (!weight) return;
  UNROLL
  for (int k = 0; k < SPANS; k++) {
    if (!spans[k].held) continue;
    runs[k][0] = scaled_run(runs[k][0], scale, weight + spans[k].first);
    runs[k][1] = scaled_run(runs[k][1], scale, weight + spans[k].second);
  }
}

template <class T, int N>
DEVICE void turn_runs(const RopeParameters& p, const Run<T, N> (&cos_sin)[2], Run<T, N> (&runs)[2]) {
  float cos[N], sin[N], x[N], y[N];
  unpack(cos, cos_sin[0]);
  unpack(sin, cos_sin[1]);
  unpack(x, runs[0]);
  unpack(y, runs[1]);
  turn_span<T>(p, x, y, cos, sin);
  runs[0] = pack<T>(x);
  runs[1] = pack<T>(y);
}

// The scale of a key or value in an int8 cache, as the cache stores it: the largest magnitude becomes 127.
template <class T, int N, int SPANS>
DEVICE f16 int8_scale(const RopeParameters& p, const Span (&spans)[SPANS], const Run<T, N> (&runs)[SPANS][2]) {
  float largest = 0.f;
  UNROLL
  for (int k = 0; k < SPANS; k++) {
    if (!spans[k].held) continue;
    largest = larger_or_nan(largest_magnitude(runs[k][0]), largest);
    largest = larger_or_nan(largest_magnitude(runs[k][1]), largest);
  }
  return from_float<f16>(larger(team_max(p, largest) / INT8_LARGEST, F16_SMALLEST_NORMAL));
}

template <class T, class Cache, int N, int SPANS>
DEVICE void store_head(Cache* target, const Span (&spans)[SPANS], const Run<T, N> (&runs)[SPANS][2], float scale) {
  UNROLL
  for (int k = 0; k < SPANS; k++) {
    if (!spans[k].held) continue;
    store_cached<T>(target + spans[k].first, runs[k][0], scale);
    store_cached<T>(target + spans[k].second, runs[k][1], scale);
  }
}

// T: the model's elements. Cache: T, i8 or e4m3. N: elements of a run. A lane holds up to SPANS spans of each of up to
// HEADS heads.
template <class T, class Cache, int N, int SPANS, int HEADS>
DEVICE void rope_kv_write(const RopeParameters& p) {
  // Before anything else: behind the arithmetic of indices the compiler would spill registers.
  let_next_kernel_start();
  wait_for_previous_kernel();
  const u32 team = (blockIdx.x * ROPE_THREADS + threadIdx.x) >> p.team_log2;
  const int rank = threadIdx.x & ((1 << p.team_log2) - 1);
  // Teams behind the last token read it too, for the sake of the warp's shuffles, and write nothing. So do those that
  // have fewer heads than others with the last head.
  const int token = team / p.teams, first_head = team % p.teams * p.team_heads;
  const int read_token = smaller(token, p.tokens - 1), last_head = p.num_heads + 2 * p.num_kv_heads - 1;
  const i64 position = p.positions[read_token], cell = p.cells[read_token];

  Span spans[SPANS];
  UNROLL
  for (int k = 0; k < SPANS; k++) spans[k] = span_of<N>(p, rank + (k << p.team_log2));
  Run<T, N> runs[HEADS][SPANS][2], cos_sin[SPANS][2];
  const T* source = (const T*)p.qkv + read_token * (last_head + 1ll) * p.head_dim;
  UNROLL
  for (int h = 0; h < HEADS; h++) {
    if (h >= p.team_heads) break;
    const T* head = source + smaller(first_head + h, last_head) * p.head_dim;
    UNROLL
    for (int k = 0; k < SPANS; k++) {
      if (!spans[k].held) continue;
      runs[h][k][0] = load_run<T, N>(head + spans[k].first);
      runs[h][k][1] = load_run<T, N>(head + spans[k].second);
    }
  }
  UNROLL
  for (int k = 0; k < SPANS; k++) {
    if (!spans[k].held || !spans[k].in_rotary) continue;
    cos_sin[k][0] = load_angles<T, N>(p, position, spans[k].pair);
    cos_sin[k][1] = load_angles<T, N>(p, position, p.rotary_dim / 2 + spans[k].pair);
  }

  // 32 bits number every cell that fits into a GPU; a 64-bit division takes ten times as long.
  const u32 block = (u32)cell / p.block_size, offset = (u32)cell % p.block_size;
  Cache* cell_at = (Cache*)p.kv + block * p.block_stride + offset * p.cell_stride;
  T* queries_at = (T*)p.out + (i64)read_token * p.num_heads * p.head_dim;
  UNROLL
  for (int h = 0; h < HEADS; h++) {
    if (h >= p.team_heads) break;
    const Head head = head_of(p, smaller(first_head + h, last_head));
    if (p.q_norm || p.k_norm) norm_head(p, head.role, spans, runs[h]);
    UNROLL
    for (int k = 0; k < SPANS; k++) {
      if (spans[k].held && spans[k].in_rotary && head.role != VALUE) turn_runs(p, cos_sin[k], runs[h][k]);
    }
    f16 scale = {0};
    if constexpr (same_type<Cache, i8>) scale = int8_scale(p, spans, runs[h]);
    if (token >= p.tokens || first_head + h > last_head) continue;
    if (head.role == QUERY) {
      store_head(queries_at + head.index * p.head_dim, spans, runs[h], 0.f);
    } else if (cell >= 0) {
      const int side = head.role == VALUE;
      if constexpr (same_type<Cache, i8>) {
        const i64 row = ((i64)block * 2 + side) * p.num_kv_heads + head.index;
        if (rank == 0) p.kv_scale[row * p.block_size + offset] = scale;
      }
      store_head(cell_at + side * p.side_stride + head.index * p.head_stride, spans, runs[h], to_float(scale));
    }
  }
}

// Runs of 16 bytes, one span a lane; and single elements for heads and addresses that are not made of such runs.
#define ROPE_KERNELS(SUFFIX, T, CACHE)                                                  \
  KERNEL(rope_kv_write_##SUFFIX, RopeParameters, ROPE_THREADS, ROPE_BLOCKS<T>) {        \
    rope_kv_write<T, CACHE, PIECE<T>, 1, ROPE_HEADS>(params);                           \
  }                                                                                     \
  KERNEL(rope_kv_write_elements_##SUFFIX, RopeParameters, ROPE_THREADS, 4) {            \
    rope_kv_write<T, CACHE, 1, 8, 1>(params);                                           \
  }

#ifdef E4M3_CACHE
ROPE_KERNELS(f32_e4m3, float, e4m3)
ROPE_KERNELS(f16_e4m3, f16, e4m3)
ROPE_KERNELS(bf16_e4m3, bf16, e4m3)
#else
ROPE_KERNELS(f32, float, float)
ROPE_KERNELS(f16, f16, f16)
ROPE_KERNELS(bf16, bf16, bf16)
ROPE_KERNELS(f32_i8, float, i8)
ROPE_KERNELS(f16_i8, f16, i8)
ROPE_KERNELS(bf16_i8, bf16, i8)
#endif
