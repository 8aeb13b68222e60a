// RMS norm of rows, alone or after the residual add: one pass over memory. A row belongs to a warp if it is short, else
// to a block, and stays in registers between the sum of its squares and the result.
// Grid: enough blocks for `rows` rows at `row_threads` threads each.
// Method: root mean square layer normalisation (Biao Zhang, Rico Sennrich, 2019).
struct NormParameters {
  const void* x;        // [rows, size]
  const void* weight;   // [size]
  void* residual;       // [rows, size] or null; becomes residual + x
  void* out;            // [rows, size], contiguous
  i64 x_stride;         // elements between rows of x
  i64 residual_stride;
  int rows;
  int size;
  int pieces;           // 16-byte pieces of a row; 0 if a row is not made of aligned pieces, or of too many
  int row_threads;      // WARP or the block
  float eps;
  float weight_offset;
};

constexpr int NORM_MAX_THREADS = 1024;
// Pieces of a row that one thread keeps.
constexpr int NORM_PIECES = 4;

// The threads that share a row.
struct RowTeam {
  int row, rank, size;
};

DEVICE float team_sum(const RowTeam& team, float value, float* scratch) {
  return team.size == WARP ? warp_sum(value) : block_sum(value, scratch);
}

DEVICE float inverse_root_mean_square(const NormParameters& p, float sum_of_squares) {
  return 1.f / sqrtf(sum_of_squares / p.size + p.eps);
}

// The norm without an offset is rounded before it is multiplied by the weight; families that store weight - 1 multiply
// first.
template <class T, int N>
DEVICE void apply_weight(const NormParameters& p, float (&normed)[N], const float (&weight)[N]) {
  if (p.weight_offset == 0.f) round_all<T>(normed);
  UNROLL
  for (int i = 0; i < N; i++) normed[i] *= weight[i] + p.weight_offset;
}

template <class T>
DEVICE void norm_pieces(const NormParameters& p, const RowTeam& team, float* scratch) {
  const T* x = (const T*)p.x + team.row * p.x_stride;
  T* residual = p.residual ? (T*)p.residual + team.row * p.residual_stride : nullptr;
  T* out = (T*)p.out + (i64)team.row * p.size;
  // All loads are on their way before the first value is needed, those of the weight before the team waits for its sum:
  // sooner, they would spill registers.
  constexpr int N = PIECE<T>;
  Run<T, N> row[NORM_PIECES], old[NORM_PIECES], weights[NORM_PIECES];
  UNROLL
  for (int k = 0; k < NORM_PIECES; k++) {
    const int piece = team.rank + k * team.size;
    if (piece >= p.pieces) break;
    row[k] = load_run<T, N>(x + piece * N);
    if (residual) old[k] = load_run<T, N>(residual + piece * N);
  }
  float squares = 0.f;
  UNROLL
  for (int k = 0; k < NORM_PIECES; k++) {
    const int piece = team.rank + k * team.size;
    if (piece >= p.pieces) break;
    float values[N];
    unpack(values, row[k]);
    if (residual) {
      float added[N];
      unpack(added, old[k]);
      UNROLL
      for (int i = 0; i < N; i++) values[i] += added[i];
      row[k] = pack<T>(values);
      store_run(residual + piece * N, row[k]);
      unpack(values, row[k]);
    }
    UNROLL
    for (int i = 0; i < N; i++) squares += values[i] * values[i];
    weights[k] = load_run<T, N>((const T*)p.weight + piece * N);
  }
  const float scale = inverse_root_mean_square(p, team_sum(team, squares, scratch));
  UNROLL
  for (int k = 0; k < NORM_PIECES; k++) {
    const int piece = team.rank + k * team.size;
    if (piece >= p.pieces) break;
    float values[N], weight[N];
    unpack(values, row[k]);
    unpack(weight, weights[k]);
    UNROLL
    for (int i = 0; i < N; i++) values[i] *= scale;
    apply_weight<T>(p, values, weight);
    store_run(out + piece * N, pack<T>(values));
  }
}

// Rows of any size and alignment; the second pass reads what the caches still hold.
template <class T>
DEVICE void norm_elements(const NormParameters& p, const RowTeam& team, float* scratch) {
  const T* x = (const T*)p.x + team.row * p.x_stride;
  T* residual = p.residual ? (T*)p.residual + team.row * p.residual_stride : nullptr;
  const T* weight = (const T*)p.weight;
  T* out = (T*)p.out + (i64)team.row * p.size;
  float squares = 0.f;
  for (int i = team.rank; i < p.size; i += team.size) {
    float value = to_float(x[i]);
    if (residual) {
      residual[i] = from_float<T>(value + to_float(residual[i]));
      value = to_float(residual[i]);
    }
    squares += value * value;
  }
  const float scale = inverse_root_mean_square(p, team_sum(team, squares, scratch));
  const T* source = residual ? residual : x;
  for (int i = team.rank; i < p.size; i += team.size) {
    float normed[1] = {to_float(source[i]) * scale};
    apply_weight<T>(p, normed, {to_float(weight[i])});
    out[i] = from_float<T>(normed[0]);
  }
}

template <class T>
DEVICE void rms_norm(const NormParameters& p) {
  SHARED_MEMORY(shared);
  RowTeam team = {(int)blockIdx.x, (int)threadIdx.x, p.row_threads};
  if (p.row_threads == WARP) {
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    team.row = blockIdx.x * warps + warp;
    team.rank = threadIdx.x % WARP;
    let_next_kernel_start();
    wait_for_previous_kernel();
    // A whole warp leaves; with a warp to a row, no barrier follows.
    if (team.row >= p.rows) return;
  } else {
    // Not once behind both branches: the compiler would spill registers.
    let_next_kernel_start();
    wait_for_previous_kernel();
  }
  if (p.pieces > 0) {
    norm_pieces<T>(p, team, (float*)shared);
  } else {
    norm_elements<T>(p, team, (float*)shared);
  }
}

KERNEL(rms_norm_f32, NormParameters, NORM_MAX_THREADS, 1) {
  rms_norm<float>(params);
}
KERNEL(rms_norm_f16, NormParameters, NORM_MAX_THREADS, 1) {
  rms_norm<f16>(params);
}
KERNEL(rms_norm_bf16, NormParameters, NORM_MAX_THREADS, 1) {
  rms_norm<bf16>(params);
}
