// Copies of prefill attention: how lines of queries, keys and values come into shared memory.
//
// A line is one row of a matrix in shared memory (the word row is kept for rows of the batch): the head_dim elements of
// one key, of one value, or of one head of one query. A tile of queries has QUERIES lines; line l of a row of the batch
// is head l % group of its token l / group, so that any group fills the tile and the heads that share keys share loads.
//
// Keys and values pass through a ring of SLOTS buffers of KEYS lines each: keys of tile 0, values of tile 0, keys of
// tile 1, and so on. Each warp copies the WARP_KEYS consecutive tokens of its slice, which lie in one block of the
// cache.
struct PrefillParameters {
  const void* q;           // [tokens, num_heads, head_dim]
  const void* kv;          // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const void* kv_scale;    // f16 [num_blocks, 2, num_kv_heads, block_size], of an int8 cache only
  const int* block_table;  // [rows, max_blocks]
  const int* seq_lens;     // [rows]
  const int* cu_q;         // [rows + 1]
  const int* tile_ends;    // [rows]: tiles of the rows up to this one, from attention_prefill_plan.cu
  void* out;               // [tokens, num_heads, head_dim]
  i64 q_token_bytes, q_head_bytes;
  i64 out_token_bytes, out_head_bytes;
  i64 block_bytes, plane_bytes, head_bytes, cell_bytes;  // of kv; its planes are keys and values
  i64 scale_block_bytes, scale_plane_bytes, scale_head_bytes;
  int rows, table_stride, max_blocks, num_kv_heads, group, block_size;  // the stride of block_table in elements
  int causal, window, format;
  u32 block_reciprocal;  // of block_size, times 2^32, rounded up
  float score_scale;  // from a score (capped, if there is a cap) to an exponent of 2
  float cap_scale;    // from a score to the exponent of 2 in its tanh; 0: no cap
};

// What the cache holds.
constexpr int FORMAT_HALF = 0;  // T itself
constexpr int FORMAT_I8 = 1;
constexpr int FORMAT_E4M3 = 2;

template <class Element, int HEAD_DIM, int FRAGMENTS_OF_WARP, int WARPS_OF_BLOCK, int KEYS_OF_TILE, int SLOTS_OF_RING>
struct PrefillShape {
  using T = Element;
  static constexpr int D = HEAD_DIM;
  static constexpr int FRAGMENTS = FRAGMENTS_OF_WARP;  // of 16 lines of queries, for each warp
  static constexpr int WARPS = WARPS_OF_BLOCK;
  static constexpr int THREADS = WARPS * WARP;
  static constexpr int QUERIES = 16 * FRAGMENTS * WARPS;
  static constexpr int KEYS = KEYS_OF_TILE;
  static constexpr int WARP_KEYS = KEYS / WARPS;
  static constexpr int SLOTS = SLOTS_OF_RING;
  static constexpr int CHUNKS = D / 8;  // of 16 bytes, in a line
  static constexpr int LINE_BYTES = 2 * D;
  static constexpr int QUERY_BYTES = QUERIES * LINE_BYTES;
  static constexpr int SLOT_BYTES = KEYS * LINE_BYTES;
  static constexpr int WARP_BYTES = WARP_KEYS * LINE_BYTES;
  static_assert(D % 16 == 0 && 16 % WARP_KEYS == 0, "a slice lies in one block of 16 cells or more");
};

// Chunks change places within a line so that the eight lines that a matrix load reads at one chunk lie in different
// banks. How many have to change places depends on the power of two that divides a line.
template <int CHUNKS>
constexpr int SWIZZLE_PERIOD = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;

// Offset of a chunk in a tile of lines.
template <int CHUNKS>
DEVICE u32 swizzled(u32 line, u32 chunk) {
  constexpr u32 PERIOD = SWIZZLE_PERIOD<CHUNKS>;
  return (line * CHUNKS + (chunk ^ (line / (8 / PERIOD) % PERIOD))) * 16;
}

// Address of chunk 2 * pair or 2 * pair + 1 of a line, from that of its chunk 0 or 1: one instruction.
template <int CHUNKS>
DEVICE u32 chunk_pair(u32 address, int pair) {
  constexpr int PAIRS = SWIZZLE_PERIOD<CHUNKS> / 2;
  return (address ^ (pair % PAIRS * 32)) + pair / PAIRS * PAIRS * 32;
}

// ---- queries --------------------------------------------------------------------------------------------------------

// A tile of queries of one row of the batch.
struct QueryTile {
  int row;          // p.rows: there is no such tile
  int first_token;  // of the row, in q
  int first_line;   // of the tile, within the row
  int num_lines;    // of the row; those of the tile may end behind it
  int phase;        // head of the first line, within its group
  int first_end;    // behind the last key that the first line sees
  int last_end;     // behind the last key that any line sees
};

// The first key that any line of the tile sees.
DEVICE int first_seen(const PrefillParameters& p, const QueryTile& t) {
  return p.window ? larger(t.first_end - p.window, 0) : 0;
}

