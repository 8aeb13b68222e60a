// The kernels of linear.cuh, and of linear_norm.cuh in front of it.
template <class Shape, bool NORM>
DEVICE void linear(const LinearParameters& p) {
  using T = typename Shape::T;
  SHARED_MEMORY(shared);
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const Tiling tiling = tiling_of<Shape>(p);
  const u8* const ring = shared + warp * RING_BYTES + threadIdx.x % WARP * 16;
  const u32 target = shared_address(ring);
  float* const all_sums = (float*)(shared + warps * RING_BYTES);
  T* const normed = (T*)(all_sums + warps * Shape::WARP_FLOATS);

  let_next_kernel_start();
  Source<Shape> source = first_source<Shape>(p, tiling);
  for (int i = 0; i < Shape::STAGES; i++) copy_slot(target + i * Shape::SLOT_BYTES, source, p, tiling);
  const Bias<T> bias = read_bias<Shape>(p, tiling);
  NormAhead<T> ahead;
  if constexpr (NORM) read_norm<T>(ahead, p);
  wait_for_previous_kernel();
  if constexpr (NORM) add_and_normalise(p, ahead, normed, all_sums);
  const Tokens<Shape> tokens = NORM ? Tokens<Shape>(normed, normed_stride(p.inputs), p.tokens)
                                    : Tokens<Shape>((const T*)p.x, p.x_stride, p.tokens);

  int place = 0;  // in the ring
  LinearSums<Shape> sums = {};
  // Multiplies a slot, and reads x for the slot that takes its registers.
  const auto multiply_slot = [&](TokenFragments<Shape>& fragments, int slot) {
    copy_async_wait<Shape::STAGES - 1>();
    multiply<Shape>(sums, ring + place, fragments);
    read_tokens(fragments, tokens, slot + Shape::SETS * warps, p.inputs);
    copy_slot(target + place, source, p, tiling);
    place = (place + Shape::SLOT_BYTES) % RING_BYTES;
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

#define LINEAR_KERNEL(NAME, T, TILE, TOKEN_TILES, NORM)                                     \
  KERNEL(NAME, LinearParameters, LINEAR_THREADS, (TOKEN_TILES) == 4 ? BLOCKS_OF_32 : 2) {   \
    linear<LinearShape<T, TILE, TOKEN_TILES>, NORM>(params);                                \
  }

// linear_<type>_<outputs of a tile>x<tokens>
LINEAR_KERNEL(linear_f16_8x8, f16, 8, 1, false)
LINEAR_KERNEL(linear_f16_8x16, f16, 8, 2, false)
LINEAR_KERNEL(linear_f16_16x8, f16, 16, 1, false)
LINEAR_KERNEL(linear_f16_16x16, f16, 16, 2, false)
LINEAR_KERNEL(linear_f16_8x32, f16, 8, 4, false)
LINEAR_KERNEL(linear_f16_16x32, f16, 16, 4, false)
LINEAR_KERNEL(norm_linear_f16_8x8, f16, 8, 1, true)
LINEAR_KERNEL(norm_linear_f16_16x8, f16, 16, 1, true)
#if __CUDA_ARCH__ >= 800
LINEAR_KERNEL(linear_bf16_8x8, bf16, 8, 1, false)
LINEAR_KERNEL(linear_bf16_8x16, bf16, 8, 2, false)
LINEAR_KERNEL(linear_bf16_16x8, bf16, 16, 1, false)
LINEAR_KERNEL(linear_bf16_16x16, bf16, 16, 2, false)
LINEAR_KERNEL(linear_bf16_8x32, bf16, 8, 4, false)
LINEAR_KERNEL(linear_bf16_16x32, bf16, 16, 4, false)
LINEAR_KERNEL(norm_linear_bf16_8x8, bf16, 8, 1, true)
LINEAR_KERNEL(norm_linear_bf16_16x8, bf16, 16, 1, true)
#endif
