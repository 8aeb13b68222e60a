// The RMS norm in front of a layer, with the residual add: every block computes it for itself into shared memory. For a
// token or a few that takes less time than a kernel's start and end; each block writes a part of the new residual.
// Rounds where the norm kernel rounds.
constexpr int NORM_TOKENS = 4;  // at most

// Elements from a token to the next: the two that a matrix fragment reads together lie in different banks.
DEVICE int normed_stride(int inputs) {
  return inputs + 32;
}

// Pieces of the norm's weight that each thread reads in front of the wait: they come from afar.
constexpr int NORM_PIECES_AHEAD = 2;
template <class T>
using NormAhead = Run<T, PIECE<T>>[NORM_PIECES_AHEAD];

template <class T>
DEVICE void read_norm(NormAhead<T>& ahead, const LinearParameters& p) {
  constexpr int N = PIECE<T>;
  UNROLL
  for (int k = 0; k < NORM_PIECES_AHEAD; k++) {
    const int piece = smaller((int)(threadIdx.x + k * blockDim.x), p.inputs / N - 1);
    ahead[k] = load_run<T, N>((const T*)p.norm + piece * N);
  }
}

// So many pieces of a thread are on their way at once.
constexpr int NORM_BATCH = 4;

// `scratch`: NORM_TOKENS floats for each warp. It may be used for other things behind this.
template <class T>
DEVICE void add_and_normalise(const LinearParameters& p, const NormAhead<T>& ahead, T* normed, float* scratch) {
  constexpr int N = PIECE<T>;
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, stride = normed_stride(p.inputs);
  // Of each token a thread has every blockDim.x-th piece: one token's after the other's.
  const int pieces = p.inputs / N, per_token = divide_up(pieces, blockDim.x), items = p.tokens * per_token;
  for (int first = 0; first < items; first += NORM_BATCH) {
    Run<T, N> totals[NORM_BATCH] = {}, added[NORM_BATCH] = {};
    UNROLL
    for (int i = 0; i < NORM_BATCH; i++) {
      const int token = (first + i) / per_token, piece = (first + i) % per_token * blockDim.x + threadIdx.x;
      if (token >= p.tokens || piece >= pieces) continue;
      totals[i] = load_run<T, N>((const T*)p.residual + (i64)token * p.inputs + piece * N);
      if (p.x) added[i] = load_run<T, N>((const T*)p.x + token * p.x_stride + piece * N);
    }
    UNROLL
    for (int i = 0; i < NORM_BATCH; i++) {
      const int token = (first + i) / per_token, piece = (first + i) % per_token * blockDim.x + threadIdx.x;
      if (token >= p.tokens) break;
      float values[N];
      unpack(values, totals[i]);
      if (p.x) {
        float more[N];
        unpack(more, added[i]);
        UNROLL
        for (int j = 0; j < N; j++) values[j] += more[j];
        totals[i] = pack<T>(values);
        unpack(values, totals[i]);
      }
      float squares = 0.f;
      UNROLL
      for (int j = 0; j < N; j++) squares += values[j] * values[j];
      squares = warp_sum(squares);
      float* const sum = scratch + warp * NORM_TOKENS + token;
      if (threadIdx.x % WARP == 0) *sum = (first + i) % per_token ? *sum + squares : squares;
      if (piece >= pieces) continue;
      store_run(normed + token * stride + piece * N, totals[i]);
      if (p.x && piece % gridDim.x == blockIdx.x) {
        store_run((T*)p.new_residual + (i64)token * p.inputs + piece * N, totals[i]);
      }
    }
  }
  __syncthreads();
  for (int token = 0; token < p.tokens; token++) {
    float sum = 0.f;
    for (int i = 0; i < warps; i++) sum += scratch[i * NORM_TOKENS + token];
    const float scale = 1.f / sqrtf(sum / p.inputs + p.eps);
    const auto normalise = [&](int piece, const Run<T, N>& run) {
      T* const place = normed + token * stride + piece * N;
      float values[N], weight[N];
      unpack(values, load_run<T, N>(place));
      unpack(weight, run);
      UNROLL
      for (int i = 0; i < N; i++) values[i] *= scale;
      round_all<T>(values);
      UNROLL
      for (int i = 0; i < N; i++) values[i] *= weight[i];
      store_run(place, pack<T>(values));
    };
    int piece = threadIdx.x;
    UNROLL
    for (int k = 0; k < NORM_PIECES_AHEAD; k++, piece += blockDim.x) {
      if (piece < pieces) normalise(piece, ahead[k]);
    }
    for (; piece < pieces; piece += blockDim.x) normalise(piece, load_run<T, N>((const T*)p.norm + piece * N));
  }
  __syncthreads();
}
