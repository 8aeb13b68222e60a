// The kernels of linear.cuh.
template <class Shape>
DEVICE void linear(const LinearParameters& p) {
  SHARED_MEMORY(shared);
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const Tiling tiling = tiling_of(p);
  const u8* const ring = shared + warp * Shape::RING_BYTES + threadIdx.x % WARP * 16;
  const u32 target = shared_address(ring);
  float* const all_sums = (float*)(shared + warps * Shape::RING_BYTES);

  let_next_kernel_start();
  Source<Shape> source = first_source<Shape>(p, tiling);
  for (int i = 0; i < Shape::STAGES; i++) copy_slot(target + i * Shape::SLOT_BYTES, source, p, tiling);
  const Bias<typename Shape::T> bias = read_bias<Shape>(p, tiling);
  wait_for_previous_kernel();
  const Tokens<Shape> tokens(p);

  int place = 0;  // in the ring
  LinearSums<Shape> sums = {};
  // Multiplies a slot, and reads x for the slot that takes its registers.
  const auto multiply_slot = [&](TokenFragments<Shape>& fragments, int slot) {
    copy_async_wait<Shape::STAGES - 1>();
    multiply<Shape>(sums, ring + place, fragments);
    read_tokens(fragments, tokens, slot + Shape::SETS * warps, p.inputs);
    copy_slot(target + place, source, p, tiling);
    place = (place + Shape::SLOT_BYTES) % Shape::RING_BYTES;
  };
  TokenFragments<Shape> sets[Shape::SETS];
  UNROLL
  for (int i = 0; i < Shape::SETS; i++) read_tokens(sets[i], tokens, warp + i * warps, p.inputs);
  for (int first = warp; first < tiling.slots; first += Shape::SETS * warps) {
    UNROLL
    for (int i = 0; i < Shape::SETS; i++) {
      if (first + i * warps < tiling.slots) multiply_slot(sets[i], first + i * warps);
    }
  }
  share_sums<Shape>(all_sums + warp * Shape::WARP_FLOATS, sums);
  __syncthreads();
  store_results<Shape>(p, tiling, bias, all_sums);
}

// Blocks on a multiprocessor, for 32 tokens: with registers for two the compiler of this one generation spills some.
constexpr int BLOCKS_OF_32 = __CUDA_ARCH__ == 1000 ? 1 : 2;

#define LINEAR_KERNEL(NAME, T, TOKEN_TILES, RING_BYTES)                                      \
  KERNEL(NAME, LinearParameters, LINEAR_THREADS, (TOKEN_TILES) == 4 ? BLOCKS_OF_32 : 2) {    \
    linear<LinearShape<T, TOKEN_TILES, RING_BYTES>>(params);                                 \
  }

// linear_<ring>_<type>_<tokens>
LINEAR_KERNEL(linear_short_f16_8, f16, 1, SHORT_RING)
LINEAR_KERNEL(linear_short_f16_16, f16, 2, SHORT_RING)
LINEAR_KERNEL(linear_short_f16_32, f16, 4, SHORT_RING)
#if __CUDA_ARCH__ >= 800
LINEAR_KERNEL(linear_short_bf16_8, bf16, 1, SHORT_RING)
LINEAR_KERNEL(linear_short_bf16_16, bf16, 2, SHORT_RING)
LINEAR_KERNEL(linear_short_bf16_32, bf16, 4, SHORT_RING)
LINEAR_KERNEL(linear_long_f16_8, f16, 1, LONG_RING)
LINEAR_KERNEL(linear_long_f16_16, f16, 2, LONG_RING)
LINEAR_KERNEL(linear_long_f16_32, f16, 4, LONG_RING)
LINEAR_KERNEL(linear_long_bf16_8, bf16, 1, LONG_RING)
LINEAR_KERNEL(linear_long_bf16_16, bf16, 2, LONG_RING)
LINEAR_KERNEL(linear_long_bf16_32, bf16, 4, LONG_RING)
#endif
