// The sampler's noise, a pure function of (seed, position, token id): the twin of reference/noise.py, which gives its
// definition. The integers are the same bits there and here; the two logarithms may differ in their last bit.
struct NoiseKey {
  u32 low, high;
};

DEVICE u64 mix64(u64 x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

DEVICE u32 fmix32(u32 x) {
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

DEVICE NoiseKey noise_key(i64 seed, i64 position) {
  constexpr u64 GAMMA = 0x9e3779b97f4a7c15ull;
  const u64 key = mix64(mix64((u64)seed + GAMMA) + ((u64)position + 1) * GAMMA);
  return {(u32)key, (u32)(key >> 32)};
}

// Uniform in (0, 1).
DEVICE float noise_uniform(const NoiseKey& key, int id) {
  const u32 hash = fmix32(fmix32((u32)id * 0x9e3779b9u + key.low) ^ key.high);
  const float uniform = ((float)(int)(hash & 0x7fffffffu) + 0.5f) * 0x1p-31f;
  return fminf(uniform, 1.f - 0x1p-24f);
}

// Standard Gumbel.
DEVICE float gumbel(float uniform) {
  return -logf(-log1pf(-uniform));
}

// Not below gumbel(uniform), because -log(1 - u) >= u; close to it where the noise is large. Costs a quarter.
DEVICE float gumbel_bound(float uniform) {
  constexpr float LN_2 = 0.69314718f, ROUNDING = 1e-4f;
  return ROUNDING - LN_2 * log2_fast(uniform);
}

// The token with the largest sum of negated distance and noise (Gumbel, 1954: it is drawn in proportion to
// exp(-distance)), among those with a key of at most `limit`.
struct Race {
  NoiseKey key;
  u32 limit;
  float best_score = -infinity();
  u64 best = 0;

  void enter(u32 distance, int id) {
    if (distance > limit) return;
    const float below = __uint_as_float(distance), uniform = noise_uniform(key, id);
    if (gumbel_bound(uniform) - below < best_score) return;
    const float score = gumbel(uniform) - below;
    const u64 entry = to_best(score, id);
    if (entry > best) {
      best = entry;
      best_score = score;
    }
  }
};
