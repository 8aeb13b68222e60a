// The bookkeeping of a step: what its rows read from the tables of all slots before the model runs, and what the sampled
// tokens write into them after it.

// The threads of a block, of both kernels.
constexpr int STEP_THREADS = 256;

// A row of the step: {slot or -1 for padding, start, count, samples}.
constexpr int ROW_FIELDS = 4;

struct Row {
  int slot, start, count, samples;
};

DEVICE Row row_at(const int* rows, int index) {
  const int* fields = rows + ROW_FIELDS * index;
  return {fields[0], fields[1], fields[2], fields[3]};
}

// A new block of a slot: {slot or -1 for padding, column of its table, block}.
constexpr int ENTRY_FIELDS = 3;

struct AppendParameters {
  const int* entries;  // [num_entries]
  int* block_tables;   // [slots, ..]
  i64 tables_stride;
  int num_entries;
};

KERNEL(append_blocks, AppendParameters, STEP_THREADS, 1) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int index = blockIdx.x * STEP_THREADS + threadIdx.x;
  if (index >= params.num_entries) return;
  const int* fields = params.entries + ENTRY_FIELDS * index;
  const int slot = fields[0];
  if (slot >= 0) params.block_tables[slot * params.tables_stride + fields[1]] = fields[2];
}

struct PrepareParameters {
  const int* rows;
  const int* cu_q;          // [num_rows + 1]: where each row's tokens begin
  const int* token_table;   // [slots, ..]
  const int* block_tables;  // [slots, ..]
  i64* input_ids;           // [num_tokens]
  i64* positions;           // [num_tokens]
  i64* cells;               // [num_tokens]
  int* seq_lens;            // [num_rows]
  int* block_table;         // [num_rows, num_blocks]
  i64 token_stride, tables_stride, block_stride;  // elements between rows of the three tables
  int num_rows, num_tokens, num_blocks;
  int block_size;
  int token_parts;          // blocks of threads for the tokens; the others copy block tables
  int row_parts;            // blocks of threads for the block table of one row
};

// The row that owns a token: the first one that ends behind it, or num_rows.
DEVICE int row_of_token(const PrepareParameters& p, int token) {
  int first = 0, last = p.num_rows;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (p.cu_q[middle + 1] > token) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

DEVICE void prepare_token(const PrepareParameters& p, int token) {
  const int index = row_of_token(p, token);
  i64 id = 0, position = 0, cell = -1;
  if (index < p.num_rows) {
    const Row row = row_at(p.rows, index);
    if (row.slot >= 0) {
      const int at = row.start + token - p.cu_q[index];
      const int block = p.block_tables[row.slot * p.tables_stride + at / p.block_size];
      id = p.token_table[row.slot * p.token_stride + at];
      position = at;
      cell = (i64)block * p.block_size + at % p.block_size;
    }
  }
  p.input_ids[token] = id;
  p.positions[token] = position;
  p.cells[token] = cell;
}

DEVICE void prepare_block_table(const PrepareParameters& p, int index, int column) {
  const Row row = row_at(p.rows, index);
  if (column == 0) p.seq_lens[index] = row.slot >= 0 ? row.start + row.count : 0;
  if (column >= p.num_blocks) return;
  const int block = row.slot >= 0 ? p.block_tables[row.slot * p.tables_stride + column] : 0;
  p.block_table[index * p.block_stride + column] = block;
}

KERNEL(prepare_step, PrepareParameters, STEP_THREADS, 1) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int part = blockIdx.x;
  if (part < params.token_parts) {
    const int token = part * STEP_THREADS + threadIdx.x;
    if (token < params.num_tokens) prepare_token(params, token);
  } else {
    const int index = (part - params.token_parts) / params.row_parts;
    const int column = (part - params.token_parts) % params.row_parts * STEP_THREADS + threadIdx.x;
    prepare_block_table(params, index, column);
  }
}

struct AdvanceParameters {
  const int* rows;
  const i64* tokens;   // one for each row that samples, in their order
  int* token_table;    // [slots, max_tokens]
  int* lengths;        // [slots]
  i64* results;        // [num_tokens]: a copy of the tokens, which may lie in memory of the host, or null
  i64 token_stride;
  int num_rows, num_tokens;
  int max_tokens;
};

// A failed row has the token -1, and one without a token counts as failed: both get an id that can be looked up, for the
// next step may already be on its way. A token past the end of the table has no place and needs none.
DEVICE void advance_row(const AdvanceParameters& p, const Row& row, bool samples, int token_index) {
  const int end = row.start + row.count;
  p.lengths[row.slot] = end + (samples ? 1 : 0);
  if (!samples) return;
  const bool has_token = token_index < p.num_tokens;
  const i64 token = has_token ? p.tokens[token_index] : -1;
  if (p.results && has_token) p.results[token_index] = token;
  if (end >= p.max_tokens) return;
  p.token_table[row.slot * p.token_stride + end] = (int)larger<i64>(token, 0);
}

// Grid: one block, for a row finds its token by counting the sampling rows in front of it.
KERNEL(advance_step, AdvanceParameters, STEP_THREADS, 1) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  SHARED_MEMORY(shared);
  int* warp_counts = (int*)shared;  // of rows that sample
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int before = 0;  // sampling rows in front of this round
  for (int first = 0; first < params.num_rows; first += STEP_THREADS) {
    const int index = first + threadIdx.x;
    Row row = {-1, 0, 0, 0};
    if (index < params.num_rows) row = row_at(params.rows, index);
    const bool samples = row.slot >= 0 && row.samples > 0;
    const u32 sampling = __ballot_sync(WHOLE_WARP, samples);
    if (lane == 0) warp_counts[warp] = __popc(sampling);
    __syncthreads();
    int token_index = before + __popc(sampling & ((1u << lane) - 1));
    for (int other = 0; other < STEP_THREADS / WARP; other++) {
      if (other < warp) token_index += warp_counts[other];
      before += warp_counts[other];
    }
    // The counts are free again for the next round.
    __syncthreads();
    if (row.slot >= 0) advance_row(params, row, samples, token_index);
  }
}
