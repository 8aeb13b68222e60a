// The arguments of decode attention, and how the parts of a segment become one result.
struct DecodeParameters {
  const void* q;           // [tokens, num_heads, head_dim]
  const void* kv;          // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const f16* kv_scale;     // [num_blocks, 2, num_kv_heads, block_size], of an int8 cache only
  const int* block_table;  // [rows, max_blocks]
  const int* seq_lens;     // [rows]
  const int* cu_q;         // [rows + 1]
  int* plan;
  float* partials;                                       // [2 * blocks, TILE_LINES, head_dim + STATISTICS]
  void* out;                                             // [tokens, num_heads, head_dim]
  i64 q_token, q_head, out_token, out_head, table_row;   // strides in elements
  i64 block_bytes, plane_bytes, head_bytes, cell_bytes;  // of kv; its planes are keys and values
  int rows, tokens, num_kv_heads, group, max_blocks, block_size, causal, window;
  int num_blocks;        // of kv
  u32 block_reciprocal;  // of block_size, times 2^32, rounded up
  float score_scale;  // from a score (capped, if there is a cap) to an exponent of 2
  float cap_scale;    // from a score to the exponent of 2 in its tanh; 0: no cap
};

// A part of a segment: the units that one block attends without a break.
struct Part {
  int row_index;
  Row row;
  Segment segment;
  int first_unit, end_unit;
};

// Four dimensions of a line, relative to its maximum.
struct Merged {
  float values[4];
  float maximum;
  float sum;
};

// Of each result four values and (maximum, sum). No step waits for the one before, as it would result by result.
template <int COUNT>
DEVICE void add_results(Merged& merged, const float4 (&values)[COUNT], const float2 (&statistics)[COUNT]) {
  float common = merged.maximum;
  UNROLL
  for (int i = 0; i < COUNT; i++) common = fmaxf(common, statistics[i].x);
  const float old_share = exp2_fast(merged.maximum - common);
  UNROLL
  for (int j = 0; j < 4; j++) merged.values[j] *= old_share;
  merged.sum *= old_share;
  merged.maximum = common;
  UNROLL
  for (int i = 0; i < COUNT; i++) {
    const float share = exp2_fast(statistics[i].x - common);
    merged.values[0] += values[i].x * share;
    merged.values[1] += values[i].y * share;
    merged.values[2] += values[i].z * share;
    merged.values[3] += values[i].w * share;
    merged.sum += statistics[i].y * share;
  }
}

template <class Shape>
DEVICE void store_partial(float* line, int dimension, int level, const Merged& merged) {
  *(float4*)(line + dimension) = make_float4(merged.values[0], merged.values[1], merged.values[2], merged.values[3]);
  if (dimension == 0) {
    line[Shape::D + 2 * level] = merged.maximum;
    line[Shape::D + 2 * level + 1] = merged.sum;
  }
}

template <class Shape>
DEVICE void store_output(const DecodeParameters& p, const Part& part, int line, int dimension, const Merged& merged) {
  using T = typename Shape::T;
  const int line_of_row = part.segment.tile * TILE_LINES + line;
  const int query = query_of_line(part.row, line_of_row, p.group), token = part.row.first_token + query;
  const int head = part.segment.kv_head * p.group + line_of_row - query * p.group;
  const float scale = merged.sum > 0.f ? 1.f / merged.sum : 0.f;  // a line that sees nothing gives zeros
  T* const target = (T*)p.out + token * p.out_token + head * p.out_head + dimension;
  *(uint2*)target = make_uint2(pack2<T>(merged.values[0] * scale, merged.values[1] * scale),
                               pack2<T>(merged.values[2] * scale, merged.values[3] * scale));
}

// Merges `count` results of a level, of which `at(i)` is the i-th, into `partial` as one of level `target_level`; if
// that is null, into the output. `partial` may be one of the results: a thread writes the dimensions that it has read,
// and statistics that no other thread reads. AT_ONCE results are on their way together.
template <class Shape, int AT_ONCE, class At>
DEVICE void merge(const DecodeParameters& p, const Part& part, int count, At at, int level, float* partial,
                  int target_level) {
  constexpr int QUARTERS = Shape::D / 4;
  const int num_lines = smaller(TILE_LINES, part.row.queries * p.group - part.segment.tile * TILE_LINES);
  for (int i = threadIdx.x; i < num_lines * QUARTERS; i += Shape::THREADS) {
    const int line = i / QUARTERS, dimension = i % QUARTERS * 4, offset = line * Shape::PARTIAL_STRIDE;
    Merged merged = {{0.f, 0.f, 0.f, 0.f}, LOWEST, 0.f};
    for (int first = 0; first < count; first += AT_ONCE) {
      float4 values[AT_ONCE];
      float2 statistics[AT_ONCE];
      UNROLL
      for (int j = 0; j < AT_ONCE; j++) {
        values[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        statistics[j] = make_float2(LOWEST, 0.f);
        if (first + j < count) {
          const float* const source = at(first + j) + offset;
          values[j] = *(const float4*)(source + dimension);
          statistics[j] = *(const float2*)(source + Shape::D + 2 * level);
        }
      }
      add_results(merged, values, statistics);
    }
    if (partial) {
      store_partial<Shape>(partial + offset, dimension, target_level, merged);
    } else {
      store_output<Shape>(p, part, line, dimension, merged);
    }
  }
}

// Whether this block is the last of `expected` to come here; then it sees what the others wrote before they came.
DEVICE bool arrives_last(int* counter, int expected) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    last = add_in_order(counter, 1) == expected - 1;
    if (last) *counter = 0;  // for the next launch
  }
  return __syncthreads_or(last);
}

// Writes the result of a part, out of the shared memory of the warps: to `out` if it is the whole segment, else into
// the tree of partial results, as far as this block is the last to arrive at a node.
template <class Shape>
DEVICE void finish_part(const DecodeParameters& p, const Part& part, const u8* shared) {
  const int first_block = part.segment.first_block, count = part.segment.parts;
  int index = blockIdx.x - first_block;
  // A block has places for two parts that are not all of their segment: one that began earlier, and its last.
  const auto place = [&](int i) { return 2 * (first_block + i) + (i == 0 ? 1 : 0); };
  const auto partial = [&](int i) { return p.partials + (i64)place(i) * Shape::PARTIAL_FLOATS; };
  const auto result_of_warp = [&](int warp) { return (const float*)shared + warp * Shape::PARTIAL_FLOATS; };
  merge<Shape, Shape::WARPS>(p, part, Shape::WARPS, result_of_warp, 0, count > 1 ? partial(index) : nullptr, 0);
  if (count == 1) return;

  int* arrivals = plan_at(p.plan, gridDim.x, p.rows).arrivals;
  for (int level = 0, distance = 1;; level++, arrivals += 2 * gridDim.x) {
    const int width = distance * MERGE_FAN;
    const bool root = count <= width;
    const int leader = root ? 0 : index / width * width;
    const int members = level == 0 && root ? count : smaller(divide_up(count - leader, distance), MERGE_FAN);
    if (!arrives_last(arrivals + place(leader), members)) return;
    const auto member = [&](int i) { return (const float*)partial(leader + i * distance); };
    merge<Shape, MERGE_AT_ONCE>(p, part, members, member, level, root ? nullptr : partial(leader), level + 1);
    if (root) return;
    index = leader;
    distance = width;
  }
}
