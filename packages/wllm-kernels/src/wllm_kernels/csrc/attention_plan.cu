// The plan of decode attention: cuts the work of a step, whose lengths only the device knows. One block, once a step.
struct PlanParameters {
  const int* seq_lens;  // [rows]
  const int* cu_q;      // [rows + 1]
  int* plan;
  int rows, num_kv_heads, group, max_blocks, block_size, causal, window;
  int blocks;  // of the decode grid
  int multiprocessors;
  int warps;  // of a block, each with a slice of a unit
};

constexpr int PLAN_WARPS = 32, PLAN_THREADS = PLAN_WARPS * WARP;

DEVICE int sum_of_warp(int value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  return value;
}

DEVICE int largest_of_warp(int value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value = larger(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
  }
  return value;
}

// ---- the work of the step -------------------------------------------------------------------------------------------

DEVICE Row read_row(const PlanParameters& p, int index) {
  return read_row(p.seq_lens, p.cu_q, index, p.max_blocks * p.block_size);
}

DEVICE RowWork work_of_row(const PlanParameters& p, int index) {
  const Row row = read_row(p, index);
  if (!is_short_row(row.queries, p.group, row.length)) return {0, 0};
  const int units = units_of_segments(row, p.group, p.causal, p.window, p.warps * SLICE_CELLS);
  return {p.num_kv_heads * count_tiles(row, p.group), units};
}

struct StepWork {
  int segments;
  int units;
  int longest;  // segment
};

// Fills `work` and adds it up. `scratch` has three ints for each warp.
DEVICE StepWork add_up_rows(const PlanParameters& p, RowWork* work, int* scratch) {
  StepWork step = {0, 0, 0};
  for (int index = threadIdx.x; index < p.rows; index += PLAN_THREADS) {
    const RowWork row = work[index] = work_of_row(p, index);
    step.segments += row.segments;
    step.units += row.segments * row.units;
    step.longest = larger(step.longest, row.units);
  }
  const int lane = threadIdx.x % WARP;
  int* const of_warp = scratch + threadIdx.x / WARP;
  const int segments = sum_of_warp(step.segments), units = sum_of_warp(step.units);
  const int longest = largest_of_warp(step.longest);
  if (lane == 0) {
    of_warp[0] = segments;
    of_warp[PLAN_WARPS] = units;
    of_warp[2 * PLAN_WARPS] = longest;
  }
  __syncthreads();
  const int* const of_lane = scratch + lane;
  step = {sum_of_warp(of_lane[0]), sum_of_warp(of_lane[PLAN_WARPS]), largest_of_warp(of_lane[2 * PLAN_WARPS])};
  return step;
}

// ---- the cut --------------------------------------------------------------------------------------------------------

// Costs are counted in the time that a multiprocessor takes for a unit.
struct Cut {
  int cost;
  int chunk;
  bool aligned;
};

constexpr int IMPOSSIBLE = 0x7fffffff;

// Of the multiprocessor with most chunks. Blocks are dealt to multiprocessors in turn. One alone waits for its copies:
// two take hardly longer.
DEVICE int cost_of_load(const PlanParameters& p, int chunks, int chunk) {
  return larger(divide_up(chunks, p.multiprocessors), 2) * chunk;
}

// Of the merges at the end of a launch, when nothing else is left to do.
DEVICE int cost_of_merge(int parts) {
  if (parts == 1) return 0;
  int cost = 0;
  for (; parts > 1; parts = divide_up(parts, MERGE_FAN)) {
    cost += 2 + divide_up(smaller(parts, MERGE_FAN), MERGE_AT_ONCE);
  }
  return cost;
}

// In all lanes of a warp.
DEVICE int cost_of_aligned(const PlanParameters& p, const RowWork* work, const StepWork& step, int chunk) {
  int chunks = 0;
  for (int index = threadIdx.x % WARP; index < p.rows; index += WARP) {
    chunks += work[index].segments * divide_up(work[index].units, chunk);
  }
  chunks = sum_of_warp(chunks);
  if (chunks > p.blocks) return IMPOSSIBLE;
  return cost_of_load(p, chunks, chunk) + cost_of_merge(divide_up(step.longest, chunk));
}

// The best of a cut that chains segments and of one for each warp that aligns them. These have chunks just long enough
// for the grid, or cut the longest segment into a few equal parts. `scratch` has two ints for each warp.
DEVICE Cut choose_cut(const PlanParameters& p, const RowWork* work, const StepWork& step, int* scratch) {
  constexpr int EQUAL_PARTS = PLAN_WARPS / 2;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int least = larger(divide_up(step.units, p.blocks), 1);
  const int tried = warp < EQUAL_PARTS ? larger(divide_up(step.longest, warp + 1), 1) : least + warp - EQUAL_PARTS;
  const int cost = cost_of_aligned(p, work, step, tried);
  if (lane == 0) {
    scratch[warp] = cost;
    scratch[PLAN_WARPS + warp] = tried;
  }
  __syncthreads();
  const int lowest = -largest_of_warp(-scratch[lane]);
  // Of equal costs, that of the longest chunk has fewest parts.
  const int chunk = largest_of_warp(scratch[lane] == lowest ? scratch[PLAN_WARPS + lane] : 0);

  const int chained_units = step.units + CHAIN_GAP * step.segments;
  Cut chained = {0, larger(divide_up(chained_units, p.blocks), 1), false};
  chained.cost = cost_of_load(p, divide_up(chained_units, chained.chunk), chained.chunk) + cost_of_merge(2);
  // A chained cut must be better by an eighth: where memory is the limit, multiprocessors need not be loaded evenly.
  return lowest != IMPOSSIBLE && lowest - lowest / 8 <= chained.cost ? Cut{lowest, chunk, true} : chained;
}