// The row that a tile belongs to: as many rows end before it. Every warp counts for itself.
DEVICE int find_row(const PrefillParameters& p, int tile) {
  int row = 0;
  for (int first = 0; first < p.rows; first += WARP) {
    const int index = first + threadIdx.x % WARP;
    row += __popc(__ballot_sync(WHOLE_WARP, index < p.rows && p.tile_ends[index] <= tile));
  }
  return row;
}

template <class Shape>
DEVICE QueryTile read_query_tile(const PrefillParameters& p, int tile) {
  QueryTile t = {};
  t.row = find_row(p, tile);
  if (t.row == p.rows) return t;
  t.first_token = p.cu_q[t.row];
  const int num_queries = p.cu_q[t.row + 1] - t.first_token;
  const int length = smaller(p.seq_lens[t.row], p.max_blocks * p.block_size);
  // The last tile of a row sees the most keys and comes first: long work shall start early.
  t.first_line = (p.tile_ends[t.row] - 1 - tile) * Shape::QUERIES;
  t.num_lines = num_queries * p.group;
  t.phase = t.first_line % p.group;
  const int last_line = smaller(t.first_line + Shape::QUERIES, t.num_lines) - 1;
  t.first_end = p.causal ? length - num_queries + t.first_line / p.group + 1 : length;
  t.last_end = p.causal ? length - num_queries + last_line / p.group + 1 : length;
  return t;
}

// Lines behind the row become zeros.
template <class Shape>
DEVICE void copy_queries(const PrefillParameters& p, const QueryTile& t, int kv_head, u32 target) {
  const u8* heads = (const u8*)p.q + t.first_token * p.q_token_bytes + (i64)kv_head * p.group * p.q_head_bytes;
  UNROLL
  for (int i = 0; i < divide_up(Shape::QUERIES * Shape::CHUNKS, Shape::THREADS); i++) {
    const int piece = i * Shape::THREADS + threadIdx.x, chunk = piece % Shape::CHUNKS;
    const int line = piece / Shape::CHUNKS, line_of_row = t.first_line + line;
    const int token = line_of_row / p.group, head = line_of_row % p.group;
    copy_async16(target + swizzled<Shape::CHUNKS>(line, chunk),
                 heads + token * p.q_token_bytes + head * p.q_head_bytes + chunk * 16, line_of_row < t.num_lines);
  }
}

// ---- keys and values ------------------------------------------------------------------------------------------------

DEVICE int block_index(const PrefillParameters& p, int token) {
  return (u64)(u32)token * p.block_reciprocal >> 32;
}

// The block that holds the slice from `token` on.
template <class Shape>
DEVICE int look_up(const PrefillParameters& p, const QueryTile& t, int token) {
  // Entries in front of a window and behind the end may be stale.
  const bool seen = token < t.last_end && token + Shape::WARP_KEYS > first_seen(p, t);
  return seen ? p.block_table[(i64)t.row * p.table_stride + block_index(p, token)] : 0;
}

// Copies WARP_KEYS lines to `target`: eight lanes a line, four lines at a time. Zeros where `is_seen(line)` is false: a
// cell without a token may hold NaN, which would pass through a weight of 0.
template <class Shape, class IsSeen>
DEVICE void copy_lines(u32 target, const u8* source, i64 cell_bytes, IsSeen is_seen) {
  constexpr int CHUNKS = Shape::CHUNKS;
  const int lane = opaque(threadIdx.x) & (WARP - 1), first_line = lane / 8, first_chunk = lane % 8;
  source += first_line * cell_bytes + first_chunk * 16;
  target += swizzled<CHUNKS>(first_line, first_chunk);
  UNROLL
  for (int line = 0; line < Shape::WARP_KEYS; line += 4) {
    // Lines four apart differ in the highest bit of their swizzle.
    const u32 line_target = (target ^ (line / 4 % 2 * SWIZZLE_PERIOD<CHUNKS> * 8)) + line * Shape::LINE_BYTES;
    UNROLL
    for (int chunk = 0; chunk < CHUNKS; chunk += 8) {
      if (chunk + 8 <= CHUNKS || first_chunk < CHUNKS - chunk) {
        copy_async16(line_target + chunk * 16, source + chunk * 16, is_seen(first_line + line));
      }
    }
    source += 4 * cell_bytes;
  }
}

// An 8-bit slice is first copied as it is: elements into the second half of its lines' place, scales into the first.
template <class Shape>
constexpr int RAW_OFFSET = Shape::WARP_BYTES / 2;

template <class Shape>
DEVICE void copy_raw_lines(u32 target, const u8* source, i64 cell_bytes, const u8* scales, int first, int end) {
  constexpr int RAW_CHUNKS = Shape::CHUNKS / 2, PIECES = Shape::WARP_KEYS * RAW_CHUNKS;
  const int lane = opaque(threadIdx.x) & (WARP - 1);
  UNROLL
  for (int i = 0; i < divide_up(PIECES, WARP); i++) {
    const int piece = i * WARP + lane, line = piece / RAW_CHUNKS, chunk = piece % RAW_CHUNKS;
    if (piece < PIECES) {
      copy_async16(target + RAW_OFFSET<Shape> + piece * 16, source + line * cell_bytes + chunk * 16,
                   line >= first && line < end);
    }
  }
  if (scales && lane < Shape::WARP_KEYS / 8) copy_async16(target + lane * 16, scales + lane * 16, true);
}

