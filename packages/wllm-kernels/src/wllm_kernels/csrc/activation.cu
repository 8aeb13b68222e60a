// Gated activations: act(first half of a row) * second half. A thread takes one run of a row.
// Grid: blocks_per_row blocks for each row, one row after the other.
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