DEVICE int distance_of_segments(const Cut& cut, int units) {
  return cut.aligned ? divide_up(units, cut.chunk) * cut.chunk : units + CHAIN_GAP;
}

// ---- where blocks begin ---------------------------------------------------------------------------------------------

// units_before of every so many rows is in shared memory too, so that a row is found quickly.
constexpr int MAX_SAMPLES = 1024;

DEVICE int rows_of_sample(const PlanParameters& p) {
  return divide_up(p.rows, MAX_SAMPLES);
}

// Fills units_before and returns the length of the line. `scratch` has an int for each warp.
DEVICE int lay_rows(const PlanParameters& p, const Plan& plan, const Cut& cut, int* samples, int* scratch) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, sample = rows_of_sample(p);
  int total = 0;
  for (int first = 0; first < p.rows; first += PLAN_THREADS) {
    const int index = first + threadIdx.x;
    const RowWork row = index < p.rows ? plan.work[index] : RowWork{0, 0};
    const int units = row.segments * distance_of_segments(cut, row.units);
    int up_to_here = units;
    UNROLL
    for (int distance = 1; distance < WARP; distance *= 2) {
      const int other = __shfl_up_sync(WHOLE_WARP, up_to_here, distance);
      if (lane >= distance) up_to_here += other;
    }
    if (lane == WARP - 1) scratch[warp] = up_to_here;
    __syncthreads();
    const int sum = scratch[lane];
    const int before = total + sum_of_warp(lane < warp ? sum : 0) + up_to_here - units;
    if (index < p.rows) {
      plan.units_before[index] = before;
      if (index % sample == 0) samples[index / sample] = before;
    }
    total += sum_of_warp(sum);
    __syncthreads();
  }
  return total;
}

// The last of the ascending values that is not greater than `value`, as the first is not.
DEVICE int find_last(const int* values, int count, int value) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (values[middle] <= value ? low : high) = middle;
  }
  return low;
}

DEVICE WorkStart find_start(const PlanParameters& p, const Plan& plan, const Cut& cut, const int* samples, int unit,
                            int total) {
  const int sample = rows_of_sample(p);
  // The last row that begins at or before `unit`: being followed by one that begins later, it has units.
  int index = find_last(samples, divide_up(p.rows, sample), unit) * sample;
  index += find_last(plan.units_before + index, smaller(sample, p.rows - index), unit);
  const Row row = read_row(p, index);
  const int before = plan.units_before[index], units = plan.work[index].units;
  const int distance = distance_of_segments(cut, units), member = (unit - before) / distance;
  const int segment_start = before + member * distance;
  const int end = smaller(unit + cut.chunk, cut.aligned ? segment_start + units : total);
  return {index, member, segment_start, row, cut.chunk, end,
          find_segment(row, member, segment_start, cut.chunk, p.group, p.causal, p.window, p.warps * SLICE_CELLS)};
}

KERNEL(attention_plan, PlanParameters, PLAN_THREADS, 1) {
  SHARED_MEMORY(shared);
  RowWork* const work = (RowWork*)shared;
  int *const samples = (int*)(work + MAX_SAMPLES), *const scratch = samples + MAX_SAMPLES;
  Plan plan = plan_at(params.plan, params.blocks, params.rows);
  if (params.rows <= MAX_SAMPLES) {  // what only this block reads has room in shared memory, and each row is a sample
    plan.work = work;
    plan.units_before = samples;
  }
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int i = threadIdx.x; i < MERGE_LEVELS * 2 * params.blocks; i += PLAN_THREADS) plan.arrivals[i] = 0;
  const StepWork step = add_up_rows(params, plan.work, scratch);
  const Cut cut = choose_cut(params, plan.work, step, scratch + 3 * PLAN_WARPS);
  const int total = lay_rows(params, plan, cut, samples, scratch + 5 * PLAN_WARPS);
  for (int block = threadIdx.x; block < params.blocks; block += PLAN_THREADS) {
    const int unit = block * cut.chunk;
    plan.starts[block] = unit < total ? find_start(params, plan, cut, samples, unit, total)
                                      : WorkStart{0, 0, 0, {0, 0, 0}, cut.chunk, 0, {0, 0, {0, 0}, 0, 0}};
  }
}
