// Where a running sum over sorted keys reaches a target, without sorting: a histogram over intervals of keys shows the
// interval, a finer one over that interval the next, until it is a single key (a radix select: Alabi et al., Fast
// k-selection algorithms for graphics processing units, 2012). All sums are integers, so that no order of additions
// matters: a row's result is the same in every run and whatever its neighbours.
constexpr int INTERVAL_BITS = 11;
constexpr int INTERVALS = 1 << INTERVAL_BITS;

// A token's distance is how far its logit is below the largest of the row, over the temperature: the bits of that
// float, which is never negative, are the key by which tokens are sorted, the best first. No limit lets an infinite
// distance through: banned tokens, and what is read behind the end of a row.
constexpr u32 LAST_FINITE = 0x7f7fffffu;
constexpr int DISTANCE_BITS = 31;

DEVICE u32 distance_key(float logit, float largest, float temperature) {
  return __float_as_uint(__fdiv_rn(__fsub_rn(largest, logit), temperature));
}

// The intervals of the first histogram: 64 for each power of two from 2**-8 to 2**23, the outer ones open.
DEVICE int interval_of(u32 key) {
  constexpr int MANTISSA_BITS = 6;
  constexpr int FIRST = (127 - 8) << MANTISSA_BITS;
  const int index = (int)(key >> (23 - MANTISSA_BITS)) - FIRST;
  return smaller(larger(index, 0), INTERVALS - 1);
}

// exp(-distance) as a multiple of 2**-42: sums over up to 2**22 tokens fit.
constexpr float MASS_OF_LARGEST = 4398046511104.f;
DEVICE u64 mass_of(u32 key) {
  return (u64)(expf(-__uint_as_float(key)) * MASS_OF_LARGEST);
}

// Two tallies of the intervals in shared memory: how many tokens, and how much mass (in two words each, because shared
// memory adds 32 bits at a time).
struct Counts {
  u32* counts;

  void clear(int interval) const { counts[interval] = 0; }
  void add(int interval, u32) const { atomicAdd(&counts[interval], 1u); }
  u64 amount(int interval) const { return counts[interval]; }
};

struct Masses {
  u32* low;
  u32* high;

  void clear(int interval) const { low[interval] = high[interval] = 0; }
  void add(int interval, u32 key) const {
    const u64 mass = mass_of(key);
    const u32 before = atomicAdd(&low[interval], (u32)mass);
    const u32 carried = (u32)(mass >> 32) + (before + (u32)mass < before);
    if (carried) atomicAdd(&high[interval], carried);
  }
  u64 amount(int interval) const { return (u64)high[interval] << 32 | low[interval]; }
};

template <class Tally>
DEVICE void clear(const Tally& tally) {
  for (int i = threadIdx.x; i < INTERVALS; i += LOGITS_THREADS) tally.clear(i);
  __syncthreads();
}

struct Reached {
  int interval;  // the first up to which the amounts sum up to the target; INTERVALS if they never do
  u64 before;    // the sum in front of it
  u64 amount;    // its own
};

// A target is at least 1.
template <class Tally>
DEVICE Reached first_reaching(const Tally& tally, u64 target, Scratch& scratch) {
  constexpr int OWN = INTERVALS / LOGITS_THREADS;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = threadIdx.x * OWN;
  u64 own = 0;
  UNROLL
  for (int i = 0; i < OWN; i++) own += tally.amount(first + i);
  u64 up_to_here = own;
  UNROLL
  for (int distance = 1; distance < WARP; distance *= 2) {
    const u64 others = __shfl_up_sync(WHOLE_WARP, up_to_here, distance);
    if (lane >= distance) up_to_here += others;
  }
  if (lane == WARP - 1) scratch.warps[warp] = up_to_here;
  if (threadIdx.x == 0) scratch.interval = INTERVALS;
  __syncthreads();
  u64 before = up_to_here - own;
  for (int i = 0; i < warp; i++) before += scratch.warps[i];
  if (before < target && target <= before + own) {  // in one thread at most
    int i = first;
    while (before + tally.amount(i) < target) before += tally.amount(i++);
    scratch.interval = i;
    scratch.before = before;
    scratch.amount = tally.amount(i);
  }
  __syncthreads();
  return {scratch.interval, scratch.before, scratch.amount};
}

// A key such that the tokens with that key or a lower one are the fewest whose tally reaches `target`, which the tally
// of all keys up to `limit` must reach. Source::visit(f) calls f(key, token id) for each of this thread's tokens.
template <class Key, class Tally, class Source>
DEVICE Key select(const Source& source, const Tally& tally, int key_bits, Key limit, u64 target, Scratch& scratch) {
  Key low = 0;
  for (int shift = key_bits; shift > 0;) {
    const int finer = larger(shift - INTERVAL_BITS, 0);
    clear(tally);
    source.visit([&](Key key, int) {
      if (key <= limit && key >> shift == low >> shift) tally.add((int)((key - low) >> finer), (u32)key);
    });
    __syncthreads();
    const Reached reached = first_reaching(tally, target, scratch);
    low += (Key)reached.interval << finer;
    target -= reached.before;
    if (reached.amount == target) return low + ((Key)1 << finer) - 1;  // the interval as a whole
    shift = finer;
  }
  return low;
}
