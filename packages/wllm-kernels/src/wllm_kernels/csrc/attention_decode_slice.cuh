// A slice: keys and values of 16 cells of one block and head, copied to shared memory by one warp and multiplied there.
//
// The cache holds T itself, or 8-bit elements (i8, e4m3) that become f16 on their way from shared memory to the tensor
// cores, whatever T is: that is exact and quick. A matrix load moves 16-bit pieces, hence pairs of neighbouring 8-bit
// elements; instead of sorting them apart, the products renumber their dimensions (see multiply_keys and add_values),
// the queries and the output likewise.
template <bool CONDITION, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

// Added to int8 as it becomes f16 by pasting its byte behind 0x64.
constexpr int INT8_BIAS = 1024 + 128;

template <class Element, class CachedElement, int HEAD_DIM, int WARPS_OF_BLOCK, int STAGES_OF_WARP>
struct DecodeShape {
  using T = Element;
  using Cached = CachedElement;
  static constexpr int D = HEAD_DIM;
  static constexpr bool BYTES = sizeof(Cached) == 1;
  using Factor = typename Choose<BYTES, f16, T>::type;  // what the tensor cores multiply
  static constexpr bool SCALED = same_type<Cached, i8>;
  static constexpr int KEY_BIAS = same_type<Cached, i8> ? INT8_BIAS : 0;
  static constexpr int WARPS = WARPS_OF_BLOCK, THREADS = WARPS * WARP;
  static constexpr int UNIT_CELLS = WARPS * SLICE_CELLS;  // a slice for each warp
  // A warp attends slices of so many units at once: 8-bit elements need fewer instructions for each so. Small heads
  // share a multiprocessor with more warps, whose registers hold one.
  static constexpr int SLICES = BYTES && D > 64 ? 2 : 1;
  static constexpr int STAGES = STAGES_OF_WARP;
  static constexpr int K_STEPS = D / 16;                          // products of 16 dimensions
  static constexpr int CHUNKS = D * (int)sizeof(Cached) / 16;     // of 16 bytes in the line of a cell
  static constexpr bool SWIZZLED = CHUNKS % 8 == 0;
  static constexpr int LINE_CHUNKS = SWIZZLED ? CHUNKS : CHUNKS | 1;
  static constexpr int PLANE_BYTES = SLICE_CELLS * LINE_CHUNKS * 16;  // keys or values
  static constexpr int SCALE_BYTES = SCALED ? 2 * SLICE_CELLS : 0;    // of keys or values
  static constexpr int STAGE_BYTES = 2 * (PLANE_BYTES + SCALE_BYTES);
  static constexpr int PARTIAL_STRIDE = D + STATISTICS;  // floats of a line of results
  static constexpr int PARTIAL_FLOATS = TILE_LINES * PARTIAL_STRIDE;

  // Where a chunk lies. The eight lines that a matrix load reads at one chunk come from different banks: chunks change
  // places within a line, or a line ends with a gap that makes its length odd.
  static __device__ u32 offset(int cell, int chunk) {
    return (cell * LINE_CHUNKS + (SWIZZLED ? chunk ^ (cell & 7) : chunk)) * 16;
  }
  // From the offset of (cell, chunk) to that of (cell + cells, chunk + chunks) in one operation, as constants go. The
  // sums must be free of carries: the bits of cells and cell, and those of chunks and chunk, lie apart.
  static __device__ u32 moved(u32 offset, int cells, int chunks) {
    const int distance = (cells * LINE_CHUNKS + (SWIZZLED ? chunks & ~7 : chunks)) * 16;
    return (SWIZZLED ? offset ^ ((cells ^ chunks) & 7) * 16 : offset) + distance;
  }
};

// ---- copies ---------------------------------------------------------------------------------------------------------

struct SliceSource {
  const u8* keys;
  const u8* values;
  const f16* key_scales;  // of an int8 cache
  const f16* value_scales;
  i64 cell_bytes;
  int cells;  // that hold a token, of the 16; zero and less: none
};

