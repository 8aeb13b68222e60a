// The tiles of prefill attention, made once a step from lengths in device memory: how many tiles of queries the long
// rows of the batch have, added up row by row. Block b does so for tiles of 64 << b lines; the launch takes one of the
// two.
struct PrefillPlanParameters {
  const int* seq_lens;  // [rows]
  const int* cu_q;      // [rows + 1]
  int* tile_ends;       // [2, rows]: tiles of the rows up to this one
  int rows, group;
};

constexpr int PREFILL_PLAN_THREADS = 256;

DEVICE int tiles_of_row(const PrefillPlanParameters& p, int row, int tile_lines) {
  if (row >= p.rows) return 0;
  const int queries = p.cu_q[row + 1] - p.cu_q[row];
  const bool is_long = queries > 0 && !is_short_row(queries, p.group, p.seq_lens[row]);
  return is_long ? divide_up(queries * p.group, tile_lines) : 0;
}

// The sum of `value` over the lanes up to this one.
DEVICE int warp_prefix_sum(int value) {
  const int lane = threadIdx.x % WARP;
  UNROLL
  for (int distance = 1; distance < WARP; distance *= 2) {
    const int other = __shfl_up_sync(WHOLE_WARP, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// The sum of `value` over the threads up to this one, and over all of them.
DEVICE int block_prefix_sum(int value, int* warp_sums, int& total) {
  constexpr int WARPS = PREFILL_PLAN_THREADS / WARP;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int sum = warp_prefix_sum(value);
  if (lane == WARP - 1) warp_sums[warp] = sum;
  __syncthreads();
  total = 0;
  UNROLL
  for (int i = 0; i < WARPS; i++) {
    if (i < warp) sum += warp_sums[i];
    total += warp_sums[i];
  }
  __syncthreads();
  return sum;
}

KERNEL(attention_prefill_plan, PrefillPlanParameters, PREFILL_PLAN_THREADS, 1) {
  SHARED_MEMORY(shared);
  const int tile_lines = 64 << blockIdx.x;
  int before = 0;
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int first = 0; first < params.rows; first += PREFILL_PLAN_THREADS) {
    const int row = first + threadIdx.x;
    int total;
    const int tiles = block_prefix_sum(tiles_of_row(params, row, tile_lines), (int*)shared, total);
    if (row < params.rows) params.tile_ends[blockIdx.x * params.rows + row] = before + tiles;
    before += total;
  }
}
