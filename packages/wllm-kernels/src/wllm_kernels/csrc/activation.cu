// Gated activations: act(first half of a row) * second half. A thread takes one run of a row.
// Grid: blocks_per_row blocks for each row, one row after the other.
// Methods: sigmoid linear unit and Gaussian error linear unit with its tanh form (Dan Hendrycks, Kevin Gimpel, 2016);
// gated units (Noam Shazeer, GLU Variants Improve Transformer, 2020).
struct ActParameters {
  const void* x;       // [rows, 2 * inter]
  void* out;           // [rows, inter], contiguous
  i64 x_stride;        // elements between rows of x
  int inter;
  int blocks_per_row;
  int kind;            // SILU, GELU or GELU_TANH
  int vectorised;      // runs are 16 bytes; else one element
};

constexpr int ACT_THREADS = 128;
#if __CUDA_ARCH__ >= 800
constexpr int ACT_BLOCKS = 12;  // 1,536 threads: a full multiprocessor of most cards
#else
constexpr int ACT_BLOCKS = 8;
#endif
enum Kind { SILU, GELU, GELU_TANH };

// x * sigmoid(y): two instructions of the special function unit, exact to 1e-6 relative to x.
DEVICE float times_sigmoid(float x, float y) {
  return __fdividef(x, 1.f + __expf(-y));
}

template <int KIND>
DEVICE float activate(float x) {
  if constexpr (KIND == SILU) {
    return times_sigmoid(x, x);
  } else if constexpr (KIND == GELU) {
    return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
  } else {
    // (1 + tanh(y)) / 2 is the sigmoid of 2 * y; here 2 * sqrt(2 / pi) * (x + 0.044715 * x^3).
    return times_sigmoid(x, 1.5957691216057308f * x * (1.f + 0.044715f * x * x));
  }
}

template <class T, int KIND, int RUN>
DEVICE void act_mul_runs(const ActParameters& p) {
  const int row = blockIdx.x / p.blocks_per_row, part = blockIdx.x % p.blocks_per_row;
  const T* gates = (const T*)p.x + row * p.x_stride;
  const T* ups = gates + p.inter;
  T* out = (T*)p.out + (i64)row * p.inter;
  const int column = (part * ACT_THREADS + threadIdx.x) * RUN;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (column >= p.inter) return;
  const Run<T, RUN> gates_read = load_run<T, RUN>(gates + column), ups_read = load_run<T, RUN>(ups + column);
  float gate[RUN], up[RUN];
  unpack(gate, gates_read);
  unpack(up, ups_read);
  UNROLL
  for (int i = 0; i < RUN; i++) gate[i] = activate<KIND>(gate[i]);
  round_all<T>(gate);
  UNROLL
  for (int i = 0; i < RUN; i++) gate[i] *= up[i];
  store_run(out + column, pack<T>(gate));
}

template <class T, int KIND>
DEVICE void act_mul_kind(const ActParameters& p) {
  if (p.vectorised) {
    act_mul_runs<T, KIND, PIECE<T>>(p);
  } else {
    act_mul_runs<T, KIND, 1>(p);
  }
}

template <class T>
DEVICE void act_mul(const ActParameters& p) {
  if (p.kind == SILU) {
    act_mul_kind<T, SILU>(p);
  } else if (p.kind == GELU) {
    act_mul_kind<T, GELU>(p);
  } else {
    act_mul_kind<T, GELU_TANH>(p);
  }
}

KERNEL(act_mul_f32, ActParameters, ACT_THREADS, ACT_BLOCKS) {
  act_mul<float>(params);
}
KERNEL(act_mul_f16, ActParameters, ACT_THREADS, ACT_BLOCKS) {
  act_mul<f16>(params);
}
KERNEL(act_mul_bf16, ActParameters, ACT_THREADS, ACT_BLOCKS) {
  act_mul<bf16>(params);
}