// Cells without a token become zeros: they may hold NaN, which would pass through a weight of 0. In a WHOLE slice each
// cell holds one, and the next cell follows without a gap.
template <class Shape, bool WHOLE>
DEVICE void copy_cells(u32 stage, const SliceSource& source) {
  constexpr int PIECES = SLICE_CELLS * Shape::CHUNKS;
  const int lane = threadIdx.x % WARP;
  const u32 first_target = Shape::offset(lane / Shape::CHUNKS, lane % Shape::CHUNKS);
  // Opaque, so that the addresses of all copies are one register and constants.
  const u8 *const keys = opaque(source.keys + lane * 16), *const values = opaque(source.values + lane * 16);
  UNROLL
  for (int i = 0; i < (PIECES + WARP - 1) / WARP; i++) {
    const int piece = i * WARP + lane, cell = piece / Shape::CHUNKS, chunk = piece % Shape::CHUNKS;
    const u32 target = stage + (WARP % Shape::CHUNKS ? Shape::offset(cell, chunk)
                                                     : Shape::moved(first_target, i * (WARP / Shape::CHUNKS), 0));
    if (PIECES % WARP && piece >= PIECES) continue;
    if constexpr (WHOLE) {
      copy_async16(target, keys + i * WARP * 16, true);
      copy_async16(target + Shape::PLANE_BYTES, values + i * WARP * 16, true);
    } else {
      const i64 distance = cell * source.cell_bytes + chunk * 16;
      copy_async16(target, source.keys + distance, cell < source.cells);
      copy_async16(target + Shape::PLANE_BYTES, source.values + distance, cell < source.cells);
    }
  }
}

template <class Shape>
DEVICE void copy_slice(u32 stage, const SliceSource& source) {
  if (source.cells >= SLICE_CELLS && source.cell_bytes == Shape::CHUNKS * 16) {
    copy_cells<Shape, true>(stage, source);
  } else {
    copy_cells<Shape, false>(stage, source);
  }
  if constexpr (Shape::SCALED) {
    // The scales of cells without a token are used for nothing.
    const int lane = threadIdx.x % WARP;
    const f16* const scales = lane < 2 ? source.key_scales : source.value_scales;
    if (lane < 4) copy_async16(stage + 2 * Shape::PLANE_BYTES + lane * 16, scales + lane % 2 * 8, source.cells > 0);
  }
}

// ---- 8-bit elements -------------------------------------------------------------------------------------------------

// Two bytes of `word` as a pair of f16, those of int8 plus INT8_BIAS; exact.
template <class Cached, int FIRST, int SECOND>
DEVICE u32 widen_biased(u32 word) {
  if constexpr (same_type<Cached, i8>) {
    // Byte 4 is the first of the other word.
    return permute_bytes(word ^ 0x80808080u, 0x64646464u, FIRST | SECOND << 8 | 0x4040);
  } else {
#if __CUDA_ARCH__ >= 890
    return e4m3x2_to_f16x2((u16)permute_bytes(word, 0u, FIRST | SECOND << 4 | 0x4400));
#endif
  }
}

template <class Cached, int FIRST, int SECOND>
DEVICE u32 widen(u32 word) {
  const u32 pair = widen_biased<Cached, FIRST, SECOND>(word);
  return same_type<Cached, i8> ? subtract_f16x2(pair, 0x64806480u) : pair;
}

// ---- products -------------------------------------------------------------------------------------------------------

// The queries of a tile in registers: [step][fragment of multiply_add].
template <class Shape>
using QueryFragments = u32[Shape::K_STEPS][4];

// Dimension of a step's column 2 * (lane % 4) + 8 * half; its right neighbour belongs to the next dimension. A lane has
// four bytes of a cell's chunk of 8-bit keys: dimensions 4 * (lane % 4) to + 3 take the columns of both halves.
template <class Shape>
DEVICE int query_dimension(int step, int half) {
  const int column = threadIdx.x % 4;
  return step * 16 + (Shape::BYTES ? 4 * column + 2 * half : 2 * column + 8 * half);
}