constexpr int KEYS_PLANE = 0;
constexpr int VALUES_PLANE = 1;

// Copies the warp's slice from `token` on, which lies in `block`. With its values, `block` becomes that of the next
// tile: the block table is read half a tile ahead of its use.
template <class Shape, int PLANE>
DEVICE void copy_slice(const PrefillParameters& p, const QueryTile& t, int& block, int kv_head, int token, u32 target) {
  const int cell = token - block_index(p, token) * p.block_size;
  const int first = first_seen(p, t) - token, end = t.last_end - token;
  const u8* source = (const u8*)p.kv + block * p.block_bytes + PLANE * p.plane_bytes + kv_head * p.head_bytes +
                     cell * p.cell_bytes;
  if (p.format == FORMAT_HALF) {
    // Nearly all slices are seen as a whole, and need no comparisons.
    if (first <= 0 && end >= Shape::WARP_KEYS) {
      copy_lines<Shape>(target, source, p.cell_bytes, [](int) { return true; });
    } else {
      copy_lines<Shape>(target, source, p.cell_bytes, [=](int line) { return line >= first && line < end; });
    }
  } else {
    const u8* scales = nullptr;
    if (p.kv_scale) {
      scales = (const u8*)p.kv_scale + block * p.scale_block_bytes + PLANE * p.scale_plane_bytes +
               kv_head * p.scale_head_bytes + cell * 2;
    }
    copy_raw_lines<Shape>(target, source, p.cell_bytes, scales, first, end);
  }
  if constexpr (PLANE == VALUES_PLANE) block = look_up<Shape>(p, t, token + Shape::KEYS);
}

// Eight elements of T from eight bytes.
template <class T, class Stored>
DEVICE Vec16 expand(u32 low, u32 high, float scale) {
  Vec16 result;
  UNROLL
  for (int i = 0; i < 4; i++) {
    const u32 pair = (i < 2 ? low : high) >> (16 * (i % 2));
    if constexpr (same_type<Stored, i8>) {
      result.words[i] = pack2<T>((float)(i8)pair * scale, (float)(i8)(pair >> 8) * scale);
    } else {
#if __CUDA_ARCH__ >= 890
      const u32 halves = e4m3x2_to_f16x2((u16)pair);
      result.words[i] = same_type<T, f16> ? halves : pack2<T>(unpack_low<f16>(halves), unpack_high<f16>(halves));
#endif
    }
  }
  return result;
}

// Turns the raw slice that this thread's warp has copied into lines of T, in place: a round writes twice as far as it
// reads, and so never beyond what has been read. A rolled loop, for it needs few registers.
template <class Shape, class Stored>
DEVICE void expand_lines(u8* lines) {
  constexpr int RAW_CHUNKS = Shape::CHUNKS / 2, PIECES = Shape::WARP_KEYS * RAW_CHUNKS, ROUNDS = (PIECES + 31) / WARP;
  const int lane = opaque(threadIdx.x) & (WARP - 1);
  // In registers, since the first round overwrites them in memory: lane l has the scale of line l.
  float scales = 1.f;
  __syncwarp();
  if (same_type<Stored, i8> && lane < Shape::WARP_KEYS) scales = to_float(((const f16*)lines)[lane]);
  _Pragma("unroll 1")
  for (int i = 0; i < ROUNDS; i++) {
    const int piece = i * WARP + lane, line = piece / RAW_CHUNKS, chunk = piece % RAW_CHUNKS * 2;
    const float scale = __shfl_sync(WHOLE_WARP, scales, line);
    Vec16 raw = {};
    if (piece < PIECES) raw = load16(lines + RAW_OFFSET<Shape> + piece * 16);
    __syncwarp();
    if (piece < PIECES) {
      const u32(&words)[4] = raw.words;
      // Zeros of a cell without a token stay zeros: its scale may be NaN.
      const float finite_scale = words[0] | words[1] | words[2] | words[3] ? scale : 0.f;
      const Vec16 low = expand<typename Shape::T, Stored>(words[0], words[1], finite_scale);
      const Vec16 high = expand<typename Shape::T, Stored>(words[2], words[3], finite_scale);
      store16(lines + swizzled<Shape::CHUNKS>(line, chunk), low);
      store16(lines + swizzled<Shape::CHUNKS>(line, chunk + 1), high);
    }
  }
}

// Waits for this thread's part of the oldest slot, expands it if need be, and meets all others: afterwards the slot can
// be read, and the one in front of it can be filled again.
template <class Shape>
DEVICE void receive(const PrefillParameters& p, u8* lines_of_warp) {
  copy_async_wait<Shape::SLOTS - 2>();
  if (p.format == FORMAT_I8) expand_lines<Shape, i8>(lines_of_warp);
#if __CUDA_ARCH__ >= 890
  if (p.format == FORMAT_E4M3) expand_lines<Shape, e4m3>(lines_of_warp);
#endif
  __syncthreads();
}
