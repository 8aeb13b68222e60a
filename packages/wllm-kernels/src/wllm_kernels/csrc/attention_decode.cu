// Attention of short rows (decode, speculative and last chunks) over a paged KV cache.
//
// A tile of 16 lines, the heads of a group for one or more queries, meets the cells of its row on the tensor cores; the
// cells are split between blocks as attention_work.cuh says, and in a block every warp takes a slice of each unit. A
// warp copies, attends and rescales for itself (online softmax: Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018). The parts of a segment are merged by the block that finishes last, so one launch is all.
//
// Grid: as many blocks as the plan has. Block: WARPS warps. Shared memory: the stages of all warps, then their results.

// ---- copies ---------------------------------------------------------------------------------------------------------

// Where this warp's slices of units `first` to `end` - 1 lie in the cache, a slice in each lane.
struct SlicePlaces {
  int block, cell;
  int first, end;
};

template <class Shape>
DEVICE int first_cell_of_slice(const Part& part, int unit) {
  return part.cells.first + unit * Shape::UNIT_CELLS + threadIdx.x / WARP * SLICE_CELLS;
}

template <class Shape>
DEVICE SlicePlaces look_up_places(const DecodeParameters& p, const Part& part, int first_unit) {
  const int unit = first_unit + threadIdx.x % WARP, cell = first_cell_of_slice<Shape>(part, unit);
  SlicePlaces places = {0, 0, first_unit, first_unit + WARP};
  if (unit < part.end_unit && cell < part.cells.end) {
    const int block = (u32)cell / (u32)p.block_size;
    places.block = p.block_table[part.row_index * p.table_row + block];
    places.cell = cell - block * p.block_size;
  }
  return places;
}

// Copies the warp's slice of `unit`, if there is such a unit, and closes a group of copies in any case.
template <class Shape>
DEVICE void copy_unit(const DecodeParameters& p, const Part& part, SlicePlaces& places, int unit, u32 stage) {
  if (unit < part.end_unit) {
    if (unit >= places.end) places = look_up_places<Shape>(p, part, unit);
    const i64 block = __shfl_sync(WHOLE_WARP, places.block, unit - places.first);
    const int cell = __shfl_sync(WHOLE_WARP, places.cell, unit - places.first);
    SliceSource source;
    source.keys = (const u8*)p.kv + block * p.block_bytes + part.kv_head * p.head_bytes + cell * p.cell_bytes;
    source.values = source.keys + p.plane_bytes;
    source.cell_bytes = p.cell_bytes;
    source.cells = part.cells.end - first_cell_of_slice<Shape>(part, unit);
    if constexpr (Shape::SCALED) {
      const i64 plane = (i64)p.num_kv_heads * p.block_size;
      source.key_scales = p.kv_scale + 2 * block * plane + part.kv_head * p.block_size + cell;
      source.value_scales = source.key_scales + plane;
    }
    copy_slice<Shape>(stage, source);
  }
  copy_async_commit();
}

// ---- queries --------------------------------------------------------------------------------------------------------

// What this lane's two lines (lane / 4 and + 8) see, and their running maxima (of all lanes of the line) and sums (of
// this lane's cells).
struct Lines {
  int first[2];
  int end[2];
  int all_first, all_end;  // what all lines of the tile see
  float query_scale[2];    // by which products of queries are too small
  float key_bias[2];       // what the bias of widened keys adds to a score
  float maximum[2];
  float sum[2];
};

DEVICE Lines begin_lines(const DecodeParameters& p, const Part& part) {
  Lines lines;
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int position = query_position(part.row, part.tile * TILE_LINES + threadIdx.x % WARP / 4 + 8 * i, p.group);
    lines.first[i] = p.window ? position - p.window + 1 : 0;
    lines.end[i] = p.causal ? position + 1 : part.row.length;
    lines.query_scale[i] = 1.f;
    lines.key_bias[i] = 0.f;
    lines.maximum[i] = LOWEST;
    lines.sum[i] = 0.f;
  }
  const int first_line = part.tile * TILE_LINES, last_line = first_line + TILE_LINES - 1;
  lines.all_first = p.window ? query_position(part.row, last_line, p.group) - p.window + 1 : 0;
  lines.all_end = p.causal ? query_position(part.row, first_line, p.group) + 1 : part.row.length;
  return lines;
}