// scores = queries * keys; scores[n][j] belongs to line lane / 4 + 8 * (j / 2) and cell 8 * n + 2 * (lane % 4) + j % 2.
// The keys' bias is taken off in advance, once for all dimensions: f32 has bits enough.
template <class Shape>
DEVICE void multiply_keys(float (&scores)[2][4], const QueryFragments<Shape>& queries,
                          const float (&key_bias)[2], u32 keys) {
  using Factor = typename Shape::Factor;
  using Cached = typename Shape::Cached;
  const int lane = threadIdx.x % WARP, cell = lane % 8 + lane / 16 * 8, parity = lane / 8 % 2;
  const u32 pair = Shape::offset(cell, parity);
  UNROLL
  for (int n = 0; n < 2; n++) {
    UNROLL
    for (int j = 0; j < 4; j++) scores[n][j] = -key_bias[j / 2];
  }
  UNROLL
  for (int i = 0; i < Shape::CHUNKS; i += 2) {
    const bool single = i + 1 == Shape::CHUNKS;
    u32 b[4];  // cells 0 to 7: chunks i and i + 1; cells 8 to 15: the same
    load_matrices(b, keys + (single ? Shape::offset(cell, i) : Shape::moved(pair, 0, i)));
    if constexpr (Shape::BYTES) {
      UNROLL
      for (int k = 0; k < (single ? 1 : 2); k++) {
        UNROLL
        for (int n = 0; n < 2; n++) {
          const u32 word = b[2 * n + k];
          const u32 b0 = widen_biased<Cached, 0, 1>(word), b1 = widen_biased<Cached, 2, 3>(word);
          multiply_add<Factor>(scores[n], queries[i + k], b0, b1);
        }
      }
    } else {
      multiply_add<Factor>(scores[0], queries[i / 2], b[0], b[1]);
      multiply_add<Factor>(scores[1], queries[i / 2], b[2], b[3]);
    }
  }
}

// Sums over cells of a tile's values: [8 dimensions][fragment of multiply_add].
template <class Shape>
using Accumulators = float[Shape::D / 8][4];

// values += weights * values of the slice. A transposed load gives a lane both bytes of a 16-bit piece for two cells:
// an accumulator takes the even or the odd dimensions of 16.
template <class Shape>
DEVICE void add_values(Accumulators<Shape>& sums, const u32 (&weights)[4], u32 values) {
  using Factor = typename Shape::Factor;
  using Cached = typename Shape::Cached;
  const int lane = threadIdx.x % WARP, cell = lane % 16, parity = lane / 16;
  const u32 pair = Shape::offset(cell, parity);
  UNROLL
  for (int i = 0; i < Shape::CHUNKS; i += 2) {
    const bool single = i + 1 == Shape::CHUNKS;
    u32 b[4];  // chunk i: cells 0 to 7 and 8 to 15; chunk i + 1: the same
    load_matrices_transposed(b, values + (single ? Shape::offset(cell, i) : Shape::moved(pair, 0, i)));
    UNROLL
    for (int k = 0; k < (single ? 1 : 2); k++) {
      const u32 first = b[2 * k], second = b[2 * k + 1];
      if constexpr (Shape::BYTES) {
        multiply_add<Factor>(sums[2 * (i + k)], weights, widen<Cached, 0, 2>(first), widen<Cached, 0, 2>(second));
        multiply_add<Factor>(sums[2 * (i + k) + 1], weights, widen<Cached, 1, 3>(first), widen<Cached, 1, 3>(second));
      } else {
        multiply_add<Factor>(sums[i + k], weights, first, second);
      }
    }
  }
}

// Stores a line (lane / 4 + 8 * half) of the accumulators with its dimensions in order.
template <class Shape>
DEVICE void store_line(float* line, const Accumulators<Shape>& sums, int half) {
  const int column = threadIdx.x % 4;
  if constexpr (Shape::BYTES) {
    UNROLL
    for (int i = 0; i < Shape::D / 16; i++) {
      const float(&even)[4] = sums[2 * i], (&odd)[4] = sums[2 * i + 1];
      *(float4*)(line + 16 * i + 4 * column) =
          make_float4(even[2 * half], odd[2 * half], even[2 * half + 1], odd[2 * half + 1]);
    }
  } else {
    UNROLL
    for (int i = 0; i < Shape::D / 8; i++) {
      *(float2*)(line + 8 * i + 2 * column) = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
    }
  }
}
