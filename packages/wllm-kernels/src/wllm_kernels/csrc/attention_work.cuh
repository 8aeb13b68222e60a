// How decode attention is cut into work for a grid that just fills the GPU, whatever the lengths of the rows are.
//
// A segment is what can be attended on its own: a tile of 16 lines of a short row and one KV head, over all cells that
// the tile sees, counted in units of a slice for each warp of a block. The segments of a step lie on a line, which is
// cut into chunks of equal length, a chunk for each block of the grid. There are two ways to lay them:
// - aligned: each begins with a chunk, so that a block has cells of one segment only and few parts are to be merged
//   (Dao et al., "Flash-Decoding for long-context inference", 2023);
// - chained: one follows the other, so that all blocks have the same to do whatever the lengths are (Sanovar et al.,
//   "Lean Attention: Hardware-Aware Scalable Attention Mechanism for the Decode-Phase of Transformers", 2024).

constexpr int TILE_LINES = 16;
constexpr int SLICE_CELLS = 16;  // neighbours in one block of the cache

// A block merges at most MERGE_FAN parts of a segment: those of a longer one meet in groups first, in several blocks.
// A level more costs 1.5 us on an H200; 33 parts, of the 8 heads of one long row on 132 multiprocessors, must not take two.
// MERGE_AT_ONCE parts are on their way together, as many as the registers hold.
constexpr int MERGE_FAN = 40;
constexpr int MERGE_AT_ONCE = 8;
constexpr int MERGE_LEVELS = 3;
// A line of partial results ends with its maximum and sum, as merged up to each level; 8 floats also spread the banks.
constexpr int STATISTICS = 2 * (MERGE_LEVELS + 1);

struct Row {
  int first_token;  // of its queries, in q
  int queries;
  int length;  // cached tokens, those of the queries included
};

struct Cells {
  int first;  // a multiple of SLICE_CELLS: earlier blocks may have been freed
  int end;
};

struct Segment {
  int kv_head, tile;
  Cells cells;      // that any line of the tile sees
  int first_block;  // whose chunk has a part of it
  int parts;
};

// What a block does. All that takes a division is in it: in front of the first copy each is a wait.
struct alignas(16) WorkStart {
  int row_index;
  int member;         // segment within the row: head * tiles + tile
  int segment_start;  // in units, from the beginning of the line
  Row row;
  int chunk;  // units of a block
  int end;    // of this block's units, which begin with chunk * blockIdx.x; 0: there is nothing to do
  Segment segment;
};

// All of it at once, also what is looked at only if `end` says so.
DEVICE WorkStart load_start(const WorkStart* start) {
  constexpr int PIECES = sizeof(WorkStart) / 16;
  Vec16 pieces[PIECES];
  UNROLL
  for (int i = 0; i < PIECES; i++) pieces[i] = load16_volatile((const u8*)start + 16 * i);
  const auto word = [&](int i) { return (int)pieces[i / 4].words[i % 4]; };
  return {word(0), word(1), word(2), {word(3), word(4), word(5)}, word(6), word(7),
          {word(8), word(9), {word(10), word(11)}, word(12), word(13)}};
}

// Units left free behind a chained segment: about as long as a block takes to begin another one.
constexpr int CHAIN_GAP = 2;

// The segments of a row, all of them as long as the longest.
struct RowWork {
  int segments;
  int units;  // of a segment
};

struct Plan {
  WorkStart* starts;  // [blocks]
  int* arrivals;      // [MERGE_LEVELS, 2 * blocks] parts that came to a node of the merge; zero between launches
  RowWork* work;      // [rows]
  int* units_before;  // [rows], in front of each row
};

DEVICE Plan plan_at(int* plan, int blocks, int rows) {
  WorkStart* const starts = (WorkStart*)plan;
  int* const arrivals = (int*)(starts + blocks);
  RowWork* const work = (RowWork*)(arrivals + MERGE_LEVELS * 2 * blocks);
  return {starts, arrivals, work, (int*)(work + rows)};
}

// `capacity` is what a row of the block table can hold: a longer length would lead behind the table.
DEVICE Row read_row(const int* seq_lens, const int* cu_q, int index, int capacity) {
  const int first_token = cu_q[index];
  return {first_token, cu_q[index + 1] - first_token, smaller(seq_lens[index], capacity)};
}

DEVICE int count_tiles(const Row& row, int group) {
  return divide_up(row.queries * group, TILE_LINES);
}

// The query that line `line` of the row belongs to; lines behind the last count as the last. Mostly there is one, and no
// division to wait for.
DEVICE int query_of_line(const Row& row, int line, int group) {
  return row.queries == 1 ? 0 : smaller(line / group, row.queries - 1);
}

DEVICE int query_position(const Row& row, int line, int group) {
  return row.length - row.queries + query_of_line(row, line, group);
}

// What any line of a tile sees.
DEVICE Cells visible_cells(const Row& row, int tile, int group, int causal, int window) {
  const int first_line = tile * TILE_LINES, last_line = first_line + TILE_LINES - 1;
  const int end = causal ? query_position(row, last_line, group) + 1 : row.length;
  const int first = window ? query_position(row, first_line, group) - window + 1 : 0;
  return {larger(first, 0) / SLICE_CELLS * SLICE_CELLS, larger(end, 0)};
}

// At least one, so that lines which see nothing are written too.
DEVICE int count_units(const Cells& cells, int unit_cells) {
  return larger(divide_up(cells.end - cells.first, unit_cells), 1);
}

// Of a row's longest segment: what its tiles see together.
DEVICE int units_of_segments(const Row& row, int group, int causal, int window, int unit_cells) {
  const int last_tile = count_tiles(row, group) - 1;
  const int first = visible_cells(row, 0, group, causal, window).first;
  return count_units({first, visible_cells(row, last_tile, group, causal, window).end}, unit_cells);
}

// `chunk`: units of a block; `segment_start`: in units, from the beginning of the line.
DEVICE Segment find_segment(const Row& row, int member, int segment_start, int chunk, int group, int causal, int window,
                            int unit_cells) {
  const int tiles = count_tiles(row, group), kv_head = member / tiles, tile = member % tiles;
  const Cells cells = visible_cells(row, tile, group, causal, window);
  const int first_block = segment_start / chunk, last_unit = segment_start + count_units(cells, unit_cells) - 1;
  return {kv_head, tile, cells, first_block, last_unit / chunk - first_block + 1};
}
