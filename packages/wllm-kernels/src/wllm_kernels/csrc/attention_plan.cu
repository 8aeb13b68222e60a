// The plan of decode attention: cuts the work of a step, whose lengths only the device knows. One block, once a step.
struct PlanParameters {
  const int* block_table;  // [rows, max_blocks]
  const int* seq_lens;     // [rows]
  const int* cu_q;         // [rows + 1]
  int* plan;
  i64 table_row;  // stride in elements
  int rows, num_kv_heads, group, max_blocks, block_size, causal, window;
  int blocks;  // of the decode grid
  int multiprocessors;
  int warps;  // of a block, each with a slice of a unit
};

constexpr int PLAN_THREADS = 1024;

DEVICE int sum_of_warp(int value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  return value;
}

DEVICE Row read_row(const PlanParameters& p, int index) {
  return read_row(p.seq_lens, p.cu_q, index, p.max_blocks * p.block_size);
}

DEVICE int units_of_tile(const PlanParameters& p, const Row& row, int tile) {
  return count_units(visible_cells(row, tile, p.group, p.causal, p.window), p.warps * SLICE_CELLS);
}

DEVICE int units_of_head(const PlanParameters& p, const Row& row) {
  const int tiles = count_tiles(row, p.group);
  if (row.length <= 0) return tiles;
  int units = 0;
  for (int tile = 0; tile < tiles; tile++) units += units_of_tile(p, row, tile);
  return units;
}

DEVICE int units_of_row(const PlanParameters& p, int index) {
  if (index >= p.rows) return 0;
  const Row row = read_row(p, index);
  return is_short_row(row.queries, p.group, row.length) ? p.num_kv_heads * units_of_head(p, row) : 0;
}

// Fills units_before and returns the total.
DEVICE int add_up_rows(const PlanParameters& p, int* units_before, int* sums) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int total = 0;
  for (int first = 0; first < p.rows; first += PLAN_THREADS) {
    const int index = first + threadIdx.x, units = units_of_row(p, index);
    int up_to_here = units;
    UNROLL
    for (int distance = 1; distance < WARP; distance *= 2) {
      const int other = __shfl_up_sync(WHOLE_WARP, up_to_here, distance);
      if (lane >= distance) up_to_here += other;
    }
    if (lane == WARP - 1) sums[warp] = up_to_here;
    __syncthreads();
    const int sum = sums[lane];
    const int before = total + sum_of_warp(lane < warp ? sum : 0) + up_to_here - units;
    if (index < p.rows) units_before[index] = before;
    total += sum_of_warp(sum);
    __syncthreads();
  }
  return total;
}

// The last row that begins at or before `unit`; being followed by one that begins later, it has units.
DEVICE int find_row(const int* units_before, int rows, int unit) {
  int low = 0, high = rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (units_before[middle] <= unit ? low : high) = middle;
  }
  return low;
}

DEVICE WorkStart find_start(const PlanParameters& p, const int* units_before, int unit, int chunk, int total) {
  const int index = find_row(units_before, p.rows, unit);
  const Row row = read_row(p, index);
  const int per_head = units_of_head(p, row), head = (unit - units_before[index]) / per_head;
  int tile = 0, start = units_before[index] + head * per_head;
  for (;; tile++) {
    const int units = units_of_tile(p, row, tile);
    if (unit < start + units) break;
    start += units;
  }
  return {index, head * count_tiles(row, p.group) + tile, start, row, chunk, total};
}

// Units of the multiprocessor with most of them. Blocks are dealt to multiprocessors in turn.
DEVICE int largest_load(const PlanParameters& p, int total, int chunk) {
  return divide_up(divide_up(total, chunk), p.multiprocessors) * chunk;
}

// Units of a block: so many that all blocks are at work, or a few more if that loads multiprocessors more evenly.
DEVICE int choose_chunk(const PlanParameters& p, int total) {
  const int least = larger(divide_up(total, p.blocks), 1);
  int best = least;
  for (int chunk = least + 1; chunk <= least + smaller(least / 2, 3); chunk++) {
    if (largest_load(p, total, chunk) < largest_load(p, total, best)) best = chunk;
  }
  return best;
}

DEVICE SlicePlace find_place(const PlanParameters& p, const WorkStart& start, int block, int warp, int number) {
  const int unit = block * start.chunk + number - start.segment_start;
  const int tile = start.member % count_tiles(start.row, p.group);
  const Cells cells = visible_cells(start.row, tile, p.group, p.causal, p.window);
  const int cell = cells.first + (unit * p.warps + warp) * SLICE_CELLS;
  if (number >= start.chunk || cell >= cells.end) return {0, 0};
  return {p.block_table[start.row_index * p.table_row + cell / p.block_size], cell % p.block_size};
}

KERNEL(attention_plan, PlanParameters, PLAN_THREADS, 1) {
  SHARED_MEMORY(shared);
  const Plan plan = plan_at(params.plan, params.blocks, params.warps);
  for (int i = threadIdx.x; i < MERGE_LEVELS * 2 * params.blocks; i += PLAN_THREADS) plan.arrivals[i] = 0;
  const int total = add_up_rows(params, plan.units_before, (int*)shared);
  const int chunk = choose_chunk(params, total);
  const int busy_blocks = divide_up(total, chunk);
  for (int block = threadIdx.x; block < params.blocks; block += PLAN_THREADS) {
    plan.starts[block] = block < busy_blocks ? find_start(params, plan.units_before, block * chunk, chunk, total)
                                             : WorkStart{0, 0, 0, {0, 0, 0}, chunk, 0};
  }
  __syncthreads();
  const int places = params.warps * PLANNED_UNITS;
  for (int i = threadIdx.x; i < busy_blocks * places; i += PLAN_THREADS) {
    const int block = i / places, warp = i / PLANNED_UNITS % params.warps;
    plan.places[i] = find_place(params, plan.starts[block], block, warp, i % PLANNED_UNITS);
  }
}
