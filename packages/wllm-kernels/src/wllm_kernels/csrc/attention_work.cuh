// How decode attention is cut into work for a grid that just fills the GPU, whatever the lengths of the rows are.
//
// A segment is what can be attended on its own: a tile of 16 lines of a short row and one KV head, over all cells that
// the tile sees, counted in units of a few slices. All segments of a step, one behind the other, are cut into chunks of
// equal length, a chunk for each block of the grid. So every block reads the same number of cells; a segment may be
// cut, and its parts are merged (Sanovar et al., "Lean Attention: Hardware-Aware Scalable Attention Mechanism for the
// Decode-Phase of Transformers", 2024).

constexpr int TILE_LINES = 16;
constexpr int SLICE_CELLS = 16;  // neighbours in one block of the cache

// At most MERGE_FAN parts of a segment are merged at once: those of a long one meet in groups first, in several blocks.
constexpr int MERGE_FAN = 16;
constexpr int MERGE_LEVELS = 3;
// A line of partial results ends with its maximum and sum, as merged up to each level; 8 floats also spread the banks.
constexpr int STATISTICS = 2 * (MERGE_LEVELS + 1);

struct Row {
  int first_token;  // of its queries, in q
  int queries;
  int length;  // cached tokens, those of the queries included
};

// Where a block of the grid begins, and the cut of the whole step: one record a block, read by a single access.
struct alignas(16) WorkStart {
  int row_index;
  int member;         // segment within the row: head * tiles + tile
  int segment_start;  // in units, from the beginning of the step
  Row row;
  int chunk;  // units of a block
  int total;  // units of the step
};

// Where the slice of a unit lies in the cache.
struct SlicePlace {
  int block;
  int cell;
};

// A block finds the places of its first units in its plan: looking them up in the block table would cost it one more
// access after another before its first copy.
constexpr int PLANNED_UNITS = 4;

struct Plan {
  WorkStart* starts;   // [blocks]
  SlicePlace* places;  // [blocks, warps of a block, PLANNED_UNITS]
  int* arrivals;       // [MERGE_LEVELS, 2 * blocks] parts that came to a node of the merge; zero between launches
  int* units_before;   // [rows], in front of each row
};

DEVICE Plan plan_at(int* plan, int blocks, int warps) {
  SlicePlace* const places = (SlicePlace*)((WorkStart*)plan + blocks);
  int* const arrivals = (int*)(places + blocks * warps * PLANNED_UNITS);
  return {(WorkStart*)plan, places, arrivals, arrivals + MERGE_LEVELS * 2 * blocks};
}

// `capacity` is what a row of the block table can hold: a longer length would lead behind the table.
DEVICE Row read_row(const int* seq_lens, const int* cu_q, int index, int capacity) {
  const int first_token = cu_q[index];
  return {first_token, cu_q[index + 1] - first_token, smaller(seq_lens[index], capacity)};
}

DEVICE int count_tiles(const Row& row, int group) {
  return divide_up(row.queries * group, TILE_LINES);
}

// Position of the query that line `line` of the row belongs to; lines behind the last count as the last.
DEVICE int query_position(const Row& row, int line, int group) {
  return row.length - row.queries + smaller(line / group, row.queries - 1);
}

struct Cells {
  int first;  // a multiple of SLICE_CELLS: earlier blocks may have been freed
  int end;
};

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