// Turns bf16 queries into f16. A line is multiplied by the power of 2 that brings its largest element to 2^8, so that
// none overflows and only those smaller by 2^-22 lose bits.
template <class Shape>
DEVICE void narrow_queries(QueryFragments<Shape>& queries, Lines& lines) {
  UNROLL
  for (int i = 0; i < 2; i++) {
    float largest = 0.f;
    UNROLL
    for (int j = 0; j < 2 * Shape::K_STEPS; j++) {
      const u32 pair = queries[j / 2][i + 2 * (j % 2)];
      largest = fmaxf(largest, fmaxf(fabsf(unpack_low<bf16>(pair)), fabsf(unpack_high<bf16>(pair))));
    }
    largest = fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 2));
    const u32 exponent = larger(__float_as_uint(largest) >> 23, 9u);
    const float scale = __uint_as_float((262 - exponent) << 23);
    lines.query_scale[i] = __uint_as_float((exponent - 8) << 23);
    UNROLL
    for (int j = 0; j < 2 * Shape::K_STEPS; j++) {
      u32& pair = queries[j / 2][i + 2 * (j % 2)];
      pair = pack_f16(unpack_low<bf16>(pair) * scale, unpack_high<bf16>(pair) * scale);
    }
  }
}

template <class Shape>
DEVICE void sum_queries(const QueryFragments<Shape>& queries, Lines& lines) {
  UNROLL
  for (int i = 0; i < 2; i++) {
    float sum = 0.f;
    UNROLL
    for (int j = 0; j < 2 * Shape::K_STEPS; j++) {
      const u32 pair = queries[j / 2][i + 2 * (j % 2)];
      sum += unpack_low<f16>(pair) + unpack_high<f16>(pair);
    }
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
    lines.key_bias[i] = Shape::KEY_BIAS * sum;
  }
}

// Lines behind the row's last become zeros.
template <class Shape>
DEVICE void load_queries(QueryFragments<Shape>& queries, Lines& lines, const DecodeParameters& p, const Part& part) {
  using T = typename Shape::T;
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int line = part.tile * TILE_LINES + threadIdx.x % WARP / 4 + 8 * i;
    const bool exists = line < part.row.queries * p.group;
    const int token = part.row.first_token + line / p.group, head = part.kv_head * p.group + line % p.group;
    const T* source = (const T*)p.q + token * p.q_token + head * p.q_head;
    UNROLL
    for (int step = 0; step < Shape::K_STEPS; step++) {
      UNROLL
      for (int half = 0; half < 2; half++) {
        const u32* pair = (const u32*)(source + query_dimension<Shape>(step, half));
        queries[step][i + 2 * half] = exists ? *pair : 0u;
      }
    }
  }
  if constexpr (!same_type<T, typename Shape::Factor>) narrow_queries<Shape>(queries, lines);
  if constexpr (Shape::KEY_BIAS != 0) sum_queries<Shape>(queries, lines);
}

// ---- softmax --------------------------------------------------------------------------------------------------------

// Scales of the two neighbouring cells of a lane, for the cells 0 to 7 and 8 to 15.
struct CellScales {
  float keys[2][2];
  float log2_values[2][2];
  float inverse_values[2][2];
};

