// What the hardware does and plain C++ cannot say: the only file with PTX. The emulator of the tests replaces it with a
// twin of the same names, so everything above runs on a CPU too.
#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")

// KERNEL(name, Parameters, threads, blocks) { body over `params` }: all arguments in one struct, passed by value.
// Its 8-byte fields come first. `blocks` is how many blocks shall fit on one multiprocessor.
#define KERNEL(NAME, PARAMETERS, THREADS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ PARAMETERS params)

// All shared memory of a kernel is dynamic, so that the emulator can fill it with NaN before each block.
#define SHARED_MEMORY(NAME) extern __shared__ __align__(128) u8 NAME[]

// ---- overlap of launches --------------------------------------------------------------------------------------------

// A kernel that the launch code declares as overlapping may begin before the kernel in front of it in the stream has
// ended (programmatic dependent launch, Hopper and newer; elsewhere these two do nothing). Such a kernel must keep a
// rule: a thread waits before its first read of what any earlier kernel wrote, and before its first write, as an earlier
// kernel may still read there; and every thread waits before it ends, since whoever waits for this kernel relies on all
// that came before it too. In front of the wait: index arithmetic, parameters, shared memory, and prefetches into L2,
// which sees every write. A kernel that is not declared begins when all before it have ended.
DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin once every block has said so or has ended, that is, when all blocks have begun: it takes no
// room from them. It sees our results only behind its wait.
DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
constexpr bool OVERLAPS = true;
#else
constexpr bool OVERLAPS = false;
#endif

// What stands at an address, or stood there before, while an earlier kernel may still write it: good for a guess. Read
// past the L1 cache, which would keep what is old.
DEVICE int peek(const int* source) {
  return *(const volatile int*)source;
}

// Asks for `bytes`, a multiple of 16, to come to the L2; a guess that is wrong costs time only.
DEVICE void prefetch_to_l2(const void* source, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
#endif
}

// ---- conversions ----------------------------------------------------------------------------------------------------

DEVICE float f16_to_float(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Two floats, the first in the lower half.
DEVICE u32 pack_f16(float low, float high) {
  u32 packed;
  asm("{ .reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
      : "=r"(packed)
      : "f"(low), "f"(high));
  return packed;
}

DEVICE u32 round_to_bf16(float value) {
  u32 bits = __float_as_uint(value);
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return is_nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

DEVICE u32 pack_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#else
  return round_to_bf16(low) | round_to_bf16(high) << 16;
#endif
}

#if __CUDA_ARCH__ >= 890
// Two e4m3 bytes as two f16; exact.
DEVICE u32 e4m3x2_to_f16x2(u16 bits) {
  u32 packed;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(packed) : "h"(bits));
  return packed;
}

// Two floats as e4m3, rounded to nearest even; what lies outside becomes +-448.
DEVICE u16 pack_e4m3(float low, float high) {
  u16 packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
#endif

DEVICE float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

DEVICE float log2_fast(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

DEVICE float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The same value, of unknown origin to the compiler: what is computed from it is computed where it is written, and does
// not occupy registers throughout a loop.
DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

DEVICE const u8* opaque(const u8* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// Bytes of `low` (0 to 3) and `high` (4 to 7), chosen by the four lowest nibbles of `selector`.
DEVICE u32 permute_bytes(u32 low, u32 high, u32 selector) {
  return __byte_perm(low, high, selector);
}

// Two f16 differences.
DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  u32 result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

DEVICE Vec16 load16(const void* source) {
  uint4 v = *(const uint4*)source;
  return {{v.x, v.y, v.z, v.w}};
}

DEVICE void store16(void* target, const Vec16& v) {
  *(uint4*)target = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
}

// Read once: leaves no trace in the L1 cache.
DEVICE Vec16 load16_streaming(const void* source) {
  Vec16 v;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(source)
               : "memory");
  return v;
}

// Neither left out nor moved behind a branch: a compiler that sees that a part is needed seldom loads it late.
DEVICE Vec16 load16_volatile(const void* source) {
  Vec16 v;
  asm volatile("ld.volatile.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(source)
               : "memory");
  return v;
}

// A value that another block may have written during this launch: read past the L1 cache.
DEVICE int load_volatile(const int* source) {
  return *(const volatile int*)source;
}

DEVICE float load_volatile(const float* source) {
  return *(const volatile float*)source;
}

DEVICE u32 load_volatile(const u32* source) {
  return *(const volatile u32*)source;
}

DEVICE u64 load_volatile(const u64* source) {
  return *(const volatile u64*)source;
}

// Adds to a counter and returns what it was. Blocks that add are ordered: one whose threads meet at a barrier before
// and behind this sees what the others wrote in front of theirs. Cheaper than __threadfence, which puts the accesses of
// all blocks in a single order.
DEVICE int add_in_order(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

DEVICE u32 shared_address(const void* pointer) {
  return (u32)__cvta_generic_to_shared(pointer);
}

// Copies 16 bytes to shared memory without passing through registers; writes zeros if not `valid`. Visible to the
// issuing thread after commit and wait, to others after a barrier behind the wait. Both addresses are multiples of 16.
DEVICE void copy_async16(u32 target, const void* source, bool valid) {
#if __CUDA_ARCH__ >= 800
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(target), "l"(source), "r"(bytes)
               : "memory");
#else
  Vec16 v = {{0, 0, 0, 0}};
  if (valid) v = load16(source);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(target), "r"(v.words[0]), "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
#endif
}

// Closes a group of copies; a thread's groups arrive in order.
DEVICE void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread are on their way.
template <int PENDING>
DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

DEVICE void store16_shared(u32 target, const Vec16& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(target), "r"(v.words[0]), "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

// ---- matrices -------------------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8 and receives, of each
// matrix, elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4.
DEVICE void load_matrices(u32 (&fragment)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row_address)
               : "memory");
}

// The same, transposed: lane l receives elements of column l / 4.
DEVICE void load_matrices_transposed(u32 (&fragment)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row_address)
               : "memory");
}

// c += a * b for a 16x16 (rows) and b 16x8 (columns) of T = f16 or bf16, float accumulators. With g = lane / 4 and
// t = 2 * (lane % 4): a[0] holds (g, t), a[1] (g + 8, t), a[2] (g, t + 8), a[3] (g + 8, t + 8), each with its right
// neighbour in the upper half; b0 (t, g) and b1 (t + 8, g) with their lower neighbours; c (g, t), (g, t + 1),
// (g + 8, t), (g + 8, t + 1).
template <class T>
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (same_type<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  static_assert(same_type<T, f16>, "Turing multiplies f16 only");
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
