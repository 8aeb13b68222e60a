// Copies of whole blocks: within a KV cache, or between it and pinned memory of the host, which the GPU reads and writes
// over the bus. A thread owns one piece (16 bytes, or one) of a batch of pairs and reads all of them before it writes
// any. Pairs that a batch does not hold together may be tangled: one writes what the other reads. All tangled pairs go
// through scratch, in the last blocks of the grid, where a thread owns a piece of every pair: so one launch is enough
// and no thread waits for another block.
// Grid: `parts` blocks of COPY_THREADS pieces for each batch of pairs, and `parts` more if there is scratch.
struct CopyParameters {
  const u8* source;
  u8* target;
  u8* scratch;         // [num_pairs] blocks; null if pairs cannot be tangled
  const i64* pairs;    // [num_pairs, 2]: numbers of blocks
  i64 source_stride;   // bytes between blocks
  i64 target_stride;
  i64 scratch_stride;
  int num_pairs;
  int pieces;          // of a block
  int parts;
  int source_column;   // of `pairs`; the other one is the target's
};

constexpr int COPY_THREADS = 256;
constexpr int COPY_BATCH = 4;
constexpr u32 SET_BITS = 65536;
constexpr int SET_WORDS = SET_BITS / 32;

// Which blocks are a source, and which a target. Those whose numbers are SET_BITS apart look alike; a pair may then be
// taken for tangled, which costs time only.
struct BlockSets {
  u32* sources;
  u32* targets;
};

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
template <class Piece>
DEVICE const Piece* source_of(const CopyParameters& p, int pair) {
  return (const Piece*)(p.source + source_block(p, pair) * p.source_stride);
}
template <class Piece>
DEVICE Piece* target_of(const CopyParameters& p, int pair) {
  return (Piece*)(p.target + target_block(p, pair) * p.target_stride);
}
template <class Piece>
DEVICE Piece* scratch_of(const CopyParameters& p, int pair) {
  return (Piece*)(p.scratch + pair * p.scratch_stride);
}

DEVICE void insert(u32* set, i64 block) {
  const u32 bit = (u32)block % SET_BITS;
  atomicOr(&set[bit / 32], 1u << bit % 32);
}
DEVICE bool contains(const u32* set, i64 block) {
  const u32 bit = (u32)block % SET_BITS;
  return set[bit / 32] >> bit % 32 & 1;
}

// The sets of all pairs, made by the whole block.
DEVICE BlockSets collect_blocks(const CopyParameters& p) {
  SHARED_MEMORY(shared);
  const BlockSets sets = {(u32*)shared, (u32*)shared + SET_WORDS};
  for (int i = threadIdx.x; i < 2 * SET_WORDS / 4; i += COPY_THREADS) store16(shared + 16 * i, {{0, 0, 0, 0}});
  __syncthreads();
  for (int pair = threadIdx.x; pair < p.num_pairs; pair += COPY_THREADS) {
    insert(sets.sources, source_block(p, pair));
    insert(sets.targets, target_block(p, pair));
  }
  __syncthreads();
  return sets;
}

// Two pairs of which one writes what the other reads are both tangled.
DEVICE bool is_tangled(const CopyParameters& p, const BlockSets& sets, int pair) {
  return contains(sets.sources, target_block(p, pair)) || contains(sets.targets, source_block(p, pair));
}

// A piece of a batch of pairs; those that are tangled are left to others.
template <class Piece>
DEVICE void copy_batch(const CopyParameters& p, int first, int piece) {
  const int count = piece < p.pieces ? smaller(COPY_BATCH, p.num_pairs - first) : 0;
  Piece held[COPY_BATCH];
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    if (k >= count) break;
    held[k] = read_piece(source_of<Piece>(p, first + k) + piece);
  }
  // The sets are made while the pieces are on their way.
  BlockSets sets = {nullptr, nullptr};
  if (p.scratch) sets = collect_blocks(p);
  UNROLL
  for (int k = 0; k < COPY_BATCH; k++) {
    if (k >= count) break;
    if (p.scratch && is_tangled(p, sets, first + k)) continue;
    write_piece(target_of<Piece>(p, first + k) + piece, held[k]);
  }
}

// A piece of all tangled pairs into scratch, or home from there.
template <class Piece, bool HOME>
DEVICE void move_tangled(const CopyParameters& p, const BlockSets& sets, int piece) {
  for (int first = 0; first < p.num_pairs; first += COPY_BATCH) {
    Piece held[COPY_BATCH];
    u32 tangled = 0;
    UNROLL
    for (int k = 0; k < COPY_BATCH; k++) {
      const int pair = first + k;
      if (pair >= p.num_pairs || !is_tangled(p, sets, pair)) continue;
      tangled |= 1u << k;
      held[k] = read_piece((HOME ? scratch_of<Piece>(p, pair) : source_of<Piece>(p, pair)) + piece);
    }
    UNROLL
    for (int k = 0; k < COPY_BATCH; k++) {
      if (!(tangled >> k & 1)) continue;
      write_piece((HOME ? target_of<Piece>(p, first + k) : scratch_of<Piece>(p, first + k)) + piece, held[k]);
    }
  }
}

template <class Piece>
DEVICE void copy_tangled(const CopyParameters& p, int piece) {
  const BlockSets sets = collect_blocks(p);
  bool found = false;
  for (int pair = threadIdx.x; pair < p.num_pairs; pair += COPY_THREADS) found |= is_tangled(p, sets, pair);
  if (!__syncthreads_or(found) || piece >= p.pieces) return;
  move_tangled<Piece, false>(p, sets, piece);
  move_tangled<Piece, true>(p, sets, piece);
}

template <class Piece>
DEVICE void copy_pieces(const CopyParameters& p) {
  const int first = blockIdx.x / p.parts * COPY_BATCH;
  const int piece = blockIdx.x % p.parts * COPY_THREADS + threadIdx.x;
  if (first < p.num_pairs) {
    copy_batch<Piece>(p, first, piece);
  } else {
    copy_tangled<Piece>(p, piece);
  }
}

KERNEL(copy_blocks, CopyParameters, COPY_THREADS, 4) {
  copy_pieces<Vec16>(params);
}
KERNEL(copy_blocks_bytes, CopyParameters, COPY_THREADS, 4) {
  copy_pieces<u8>(params);
}
