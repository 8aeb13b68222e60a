// Rows of logits as a block reads them: eight at a time, whatever their type; floats as integers of the same order; and
// what the blocks that share a row need. A row is cut into slices of `slice_size` logits, one block each.
constexpr int LOGITS_THREADS = 512;
constexpr int LOGITS_WARPS = LOGITS_THREADS / WARP;
constexpr int GROUP = 8;                        // logits that a thread reads at once
constexpr int STRIDE = LOGITS_THREADS * GROUP;  // logits that a block reads at once

DEVICE float infinity() {
  return __uint_as_float(0x7f800000u);
}

// Element types, as the launch code numbers them.
constexpr int F32 = 0;
constexpr int F16 = 1;

struct LogitRow {
  const u8* start;
  int type;
  bool aligned;  // to 16 bytes
};

DEVICE LogitRow row_of(const void* logits, int type, i64 first_element) {
  const u8* start = (const u8*)logits + first_element * (type == F32 ? 4 : 2);
  return {start, type, ((u64)start & 15) == 0};
}

DEVICE float half_to_float(u16 bits, int type) {
  return type == F16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

DEVICE float read_logit(const LogitRow& row, int id) {
  return row.type == F32 ? ((const float*)row.start)[id] : half_to_float(((const u16*)row.start)[id], row.type);
}

// Logits first.. of the row; -infinity for those from `end` on. `first` is a multiple of GROUP.
DEVICE void read_group(const LogitRow& row, int first, int end, float (&values)[GROUP]) {
  if (!row.aligned || first + GROUP > end) {
    UNROLL
    for (int i = 0; i < GROUP; i++) values[i] = first + i < end ? read_logit(row, first + i) : -infinity();
  } else if (row.type == F32) {
    const Vec16 low = load16((const float*)row.start + first), high = load16((const float*)row.start + first + 4);
    UNROLL
    for (int i = 0; i < 4; i++) {
      values[i] = __uint_as_float(low.words[i]);
      values[4 + i] = __uint_as_float(high.words[i]);
    }
  } else {
    const Vec16 pairs = load16((const u16*)row.start + first);
    UNROLL
    for (int i = 0; i < 4; i++) {
      values[2 * i] = half_to_float((u16)pairs.words[i], row.type);
      values[2 * i + 1] = half_to_float((u16)(pairs.words[i] >> 16), row.type);
    }
  }
}

// Calls visit(logit, token id, whether it is one of begin..end) in every thread of the block equally often, so that
// `visit` may vote. `begin` is a multiple of GROUP.
template <class Visit>
DEVICE void visit_logits(const LogitRow& row, int begin, int end, const Visit& visit) {
  constexpr int AHEAD = 2;  // groups under way at once
  for (int base = begin; base < end; base += AHEAD * STRIDE) {
    const int first = base + threadIdx.x * GROUP;
    float values[AHEAD][GROUP];
    UNROLL
    for (int group = 0; group < AHEAD; group++) read_group(row, first + group * STRIDE, end, values[group]);
    UNROLL
    for (int group = 0; group < AHEAD; group++) {
      if (base + group * STRIDE >= end) break;
      UNROLL
      for (int i = 0; i < GROUP; i++) {
        const int id = first + group * STRIDE + i;
        visit(values[group][i], id, id < end);
      }
    }
  }
}

// Unsigned integers in the order of the floats. Both zeros are equal; NaN is the largest.
DEVICE u32 to_ordered(float value) {
  const u32 bits = __float_as_uint(value + 0.f);
  if (value != value) return 0xffffffffu;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float from_ordered(u32 ordered) {
  return __uint_as_float(ordered >> 31 ? ordered ^ 0x80000000u : ~ordered);
}

// A token with its score: the largest is the one with the largest score, among equals the one with the lowest id. Never
// 0, which stands for none.
DEVICE u64 to_best(float score, int id) {
  return (u64)to_ordered(score) << 32 | ~(u32)id;
}
DEVICE float score_of(u64 best) {
  return from_ordered((u32)(best >> 32));
}
DEVICE int id_of(u64 best) {
  return (int)~(u32)best;
}

DEVICE u64 warp_largest(u64 value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value = larger(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
  }
  return value;
}

// Shared memory of the functions below, which is free again after the next barrier.
struct Scratch {
  u64 warps[LOGITS_WARPS];
  u64 before;
  u64 amount;
  int interval;
  u32 arrived;
};

// The largest value of the block, in every thread.
DEVICE u64 block_largest(u64 value, Scratch& scratch) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  value = warp_largest(value);
  if (lane == 0) scratch.warps[warp] = value;
  __syncthreads();
  return warp_largest(lane < LOGITS_WARPS ? scratch.warps[lane] : 0);
}

// The sum over the block, in every thread.
DEVICE u64 block_total(u64 value, Scratch& scratch) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  if (lane == 0) scratch.warps[warp] = value;
  __syncthreads();
  u64 total = 0;
  for (int i = 0; i < LOGITS_WARPS; i++) total += scratch.warps[i];
  return total;
}

// The largest of what the slices of a row have written, in every thread of the calling warp.
DEVICE u64 largest_of_slices(const u64* slices, int num_slices) {
  u64 best = 0;
  for (int i = threadIdx.x % WARP; i < num_slices; i += WARP) best = larger(best, load_volatile(&slices[i]));
  return warp_largest(best);
}

// Whether this block is the last of `num_blocks` to come here: then it sees what the others wrote before.
DEVICE bool arrives_last(u32* arrived, int num_blocks, Scratch& scratch) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) scratch.arrived = atomicAdd(arrived, 1u);
  __syncthreads();
  __threadfence();
  return scratch.arrived == (u32)num_blocks - 1;
}

// Appends `entry` of those lanes that want it to a list of `taken` entries; whole warps call it.
DEVICE void append(bool wanted, u64 entry, u64* list, u32* taken) {
  const u32 votes = __ballot_sync(WHOLE_WARP, wanted);
  if (votes == 0) return;
  const int lane = threadIdx.x % WARP, leader = __ffs((int)votes) - 1;
  u32 first = 0;
  if (lane == leader) first = atomicAdd(taken, (u32)__popc(votes));
  first = __shfl_sync(WHOLE_WARP, first, leader);
  if (wanted) list[first + __popc(votes & ((1u << lane) - 1))] = entry;
}
