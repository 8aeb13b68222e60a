// The RMS norm in front of a layer, with the residual add: every block computes it for itself into shared memory. For a
// token or a few that takes less time than a kernel's start and end; each block writes a part of the new residual.
// Rounds where the norm kernel rounds.
constexpr int NORM_TOKENS = 8;  // at most

// Elements from a token to the next: the two that a matrix fragment reads together lie in different banks.
DEVICE int normed_stride(int inputs) {
  return inputs + 32;
}

// `scratch`: NORM_TOKENS floats for each warp. Both may be used for other things behind this, each thread's own first.
template <class T>
DEVICE void add_and_normalise(const LinearParameters& p, T* normed, float* scratch) {
  constexpr int N = PIECE<T>;
  const int pieces = p.inputs / N, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  float squares[NORM_TOKENS] = {};
  UNROLL
  for (int token = 0; token < NORM_TOKENS; token++) {
    if (token >= p.tokens) break;
    for (int piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
      const i64 place = (i64)token * p.inputs + piece * N;
      Run<T, N> run = load_run<T, N>((const T*)p.residual + place);
      float values[N];
      unpack(values, run);
      if (p.x) {
        float added[N];
        unpack(added, load_run<T, N>((const T*)p.x + token * p.x_stride + piece * N));
        UNROLL
        for (int i = 0; i < N; i++) values[i] += added[i];
        run = pack<T>(values);
        unpack(values, run);
        if (piece % gridDim.x == blockIdx.x) store_run((T*)p.new_residual + place, run);
      }
      store_run(normed + token * normed_stride(p.inputs) + piece * N, run);
      UNROLL
      for (int i = 0; i < N; i++) squares[token] += values[i] * values[i];
    }
  }
  UNROLL
  for (int token = 0; token < NORM_TOKENS; token++) {
    const float sum = warp_sum(squares[token]);
    if (threadIdx.x % WARP == 0) scratch[warp * NORM_TOKENS + token] = sum;
  }
  __syncthreads();
  for (int token = 0; token < p.tokens; token++) {
    float sum = 0.f;
    for (int i = 0; i < warps; i++) sum += scratch[i * NORM_TOKENS + token];
    const float scale = 1.f / sqrtf(sum / p.inputs + p.eps);
    for (int piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
      T* const place = normed + token * normed_stride(p.inputs) + piece * N;
      float values[N], weight[N];
      unpack(values, load_run<T, N>(place));
      unpack(weight, load_run<T, N>((const T*)p.norm + piece * N));
      UNROLL
      for (int i = 0; i < N; i++) values[i] *= scale;
      round_all<T>(values);
      UNROLL
      for (int i = 0; i < N; i++) values[i] *= weight[i];
      store_run(place, pack<T>(values));
    }
  }
  __syncthreads();
}
