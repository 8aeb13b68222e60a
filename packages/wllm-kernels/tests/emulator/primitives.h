// First half of the twin of csrc/primitives.cuh: the declarations, and what of CUDA's own the kernels use, in plain
// C++. types.cuh, runtime.h and grid.h come in front of it.
#define DEVICE static inline
#define UNROLL
#define HERE(WHAT) emulator::Place{WHAT, file, line}
#define CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

#define KERNEL(NAME, PARAMETERS, THREADS, BLOCKS)                                                                  \
  static void NAME##_body(const PARAMETERS& params);                                                               \
  extern "C" const char* NAME(const void* params, int num_bytes, int x, int y, int z, int threads, int shared_bytes, \
                              u32 seed) {                                                                          \
    if (num_bytes != sizeof(PARAMETERS)) return "the parameters differ in size from the kernel's " #PARAMETERS;    \
    if (threads > (THREADS)) return "more threads than the launch bounds of the kernel";                           \
    return emulator::launch([](const void* p) { NAME##_body(*(const PARAMETERS*)p); }, params, {x, y, z}, threads, \
                            shared_bytes, seed);                                                                   \
  }                                                                                                                \
  static void NAME##_body(const PARAMETERS& params)

#define SHARED_MEMORY(NAME) u8* const NAME = emulator::current->block->shared

DEVICE void wait_for_previous_kernel() {
  emulator::wait_for_previous_kernel();
}
DEVICE void let_next_kernel_start() {}
constexpr bool OVERLAPS = true;

// Anything may stand there; small numbers lead further.
DEVICE int peek(const int* source) {
  emulator::expect_guarded((const u8*)source, sizeof(int), true);
  const u32 any = emulator::draw(0x7fffffffu), limits[] = {2, 2, 64, 0x7fffffffu};
  const int number = (int)(any % limits[emulator::draw(4)]);
  return emulator::draw(8) ? number : -number;
}

DEVICE void prefetch_to_l2(const void* source, u32 bytes) {
  if ((u64)source % 16 || bytes % 16) emulator::fail("a prefetch that is not made of 16 bytes");
  emulator::expect_guarded((const u8*)source, bytes, false);
}

// ---- CUDA's own -----------------------------------------------------------------------------------------------------

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::current->block->index)
#define blockDim emulator::block_size
#define gridDim emulator::grid

struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From>
static inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}
static inline u32 __float_as_uint(float value) { return same_bits<u32>(value); }
static inline int __float_as_int(float value) { return same_bits<int>(value); }
static inline float __uint_as_float(u32 bits) { return same_bits<float>(bits); }
static inline float __int_as_float(int bits) { return same_bits<float>(bits); }

static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
// The C library declares functions of these names.
#define __expf expf
#define __logf logf
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline int __popcll(u64 x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
static inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
  const u64 bytes = (u64)high << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; i++) {
    const u32 choice = selector >> 4 * i & 15;
    u32 byte = (u32)(bytes >> 8 * (choice & 7)) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __syncthreads(CALLER) { emulator::pass_barrier(HERE("__syncthreads")); }
static inline int __syncthreads_or(int predicate, CALLER) {
  emulator::Block* block = emulator::current->block;
  block->barrier_vote |= predicate != 0;
  emulator::pass_barrier(HERE("__syncthreads_or"));
  return block->barrier_result;
}
static inline void __syncwarp(u32 mask = ~0u, CALLER) { emulator::meet(HERE("__syncwarp"), mask, nullptr, nullptr); }

template <class T>
struct SameAs {
  typedef T type;
};
#define ATOMIC(NAME, NEW_VALUE)                                          \
  template <class T>                                                     \
  static inline T NAME(T* address, typename SameAs<T>::type value) {     \
    const T old = *address;                                              \
    *address = NEW_VALUE;                                                \
    return old;                                                          \
  }
ATOMIC(atomicAdd, old + value)
ATOMIC(add_in_order, old + value)
ATOMIC(atomicSub, old - value)
ATOMIC(atomicExch, value)
ATOMIC(atomicMin, value < old ? value : old)
ATOMIC(atomicMax, value > old ? value : old)
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicXor, old ^ value)
ATOMIC(atomicInc, old >= value ? 0 : old + 1)
template <class T>
static inline T atomicCAS(T* address, typename SameAs<T>::type expected, typename SameAs<T>::type value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

namespace emulator {
template <class T>
struct Shuffle {
  T value, result;
  int source;
};

// A lane outside of the warp's segment of `width` keeps its own value; one that does not take part gives NaN.
template <class T>
static T shuffle(const Place& place, u32 mask, T value, int source, bool inside) {
  Shuffle<T> part = {value, value, inside ? source : current->lane};
  meet(place, mask, &part, [](Fiber* const* warp, u32 lanes) {
    for (int lane = 0; lane < LANES; lane++) {
      if (!(lanes >> lane & 1)) continue;
      Shuffle<T>* mine = (Shuffle<T>*)warp[lane]->data;
      if (lanes >> mine->source & 1) {
        mine->result = ((const Shuffle<T>*)warp[mine->source]->data)->value;
      } else {
        memset(&mine->result, 0xff, sizeof(T));
      }
    }
  });
  return part.result;
}
}  // namespace emulator

template <class T>
static inline T __shfl_sync(u32 mask, T value, int source, int width = 32, CALLER) {
  const int lane = emulator::current->lane;
  return emulator::shuffle(HERE("__shfl_sync"), mask, value, (lane & -width) | (source & (width - 1)), true);
}
template <class T>
static inline T __shfl_xor_sync(u32 mask, T value, int distance, int width = 32, CALLER) {
  const int lane = emulator::current->lane, source = lane ^ distance;
  return emulator::shuffle(HERE("__shfl_xor_sync"), mask, value, source, (source & -width) <= (lane & -width));
}
template <class T>
static inline T __shfl_up_sync(u32 mask, T value, int distance, int width = 32, CALLER) {
  const int lane = emulator::current->lane;
  return emulator::shuffle(HERE("__shfl_up_sync"), mask, value, lane - distance, lane % width >= distance);
}
template <class T>
static inline T __shfl_down_sync(u32 mask, T value, int distance, int width = 32, CALLER) {
  const int lane = emulator::current->lane;
  return emulator::shuffle(HERE("__shfl_down_sync"), mask, value, lane + distance, lane % width + distance < width);
}

static inline u32 __ballot_sync(u32 mask, int predicate, CALLER) {
  struct Vote {
    bool yes;
    u32 result;
  } part = {predicate != 0, 0};
  emulator::meet(HERE("__ballot_sync"), mask, &part, [](emulator::Fiber* const* warp, u32 lanes) {
    u32 votes = 0;
    for (int lane = 0; lane < emulator::LANES; lane++) {
      if ((lanes >> lane & 1) && ((const Vote*)warp[lane]->data)->yes) votes |= 1u << lane;
    }
    for (int lane = 0; lane < emulator::LANES; lane++) {
      if (lanes >> lane & 1) ((Vote*)warp[lane]->data)->result = votes;
    }
  });
  return part.result;
}
static inline int __any_sync(u32 mask, int predicate, CALLER) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(u32 mask, int predicate, CALLER) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}
