// Copies of whole blocks: within a KV cache, or between it and pinned memory of the host, which the GPU reads and writes
// over the bus. A thread owns one piece (16 bytes, or one) of up to COPY_BATCH pairs and reads all of them before it
// writes any: within a batch a block may be source and target, for no other thread touches these bytes. More pairs need
// a scratch block each and two launches: the first puts what belongs into a block that is some pair's source into
// scratch, the second brings it home.
// Grid: `parts` blocks of COPY_THREADS pieces for each batch of pairs.
struct CopyParameters {
  const u8* source;
  u8* target;
  u8* scratch;         // [num_pairs] blocks, or null if no block is both source and target of different batches
  const i64* pairs;    // [num_pairs, 2]: numbers of blocks
  i64 source_stride;   // bytes between blocks
  i64 target_stride;
  i64 scratch_stride;
  int num_pairs;
  int pieces;          // of a block
  int parts;
  int source_column;   // of `pairs`; the other one is the target's
  int second_launch;
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

DEVICE i64 source_block(const CopyParameters& p, int pair) {
  return p.pairs[2 * (i64)pair + p.source_column];
}
DEVICE i64 target_block(const CopyParameters& p, int pair) {
  return p.pairs[2 * (i64)pair + 1 - p.source_column];
}

// A bit for each pair of the batch whose target is the source of any pair, in every thread.
DEVICE u32 targets_that_are_sources(const CopyParameters& p, int first) {
  SHARED_MEMORY(shared);
  u32* found = (u32*)shared;
  if (threadIdx.x == 0) *found = 0;
  __syncthreads();
  const int batch = smaller(COPY_BATCH, p.num_pairs - first);
  u32 mine = 0;
  for (int pair = threadIdx.x; pair < p.num_pairs; pair += COPY_THREADS) {
    const i64 block = source_block(p, pair);
    for (int k = 0; k < batch; k++) mine |= (block == target_block(p, first + k) ? 1u : 0u) << k;
  }
  if (mine) atomicOr(found, mine);
  __syncthreads();
  return *found;
}

template <class Piece>
DEVICE void copy_pieces(const CopyParameters& p) {
  const int first = blockIdx.x / p.parts * COPY_BATCH;
  const int piece = blockIdx.x % p.parts * COPY_THREADS + threadIdx.x;
  const u32 over_scratch = p.scratch ? targets_that_are_sources(p, first) : 0;
  if (piece >= p.pieces) return;
  Piece held[COPY_BATCH];
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    const int pair = first + k;
    if (pair >= p.num_pairs) break;
    if (!p.second_launch) {
      held[k] = read_piece((const Piece*)(p.source + source_block(p, pair) * p.source_stride) + piece);
    } else if (over_scratch >> k & 1) {
      held[k] = read_piece((const Piece*)(p.scratch + pair * p.scratch_stride) + piece);
    }
  }
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    const int pair = first + k;
    if (pair >= p.num_pairs) break;
    const bool detour = over_scratch >> k & 1;
    if (detour && !p.second_launch) {
      write_piece((Piece*)(p.scratch + pair * p.scratch_stride) + piece, held[k]);
    } else if (detour || !p.second_launch) {
      write_piece((Piece*)(p.target + target_block(p, pair) * p.target_stride) + piece, held[k]);
    }
  }
}

KERNEL(copy_blocks, CopyParameters, COPY_THREADS, 1) {
  copy_pieces<Vec16>(params);
}
KERNEL(copy_blocks_bytes, CopyParameters, COPY_THREADS, 1) {
  copy_pieces<u8>(params);
}
