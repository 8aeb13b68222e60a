// The arguments of decode attention, and how the parts of a segment become one result.
struct DecodeParameters {
  const void* q;           // [tokens, num_heads, head_dim]
  const void* kv;          // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const f16* kv_scale;     // [num_blocks, 2, num_kv_heads, block_size], of an int8 cache only
  const int* block_table;  // [rows, max_blocks]
  const int* seq_lens;     // [rows]
  const int* cu_q;         // [rows + 1]
  int* plan;
  float* partials;         // [2 * blocks, 16, head_dim + 8]
  void* out;               // [tokens, num_heads, head_dim]
  i64 q_token, q_head, out_token, out_head, table_row;   // strides in elements
  i64 block_bytes, plane_bytes, head_bytes, cell_bytes;  // of kv; its planes are keys and values
  int rows, tokens, num_kv_heads, group, max_blocks, block_size, causal, window;
  float score_scale;  // from a score (capped, if there is a cap) to an exponent of 2
  float cap_scale;    // from a score to the exponent of 2 in its tanh; 0: no cap
};

// A part of a segment: the units that one block attends without a break.
struct Part {
  int row_index;
  Row row;
  int kv_head;
  int tile;
  Cells cells;  // of the segment
  int segment_units;
  int first_unit, end_unit;
};

// ---- results --------------------------------------------------------------------------------------------------------

// Four dimensions of a line, relative to its maximum.
struct Merged {
  float values[4];
  float maximum;
  float sum;
};

// Merges `count` results, of which `at(i)` is the i-th, and hands each line's dimensions to `take`, four at a time.
template <class Shape, class At, class Take>
DEVICE void merge(int count, int num_lines, At at, Take take) {
  constexpr int QUARTERS = Shape::D / 4;
  for (int i = threadIdx.x; i < num_lines * QUARTERS; i += Shape::THREADS) {
    const int line = i / QUARTERS, dimension = i % QUARTERS * 4;
    Merged merged = {{0.f, 0.f, 0.f, 0.f}, LOWEST, 0.f};
#pragma unroll 4
    for (int member = 0; member < count; member++) {
      merged.maximum = fmaxf(merged.maximum, at(member)[line * Shape::PARTIAL_STRIDE + Shape::D]);
    }
#pragma unroll 4
    for (int member = 0; member < count; member++) {
      const float* source = at(member) + line * Shape::PARTIAL_STRIDE;
      const float share = exp2_fast(source[Shape::D] - merged.maximum);
      const float4 values = *(const float4*)(source + dimension);
      merged.sum += share * source[Shape::D + 1];
      merged.values[0] += share * values.x;
      merged.values[1] += share * values.y;
      merged.values[2] += share * values.z;
      merged.values[3] += share * values.w;
    }
    take(line, dimension, merged);
  }
}

template <class Shape>
DEVICE void store_partial(float* partial, int line, int dimension, const Merged& merged) {
  float* const target = partial + line * Shape::PARTIAL_STRIDE;
  *(float4*)(target + dimension) = make_float4(merged.values[0], merged.values[1], merged.values[2], merged.values[3]);
  if (dimension == 0) {
    target[Shape::D] = merged.maximum;
    target[Shape::D + 1] = merged.sum;
  }
}

template <class Shape>
DEVICE void store_output(const DecodeParameters& p, const Part& part, int line, int dimension, const Merged& merged) {
  using T = typename Shape::T;
  const int line_of_row = part.tile * TILE_LINES + line;
  const int token = part.row.first_token + line_of_row / p.group;
  const int head = part.kv_head * p.group + line_of_row % p.group;
  const float scale = merged.sum > 0.f ? 1.f / merged.sum : 0.f;  // a line that sees nothing gives zeros
  T* const target = (T*)p.out + token * p.out_token + head * p.out_head + dimension;
  *(uint2*)target = make_uint2(pack2<T>(merged.values[0] * scale, merged.values[1] * scale),
                               pack2<T>(merged.values[2] * scale, merged.values[3] * scale));
}

// Whether this block is the last of `expected` to come here; then it sees what the others wrote before they came.
DEVICE bool arrives_last(int* counter, int expected) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;  // for the next launch
    __threadfence();
  }
  return __syncthreads_or(last);
}

// The block's place for a part: a segment that ends within its chunk or goes through it, or one that begins there.
DEVICE int partial_index(int first_block, int part) {
  return 2 * (first_block + part) + (part == 0 ? 1 : 0);
}

// Writes the result of a part, out of shared memory: to `out` if it is the whole segment, else to be merged.
template <class Shape>
DEVICE void finish_part(const DecodeParameters& p, const Part& part, const WorkStart& start, int segment_start,
                        const u8* shared) {
  const int num_lines = smaller(TILE_LINES, part.row.queries * p.group - part.tile * TILE_LINES);
  const auto result_of_warp = [&](int warp) { return (const float*)shared + warp * Shape::PARTIAL_FLOATS; };
  const auto output = [&](int line, int dimension, const Merged& merged) {
    store_output<Shape>(p, part, line, dimension, merged);
  };
  if (part.end_unit - part.first_unit == part.segment_units) {
    merge<Shape>(Shape::WARPS, num_lines, result_of_warp, output);
    return;
  }
  const int first_block = segment_start / start.chunk;
  const int last_block = (segment_start + part.segment_units - 1) / start.chunk;
  const auto partial = [&](int index) {
    return p.partials + (i64)partial_index(first_block, index) * Shape::PARTIAL_FLOATS;
  };
  int index = blockIdx.x - first_block, count = last_block - first_block + 1;
  merge<Shape>(Shape::WARPS, num_lines, result_of_warp, [&](int line, int dimension, const Merged& merged) {
    store_partial<Shape>(partial(index), line, dimension, merged);
  });
  int* arrivals = plan_at(p.plan, gridDim.x).arrivals;
  for (int distance = 1;; distance *= MERGE_FAN, arrivals += 2 * gridDim.x) {
    const int leader = index / (distance * MERGE_FAN) * (distance * MERGE_FAN);
    const int members = smaller(divide_up(count - leader, distance), MERGE_FAN);
    if (!arrives_last(arrivals + partial_index(first_block, leader), members)) return;
    const auto member = [&](int i) { return (const float*)partial(leader + i * distance); };
    if (count <= distance * MERGE_FAN) {
      merge<Shape>(members, num_lines, member, output);
      return;
    }
    merge<Shape>(members, num_lines, member, [&](int line, int dimension, const Merged& merged) {
      store_partial<Shape>(partial(leader), line, dimension, merged);
    });
    index = leader;
  }
}