// A scale of 0 counts as the smallest f16: the values that belong to it are zeros.
DEVICE CellScales load_scales(const u8* scales) {
  constexpr float SMALLEST = 5.9604645e-8f;
  CellScales s;
  UNROLL
  for (int n = 0; n < 2; n++) {
    const u32* const pairs = (const u32*)scales + 4 * n + threadIdx.x % 4;
    const u32 keys = pairs[0], values = pairs[SLICE_CELLS / 2];
    s.keys[n][0] = unpack_low<f16>(keys);
    s.keys[n][1] = unpack_high<f16>(keys);
    const float scale[2] = {fmaxf(unpack_low<f16>(values), SMALLEST), fmaxf(unpack_high<f16>(values), SMALLEST)};
    UNROLL
    for (int i = 0; i < 2; i++) {
      s.log2_values[n][i] = log2_fast(scale[i]);
      s.inverse_values[n][i] = reciprocal_fast(scale[i]);
    }
  }
  return s;
}

// From products of queries and keys to exponents of 2. That of a scaled cache includes the scale of the cell's value,
// so that the largest weight of a line is 1 whatever the scales are.
template <class Shape>
DEVICE void scale_scores(float (&scores)[2][4], const DecodeParameters& p, const Lines& lines,
                         const CellScales& scales) {
  const float scale = p.cap_scale != 0.f ? p.cap_scale : p.score_scale;
  const float line_scale[2] = {scale * lines.query_scale[0], scale * lines.query_scale[1]};
  UNROLL
  for (int n = 0; n < 2; n++) {
    UNROLL
    for (int j = 0; j < 4; j++) {
      scores[n][j] *= line_scale[j / 2];
      if constexpr (Shape::SCALED) scores[n][j] *= scales.keys[n][j % 2];
    }
  }
  if (p.cap_scale != 0.f) {
    UNROLL
    for (int n = 0; n < 2; n++) {
      UNROLL
      for (int j = 0; j < 4; j++) {
        scores[n][j] = p.score_scale * (1.f - 2.f * reciprocal_fast(1.f + exp2_fast(scores[n][j])));
      }
    }
  }
  if constexpr (Shape::SCALED) {
    UNROLL
    for (int n = 0; n < 2; n++) {
      UNROLL
      for (int j = 0; j < 4; j++) scores[n][j] += scales.log2_values[n][j % 2];
    }
  }
}

DEVICE void hide_cells(float (&scores)[2][4], const Lines& lines, int first_cell) {
  if (first_cell >= lines.all_first && first_cell + SLICE_CELLS <= lines.all_end) return;
  UNROLL
  for (int n = 0; n < 2; n++) {
    UNROLL
    for (int j = 0; j < 4; j++) {
      const int cell = first_cell + 8 * n + threadIdx.x % 4 * 2 + j % 2;
      if (cell < lines.first[j / 2] || cell >= lines.end[j / 2]) scores[n][j] = LOWEST;
    }
  }
}

