// Attention of short rows (decode, speculative and last chunks) over a paged KV cache.
//
// A tile of 16 lines, the heads of a group for one or more queries, meets the cells of its row on the tensor cores; the
// cells are split between blocks as attention_work.cuh says, and in a block every warp takes a slice of each unit. A
// warp copies, attends and rescales for itself (online softmax: Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018). The parts of a segment are merged by the block that finishes last, so one launch is all.
//
// Grid: as many blocks as the plan has. Block: WARPS warps. Shared memory: the stages of all warps, then their results.

// ---- copies ---------------------------------------------------------------------------------------------------------

// Where this warp's slices of units `first` to `end` - 1 lie in the cache, a slice in each lane. Multiplied out here,
// once for 32 units: in front of each copy it would be a tenth of all instructions.
struct SlicePlaces {
  i64 keys;    // bytes
  u32 scales;  // elements; 32 bits number those of every cache that fits into a GPU
  int first, end;
};

template <class Shape>
DEVICE int first_cell_of_slice(const Part& part, int unit) {
  return part.segment.cells.first + unit * Shape::UNIT_CELLS + threadIdx.x / WARP * SLICE_CELLS;
}

template <class Shape>
DEVICE SlicePlaces look_up_places(const DecodeParameters& p, const Part& part, int first_unit) {
  const int unit = first_unit + threadIdx.x % WARP, cell = first_cell_of_slice<Shape>(part, unit);
  int block = 0, cell_of_block = 0;
  if (unit < part.end_unit && cell < part.segment.cells.end) {
    const int block_of_row = (u64)(u32)cell * p.block_reciprocal >> 32;
    block = p.block_table[part.row_index * p.table_row + block_of_row];
    cell_of_block = cell - block_of_row * p.block_size;
  }
  return {block * p.block_bytes + part.segment.kv_head * p.head_bytes + cell_of_block * p.cell_bytes,
          ((u32)block * 2 * p.num_kv_heads + part.segment.kv_head) * p.block_size + cell_of_block, first_unit,
          first_unit + WARP};
}

// Copies the warp's slice of `unit`, if there is such a unit, and closes a group of copies in any case. A unit that the
// last one is attended together with becomes zeros.
template <class Shape>
DEVICE void copy_unit(const DecodeParameters& p, const Part& part, SlicePlaces& places, int unit, u32 stage) {
  if (unit < part.first_unit + divide_up(part.end_unit - part.first_unit, Shape::SLICES) * Shape::SLICES) {
    if (unit >= places.end) places = look_up_places<Shape>(p, part, unit);
    SliceSource source;
    source.keys = (const u8*)p.kv + __shfl_sync(WHOLE_WARP, places.keys, unit - places.first);
    source.values = source.keys + p.plane_bytes;
    source.cell_bytes = p.cell_bytes;
    source.cells = unit < part.end_unit ? part.segment.cells.end - first_cell_of_slice<Shape>(part, unit) : 0;
    if constexpr (Shape::SCALED) {
      source.key_scales = p.kv_scale + __shfl_sync(WHOLE_WARP, places.scales, unit - places.first);
      source.value_scales = source.key_scales + p.num_kv_heads * p.block_size;
    }
    copy_slice<Shape>(stage, source);
  }
  copy_async_commit();
}

// Brings what this block is going to read first to the L2 while the previous kernel ends. A guess: the plan and the block
// table may be those of an earlier step, or nothing yet, so every number is held against its range.
template <class Shape>
DEVICE void prefetch_first_slices(const DecodeParameters& p) {
  constexpr int LINE_BYTES = Shape::CHUNKS * 16;
  const int lane = threadIdx.x % WARP;
  if (lane >= Shape::STAGES || p.cell_bytes != LINE_BYTES) return;
  const WorkStart* const start = plan_at(p.plan, gridDim.x, p.rows).starts + blockIdx.x;
  const u32 row = peek(&start->row_index), kv_head = peek(&start->segment.kv_head);
  const u32 unit = blockIdx.x * (u32)peek(&start->chunk) + lane;
  const u32 unit_of_segment = unit - (u32)peek(&start->segment_start);
  const u32 cell_of_unit = threadIdx.x / WARP * SLICE_CELLS;
  const u32 cell = ((u32)peek(&start->segment.cells.first) & ~(u32)(SLICE_CELLS - 1)) + unit_of_segment * Shape::UNIT_CELLS +
                   cell_of_unit;
  if ((int)unit >= peek(&start->end) || row >= (u32)p.rows || kv_head >= (u32)p.num_kv_heads) return;
  if (cell >= (u32)p.max_blocks * p.block_size) return;
  const u32 block_of_row = (u64)cell * p.block_reciprocal >> 32;
  const u32 block = peek(p.block_table + row * p.table_row + block_of_row);
  if (block >= (u32)p.num_blocks) return;
  const u8* const keys = (const u8*)p.kv + block * p.block_bytes + kv_head * p.head_bytes +
                         (cell - block_of_row * p.block_size) * p.cell_bytes;
  prefetch_to_l2(keys, SLICE_CELLS * LINE_BYTES);
  prefetch_to_l2(keys + p.plane_bytes, SLICE_CELLS * LINE_BYTES);
}

// ---- attention ------------------------------------------------------------------------------------------------------

