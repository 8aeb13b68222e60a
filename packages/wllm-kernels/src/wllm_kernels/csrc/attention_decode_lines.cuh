// The lines of a tile in the registers of a warp: queries, and the online softmax over the slices that it attends.

// The stages of a warp, in the order in which their copies arrive.
template <class Shape>
struct Ring {
  static constexpr int BYTES = Shape::STAGES * Shape::STAGE_BYTES;
  u8* stages;
  int first;  // offset

  __device__ u8* stage(int number) const {
    const int offset = first + number * Shape::STAGE_BYTES;
    return stages + (offset < BYTES ? offset : offset - BYTES);
  }
  __device__ void advance() {
    first += Shape::STAGE_BYTES;
    if (first == BYTES) first = 0;
  }
};

// ---- queries --------------------------------------------------------------------------------------------------------

// What this lane's two lines (lane / 4 and + 8) see, and their running maxima (of all lanes of the line) and sums (of
// this lane's cells).
struct Lines {
  int first[2];
  int end[2];
  int all_first, all_end;  // what all lines of the tile see
  float scale[2];          // from a product of queries and keys to a score
  float key_bias[2];       // what the bias of widened keys adds to a score
  float maximum[2];
  float sum[2];
};

template <class Shape>
DEVICE Lines begin_lines(const DecodeParameters& p, const Part& part) {
  const int end_of_part = part.segment.cells.first + part.end_unit * Shape::UNIT_CELLS;
  Lines lines;
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int position = query_position(part.row, part.segment.tile * TILE_LINES + threadIdx.x % WARP / 4 + 8 * i, p.group);
    lines.first[i] = p.window ? position - p.window + 1 : 0;
    lines.end[i] = smaller(p.causal ? position + 1 : part.row.length, end_of_part);
    lines.scale[i] = p.cap_scale != 0.f ? p.cap_scale : p.score_scale;
    lines.key_bias[i] = 0.f;
    lines.maximum[i] = LOWEST;
    lines.sum[i] = 0.f;
  }
  const int first_line = part.segment.tile * TILE_LINES, last_line = first_line + TILE_LINES - 1;
  lines.all_first = p.window ? query_position(part.row, last_line, p.group) - p.window + 1 : 0;
  const int all_end = p.causal ? query_position(part.row, first_line, p.group) + 1 : part.row.length;
  lines.all_end = smaller(all_end, end_of_part);
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
    lines.scale[i] *= __uint_as_float((exponent - 8) << 23);
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
    const int line = part.segment.tile * TILE_LINES + threadIdx.x % WARP / 4 + 8 * i;
    const bool exists = line < part.row.queries * p.group;
    const int query = query_of_line(part.row, line, p.group), token = part.row.first_token + query;
    const int head = part.segment.kv_head * p.group + line - query * p.group;
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
  float values[2][2];
};

DEVICE CellScales load_scales(const u8* scales) {
  CellScales s;
  UNROLL
  for (int n = 0; n < 2; n++) {
    const u32* const pairs = (const u32*)scales + 4 * n + threadIdx.x % 4;
    const u32 keys = pairs[0], values = pairs[SLICE_CELLS / 2];
    s.keys[n][0] = unpack_low<f16>(keys);
    s.keys[n][1] = unpack_high<f16>(keys);
    s.values[n][0] = unpack_low<f16>(values);
    s.values[n][1] = unpack_high<f16>(values);
  }
  return s;
}

// From products of queries and keys to exponents of 2.
template <class Shape>
DEVICE void scale_scores(float (&scores)[2][4], const DecodeParameters& p, const Lines& lines,
                         const CellScales& scales) {
  UNROLL
  for (int n = 0; n < 2; n++) {
    UNROLL
    for (int j = 0; j < 4; j++) {
      scores[n][j] *= lines.scale[j / 2];
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
}

// Cells that neither line of the lane sees may hold NaN, as scales too, which a weight of 0 would not hide.
template <class Shape>
DEVICE void hide_cells(float (&scores)[2][4], const Lines& lines, CellScales& scales, int first_cell) {
  if (first_cell >= lines.all_first && first_cell + SLICE_CELLS <= lines.all_end) return;
  UNROLL
  for (int n = 0; n < 2; n++) {
    UNROLL
    for (int j = 0; j < 2; j++) {
      const int cell = first_cell + 8 * n + threadIdx.x % 4 * 2 + j;
      const bool hidden[2] = {cell < lines.first[0] || cell >= lines.end[0],
                              cell < lines.first[1] || cell >= lines.end[1]};
      if (hidden[0]) scores[n][j] = LOWEST;
      if (hidden[1]) scores[n][2 + j] = LOWEST;
      if (Shape::SCALED && hidden[0] && hidden[1]) scales.values[n][j] = 0.f;
    }
  }
}

// The slices that a warp attends at once.
template <class Shape>
using Scores = float[Shape::SLICES][2][4];

// The largest score that the lane has of a line (lane / 4 + 8 * half), if none is larger than `maximum`.
template <class Shape>
DEVICE float largest_score(const Scores<Shape>& scores, int half, float maximum) {
  UNROLL
  for (int s = 0; s < Shape::SLICES; s++) {
    UNROLL
    for (int n = 0; n < 2; n++) {
      maximum = fmaxf(maximum, fmaxf(scores[s][n][2 * half], scores[s][n][2 * half + 1]));
    }
  }
  return maximum;
}

// From exponents to weights, in place, and to sums of weights. The scale of a cell's value goes into its weight, which
// is at most 1, so the product is an f16 too; it loses bits only where the scale is below 2^-14, that is, where the
// values are small beside what else a model adds up.
template <class Shape>
DEVICE void weigh(Scores<Shape>& scores, Lines& lines, Accumulators<Shape>& sums,
                  const CellScales (&scales)[Shape::SLICES]) {
  float shrink[2];
  UNROLL
  for (int i = 0; i < 2; i++) {
    float maximum = largest_score<Shape>(scores, i, lines.maximum[i]);
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
    for (int s = 0; s < Shape::SLICES; s++) {
      UNROLL
      for (int n = 0; n < 2; n++) {
        UNROLL
        for (int j = 0; j < 2; j++) {
          const float weight = exp2_fast(scores[s][n][2 * i + j] - base);
          lines.sum[i] += weight;
          scores[s][n][2 * i + j] = Shape::SCALED ? weight * scales[s].values[n][j] : weight;
        }
      }
    }
  }
}