// From exponents to weights, in place, and to sums of weights (without the scales of values).
template <class Shape>
DEVICE void weigh(float (&scores)[2][4], Lines& lines, Accumulators<Shape>& sums, const CellScales& scales) {
  float shrink[2];
  UNROLL
  for (int i = 0; i < 2; i++) {
    float maximum = fmaxf(lines.maximum[i], fmaxf(scores[0][2 * i], scores[0][2 * i + 1]));
    maximum = fmaxf(maximum, fmaxf(scores[1][2 * i], scores[1][2 * i + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(WHOLE_WARP, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(WHOLE_WARP, maximum, 2));
    shrink[i] = exp2_fast(lines.maximum[i] - maximum);
    lines.maximum[i] = maximum;
    lines.sum[i] *= shrink[i];
  }
  if (__any_sync(WHOLE_WARP, shrink[0] != 1.f || shrink[1] != 1.f)) {  // seldom, after the first cells
    UNROLL
    for (int tile = 0; tile < Shape::D / 8; tile++) {
      UNROLL
      for (int j = 0; j < 4; j++) sums[tile][j] *= shrink[j / 2];
    }
  }
  UNROLL
  for (int i = 0; i < 2; i++) {
    // A line that has seen nothing yet must not take its hidden cells for its maximum.
    const float base = lines.maximum[i] > LOWEST ? lines.maximum[i] : 0.f;
    UNROLL
    for (int n = 0; n < 2; n++) {
      UNROLL
      for (int j = 0; j < 2; j++) {
        const float weight = exp2_fast(scores[n][2 * i + j] - base);
        scores[n][2 * i + j] = weight;
        lines.sum[i] += Shape::SCALED ? weight * scales.inverse_values[n][j] : weight;
      }
    }
  }
}

template <class Shape>
DEVICE void attend_slice(const DecodeParameters& p, const QueryFragments<Shape>& queries, Lines& lines,
                         Accumulators<Shape>& sums, const u8* stage, int first_cell) {
  using Factor = typename Shape::Factor;
  const u32 keys = shared_address(stage);
  float scores[2][4];
  CellScales scales;
  multiply_keys<Shape>(scores, queries, lines.key_bias, keys);
  if constexpr (Shape::SCALED) scales = load_scales(stage + 2 * Shape::PLANE_BYTES);
  scale_scores<Shape>(scores, p, lines, scales);
  hide_cells(scores, lines, first_cell);
  weigh<Shape>(scores, lines, sums, scales);
  const u32 weights[4] = {pack2<Factor>(scores[0][0], scores[0][1]), pack2<Factor>(scores[0][2], scores[0][3]),
                          pack2<Factor>(scores[1][0], scores[1][1]), pack2<Factor>(scores[1][2], scores[1][3])};
  add_values<Shape>(sums, weights, keys + Shape::PLANE_BYTES);
}

// Attends the units of a part; leaves the result of each warp in shared memory.
template <class Shape>
DEVICE void attend_part(const DecodeParameters& p, const Part& part, u8* shared) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  u8* const stages = shared + warp * Shape::STAGES * Shape::STAGE_BYTES;
  SlicePlaces places = look_up_places<Shape>(p, part, part.first_unit);
  for (int i = 0; i < Shape::STAGES; i++) {
    copy_unit<Shape>(p, part, places, part.first_unit + i, shared_address(stages + i * Shape::STAGE_BYTES));
  }
  Lines lines = begin_lines(p, part);
  QueryFragments<Shape> queries;
  load_queries<Shape>(queries, lines, p, part);
  Accumulators<Shape> sums;
  UNROLL
  for (int i = 0; i < Shape::D / 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;

  u8* stage = stages;
  for (int unit = part.first_unit; unit < part.end_unit; unit++) {
    copy_async_wait<Shape::STAGES - 1>();
    __syncwarp();
    attend_slice<Shape>(p, queries, lines, sums, stage, first_cell_of_slice<Shape>(part, unit));
    __syncwarp();
    copy_unit<Shape>(p, part, places, unit + Shape::STAGES, shared_address(stage));
    stage += Shape::STAGE_BYTES;
    if (stage == stages + Shape::STAGES * Shape::STAGE_BYTES) stage = stages;
  }

  __syncthreads();  // all warps are done with their stages
  float* const partial = (float*)shared + warp * Shape::PARTIAL_FLOATS;
  UNROLL
  for (int i = 0; i < 2; i++) {
    float* const line = partial + (lane / 4 + 8 * i) * Shape::PARTIAL_STRIDE;
    float sum = lines.sum[i] + __shfl_xor_sync(WHOLE_WARP, lines.sum[i], 1);
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
    store_line<Shape>(line, sums, i);
    if (lane % 4 == 0) {
      line[Shape::D] = lines.maximum[i];
      line[Shape::D + 1] = sum;
    }
  }
  __syncthreads();
}

// Tokens behind the last row's get zeros.
template <class Shape>
DEVICE void clear_tokens(const DecodeParameters& p, int first_token) {
  constexpr int QUARTERS = Shape::D / 4;
  const int num_heads = p.num_kv_heads * p.group;
  const i64 pieces = (i64)(p.tokens - first_token) * num_heads * QUARTERS;
  for (i64 i = blockIdx.x * Shape::THREADS + threadIdx.x; i < pieces; i += gridDim.x * Shape::THREADS) {
    const int dimension = (int)(i % QUARTERS) * 4, head = (int)(i / QUARTERS % num_heads);
    const i64 token = first_token + i / QUARTERS / num_heads;
    *(uint2*)((u16*)p.out + token * p.out_token + head * p.out_head + dimension) = make_uint2(0u, 0u);
  }
}

template <class Shape>
DEVICE void decode(const DecodeParameters& p) {
  SHARED_MEMORY(shared);
  const WorkStart start = plan_at(p.plan, gridDim.x, p.rows).starts[blockIdx.x];
  const int tokens_of_rows = p.cu_q[p.rows], capacity = p.max_blocks * p.block_size;
  int unit = blockIdx.x * start.chunk;
  int row_index = start.row_index, member = start.member, segment_start = start.segment_start;
  Row row = start.row;
  while (unit < start.end) {
    const int tiles = count_tiles(row, p.group), tile = member % tiles;
    const Cells cells = visible_cells(row, tile, p.group, p.causal, p.window);
    const int units = count_units(cells, Shape::UNIT_CELLS);
    const int first = unit - segment_start, last = smaller(start.end - segment_start, units);
    if (first < last) {  // else only the gap behind the segment is in this chunk
      const Part part = {row_index, row, member / tiles, tile, cells, units, first, last};
      attend_part<Shape>(p, part, shared);
      finish_part<Shape>(p, part, start.chunk, segment_start, shared);
      __syncthreads();  // the results of the warps are read
    }
    // Only a chained cut leads to another segment.
    segment_start += CHAIN_GAP + units_of_segments(row, p.group, p.causal, p.window, Shape::UNIT_CELLS);
    unit = segment_start;
    if (++member == tiles * p.num_kv_heads && unit < start.end) {  // the next row that decode serves
      do {
        row = read_row(p.seq_lens, p.cu_q, ++row_index, capacity);
      } while (!is_short_row(row.queries, p.group, row.length));
      member = 0;
    }
  }
  clear_tokens<Shape>(p, tokens_of_rows);
}

// The family's macros: DECODE_HEAD_DIM; DECODE_WARPS of a block; DECODE_STAGES of a warp for a cache of 16 bits and
// DECODE_STAGES_8BIT; DECODE_BLOCKS on a multiprocessor; DECODE_E4M3 for the kernels of FP8 caches, in another family.
// The shared memory of some GPUs holds fewer blocks, so that registers need not be scarce there.
#if __CUDA_ARCH__ < 800
constexpr int MIN_BLOCKS = 1;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int MIN_BLOCKS = DECODE_HEAD_DIM < 128 ? 2 : 1;
#else
constexpr int MIN_BLOCKS = DECODE_BLOCKS;
#endif

#define DECODE_KERNEL(NAME, T, CACHED, STAGES)                                     \
  KERNEL(NAME, DecodeParameters, DECODE_WARPS * WARP, MIN_BLOCKS) {                \
    decode<DecodeShape<T, CACHED, DECODE_HEAD_DIM, DECODE_WARPS, STAGES>>(params); \
  }

#if DECODE_E4M3 && __CUDA_ARCH__ >= 890
DECODE_KERNEL(attention_decode_f16_e4m3, f16, e4m3, DECODE_STAGES_8BIT)
DECODE_KERNEL(attention_decode_bf16_e4m3, bf16, e4m3, DECODE_STAGES_8BIT)
#elif !DECODE_E4M3
DECODE_KERNEL(attention_decode_f16, f16, f16, DECODE_STAGES)
DECODE_KERNEL(attention_decode_f16_i8, f16, i8, DECODE_STAGES_8BIT)
#if __CUDA_ARCH__ >= 800
DECODE_KERNEL(attention_decode_bf16, bf16, bf16, DECODE_STAGES)
DECODE_KERNEL(attention_decode_bf16_i8, bf16, i8, DECODE_STAGES_8BIT)
#endif
#endif