// Attends the slices of the first units in `ring`, of which `unit` is the first.
template <class Shape>
DEVICE void attend_slices(const DecodeParameters& p, const Part& part, const QueryFragments<Shape>& queries,
                          Lines& lines, Accumulators<Shape>& sums, const Ring<Shape>& ring, int unit) {
  using Factor = typename Shape::Factor;
  Scores<Shape> scores;
  CellScales scales[Shape::SLICES];
  UNROLL
  for (int s = 0; s < Shape::SLICES; s++) {
    const u8* const stage = ring.stage(s);
    multiply_keys<Shape>(scores[s], queries, lines.key_bias, shared_address(stage));
    if constexpr (Shape::SCALED) scales[s] = load_scales(stage + 2 * Shape::PLANE_BYTES);
    scale_scores<Shape>(scores[s], p, lines, scales[s]);
    hide_cells<Shape>(scores[s], lines, scales[s], first_cell_of_slice<Shape>(part, unit + s));
  }
  weigh<Shape>(scores, lines, sums, scales);
  UNROLL
  for (int s = 0; s < Shape::SLICES; s++) {
    const float(&w)[2][4] = scores[s];
    const u32 weights[4] = {pack2<Factor>(w[0][0], w[0][1]), pack2<Factor>(w[0][2], w[0][3]),
                            pack2<Factor>(w[1][0], w[1][1]), pack2<Factor>(w[1][2], w[1][3])};
    add_values<Shape>(sums, weights, shared_address(ring.stage(s)) + Shape::PLANE_BYTES);
  }
}

// Attends the units of a part; leaves the result of each warp in shared memory.
template <class Shape>
DEVICE void attend_part(const DecodeParameters& p, const Part& part, u8* shared) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  Ring<Shape> ring = {shared + warp * Ring<Shape>::BYTES, 0};
  SlicePlaces places = look_up_places<Shape>(p, part, part.first_unit);
  for (int i = 0; i < Shape::STAGES; i++) {
    copy_unit<Shape>(p, part, places, part.first_unit + i, shared_address(ring.stage(i)));
  }
  Lines lines = begin_lines<Shape>(p, part);
  QueryFragments<Shape> queries;
  load_queries<Shape>(queries, lines, p, part);
  Accumulators<Shape> sums;
  UNROLL
  for (int i = 0; i < Shape::D / 8; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;

  for (int unit = part.first_unit; unit < part.end_unit; unit += Shape::SLICES) {
    copy_async_wait<Shape::STAGES - Shape::SLICES>();
    __syncwarp();
    attend_slices<Shape>(p, part, queries, lines, sums, ring, unit);
    __syncwarp();
    UNROLL
    for (int s = 0; s < Shape::SLICES; s++) {
      copy_unit<Shape>(p, part, places, unit + s + Shape::STAGES, shared_address(ring.stage(0)));
      ring.advance();
    }
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
  let_next_kernel_start();
  // Larger heads leave no registers for it.
  if constexpr (OVERLAPS && Shape::D <= 128) prefetch_first_slices<Shape>(p);
  wait_for_previous_kernel();
  const WorkStart start = load_start(plan_at(p.plan, gridDim.x, p.rows).starts + blockIdx.x);
  const int tokens_of_rows = p.cu_q[p.rows], capacity = p.max_blocks * p.block_size;
  int unit = blockIdx.x * start.chunk;
  int row_index = start.row_index, member = start.member, segment_start = start.segment_start;
  Row row = start.row;
  Segment segment = start.segment;
  while (unit < start.end) {
    const int units = count_units(segment.cells, Shape::UNIT_CELLS);
    const int first = unit - segment_start, last = smaller(start.end - segment_start, units);
    if (first < last) {  // else only the gap behind the segment is in this chunk
      const Part part = {row_index, row, segment, first, last};
      attend_part<Shape>(p, part, shared);
      finish_part<Shape>(p, part, shared);
      __syncthreads();  // the results of the warps are read
    }
    // Only a chained cut leads to another segment.
    segment_start += CHAIN_GAP + units_of_segments(row, p.group, p.causal, p.window, Shape::UNIT_CELLS);
    unit = segment_start;
    if (unit >= start.end) break;
    if (++member == count_tiles(row, p.group) * p.num_kv_heads) {  // the next row that decode serves
      do {
        row = read_row(p.seq_lens, p.cu_q, ++row_index, capacity);
      } while (!is_short_row(row.queries, p.group, row.length));
      member = 0;
    }
    segment = find_segment(row, member, segment_start, start.chunk, p.group, p.causal, p.window, Shape::UNIT_CELLS);
  }
  clear_tokens<Shape>(p, tokens_of_rows);
}

// The family's macros: DECODE_HEAD_DIM; DECODE_WARPS of a block; DECODE_STAGES of a warp for a cache of 16 bits and
// DECODE_STAGES_8BIT; DECODE_BLOCKS on a multiprocessor; DECODE_E4M3 for the kernels of FP8 caches, in another family.
// The shared memory of some GPUs holds fewer blocks, so that registers need not be scarce there.
#if __CUDA_ARCH__ < 800
constexpr int MIN_BLOCKS = 1;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int KEY_VALUE_BYTES = DECODE_WARPS * DECODE_STAGES * SLICE_CELLS * 4 * DECODE_HEAD_DIM;
constexpr int MIN_BLOCKS = KEY_VALUE_BYTES <= 48 * 1024 ? 2 : 1;
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
