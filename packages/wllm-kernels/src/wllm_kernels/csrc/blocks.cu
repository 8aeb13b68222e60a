// Copies of whole blocks: within a KV cache, or between it and pinned memory of the host, which the GPU reads and writes
// over the bus. A thread owns one piece (16 bytes, or one) of up to COPY_BATCH pairs and reads all of them before it
// writes any. So within a batch a block may be source and target: no other thread touches these bytes.
// Grid: `parts` blocks of COPY_THREADS pieces for each batch of pairs.
struct CopyParameters {
  const u8* source;
  u8* target;
  const i64* pairs;         // [num_pairs, 2]: numbers of blocks
  i64 source_stride;        // bytes between blocks
  i64 target_stride;
  int num_pairs;
  int pieces;               // of a block
  int parts;
  int source_column;        // of `pairs`, or -1: block i belongs to pair i
  int target_column;
};

constexpr int COPY_THREADS = 256;
constexpr int COPY_BATCH = 8;

DEVICE Vec16 read_piece(const Vec16* source) {
  return load16(source);
}
DEVICE u8 read_piece(const u8* source) {
  return *source;
}
DEVICE void write_piece(Vec16* target, const Vec16& piece) {
  store16(target, piece);
}
DEVICE void write_piece(u8* target, u8 piece) {
  *target = piece;
}

DEVICE i64 block_of(const CopyParameters& p, int pair, int column) {
  return column < 0 ? pair : p.pairs[2 * (i64)pair + column];
}

template <class Piece>
DEVICE void copy_pieces(const CopyParameters& p) {
  const int first = blockIdx.x / p.parts * COPY_BATCH;
  const int piece = blockIdx.x % p.parts * COPY_THREADS + threadIdx.x;
  if (piece >= p.pieces) return;
  Piece held[COPY_BATCH];
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    if (first + k >= p.num_pairs) break;
    const u8* block = p.source + block_of(p, first + k, p.source_column) * p.source_stride;
    held[k] = read_piece((const Piece*)block + piece);
  }
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    if (first + k >= p.num_pairs) break;
    u8* block = p.target + block_of(p, first + k, p.target_column) * p.target_stride;
    write_piece((Piece*)block + piece, held[k]);
  }
}

KERNEL(copy_blocks, CopyParameters, COPY_THREADS, 1) {
  copy_pieces<Vec16>(params);
}
KERNEL(copy_blocks_bytes, CopyParameters, COPY_THREADS, 1) {
  copy_pieces<u8>(params);
}
