// Second half of the twin of csrc/primitives.cuh: conversions, memory, asynchronous copies, matrix fragments.

// ---- conversions ----------------------------------------------------------------------------------------------------

DEVICE float f16_to_float(u16 bits) {
  return (float)same_bits<_Float16>(bits);
}

DEVICE u32 pack_f16(float low, float high) {
  return same_bits<u16>((_Float16)low) | (u32)same_bits<u16>((_Float16)high) << 16;
}

DEVICE u32 round_to_bf16(float value) {
  u32 bits = __float_as_uint(value);
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return is_nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

DEVICE u32 pack_bf16(float low, float high) {
  return round_to_bf16(low) | round_to_bf16(high) << 16;
}

#if __CUDA_ARCH__ >= 890
namespace emulator {
static float e4m3_to_float(u32 bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const float magnitude = exponent ? ldexpf(1.f + mantissa / 8.f, exponent - 7) : ldexpf(mantissa / 8.f, -6);
  return bits & 128 ? -magnitude : magnitude;
}

static u32 float_to_e4m3(float value) {
  if (value != value) return 127;
  const u32 sign = same_bits<u32>(value) >> 24 & 128;
  const float magnitude = fabsf(value);
  if (magnitude >= 448.f) return sign | 126;
  int exponent = 0;
  frexpf(magnitude, &exponent);
  const int unit = exponent - 1 < -6 ? -9 : exponent - 4;  // the exponent of the last bit
  const float rounded = ldexpf(rintf(ldexpf(magnitude, -unit)), unit);
  if (rounded == 0.f) return sign;
  const float fraction = frexpf(rounded, &exponent) * 2.f;
  if (exponent - 1 < -6) return sign | (u32)ldexpf(rounded, 9);
  return sign | (u32)(exponent + 6) << 3 | (u32)((fraction - 1.f) * 8.f);
}
}  // namespace emulator

DEVICE u32 e4m3x2_to_f16x2(u16 bits) {
  return pack_f16(emulator::e4m3_to_float(bits & 255), emulator::e4m3_to_float(bits >> 8));
}

DEVICE u16 pack_e4m3(float low, float high) {
  return (u16)(emulator::float_to_e4m3(low) | emulator::float_to_e4m3(high) << 8);
}
#endif

DEVICE float exp2_fast(float x) {
  return exp2f(x);
}

DEVICE float reciprocal_fast(float x) {
  return 1.f / x;
}
DEVICE int opaque(int value) {
  return value;
}
DEVICE const u8* opaque(const u8* pointer) {
  return pointer;
}
DEVICE float log2_fast(float x) {
  return log2f(x);
}

DEVICE u32 permute_bytes(u32 low, u32 high, u32 selector) {
  return __byte_perm(low, high, selector);
}

DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  return pack_f16(f16_to_float((u16)a) - f16_to_float((u16)b), f16_to_float(a >> 16) - f16_to_float(b >> 16));
}

// ---- memory ---------------------------------------------------------------------------------------------------------

namespace emulator {
static void* check16(const void* pointer) {
  if ((u64)pointer % 16) fail("an access of 16 bytes is not aligned to 16");
  return (void*)pointer;
}

static u8* from_shared(u32 address, int bytes) {
  if (address < SHARED_BASE || address + bytes > SHARED_BASE + shared_bytes) fail("access outside of shared memory");
  return (u8*)check16(current->block->shared + (address - SHARED_BASE));
}

static void carry_out(const Copy& copy) {
  u8* target = from_shared(copy.target, 16);
  if (copy.valid) {
    memcpy(target, copy.source, 16);
  } else {
    memset(target, 0, 16);
  }
}
}  // namespace emulator

DEVICE Vec16 load16(const void* source) {
  return *(const Vec16*)emulator::check16(source);
}

DEVICE void store16(void* target, const Vec16& v) {
  *(Vec16*)emulator::check16(target) = v;
}

DEVICE Vec16 load16_streaming(const void* source) {
  return load16(source);
}
DEVICE Vec16 load16_volatile(const void* source) {
  return load16(source);
}

DEVICE int load_volatile(const int* source) {
  return *source;
}

DEVICE float load_volatile(const float* source) {
  return *source;
}

DEVICE u32 load_volatile(const u32* source) {
  return *source;
}

DEVICE u64 load_volatile(const u64* source) {
  return *source;
}

DEVICE u32 shared_address(const void* pointer) {
  return (u32)((const u8*)pointer - emulator::current->block->shared) + emulator::SHARED_BASE;
}

// Hardware copies at any time between this call and the wait: here at one of the two ends, by chance, so that both a
// missing wait and a missing barrier in front show.
DEVICE void copy_async16(u32 target, const void* source, bool valid) {
  const emulator::Copy copy = {target, valid ? emulator::check16(source) : source, valid};
  emulator::CopyQueue& queue = emulator::current->queue;
#if __CUDA_ARCH__ >= 800
  if (emulator::draw(2)) {
    if (queue.num_copies == emulator::MAX_COPIES) emulator::fail("more copies on their way than the emulator holds");
    queue.copies[queue.num_copies++] = copy;
    return;
  }
#endif
  emulator::carry_out(copy);
}

DEVICE void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  emulator::CopyQueue& queue = emulator::current->queue;
  if (queue.num_groups == emulator::MAX_GROUPS) emulator::fail("more groups of copies than the emulator holds");
  queue.groups[queue.num_groups++] = queue.num_copies;
#endif
}

template <int PENDING>
DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  emulator::CopyQueue& queue = emulator::current->queue;
  const int arrived = queue.num_groups - PENDING;
  if (arrived <= 0) return;
  const int end = queue.groups[arrived - 1];
  for (int i = 0; i < end; i++) emulator::carry_out(queue.copies[i]);
  for (int i = end; i < queue.num_copies; i++) queue.copies[i - end] = queue.copies[i];
  for (int i = arrived; i < queue.num_groups; i++) queue.groups[i - arrived] = queue.groups[i] - end;
  queue.num_copies -= end;
  queue.num_groups -= arrived;
#endif
}

DEVICE void store16_shared(u32 target, const Vec16& v) {
  *(Vec16*)emulator::from_shared(target, 16) = v;
}

// ---- matrices -------------------------------------------------------------------------------------------------------

namespace emulator {
static void whole_warp(u32 lanes) {
  if (lanes != ~0u) fail("a matrix instruction without the whole warp");
}

struct MatrixRow {
  u32* fragment;
  u32 address;
  bool transposed;
};

static void load_four_matrices(Fiber* const* warp, u32 lanes) {
  whole_warp(lanes);
  for (int matrix = 0; matrix < 4; matrix++) {
    u16 elements[8][8];
    for (int row = 0; row < 8; row++) {
      const MatrixRow* part = (const MatrixRow*)warp[matrix * 8 + row]->data;
      memcpy(elements[row], from_shared(part->address, 16), 16);
    }
    for (int lane = 0; lane < LANES; lane++) {
      MatrixRow* part = (MatrixRow*)warp[lane]->data;
      const int g = lane / 4, t = lane % 4 * 2;
      const u16 first = part->transposed ? elements[t][g] : elements[g][t];
      const u16 second = part->transposed ? elements[t + 1][g] : elements[g][t + 1];
      part->fragment[matrix] = first | (u32)second << 16;
    }
  }
}

struct MultiplyAdd {
  float* c;
  const u32* a;
  u32 b0, b1;
};

template <class T>
static float element(u32 pair, int half) {
  const u16 bits = (u16)(pair >> 16 * half);
  if constexpr (same_type<T, bf16>) {
    return __uint_as_float((u32)bits << 16);
  } else {
    return f16_to_float(bits);
  }
}

template <class T>
static void multiply_matrices(Fiber* const* warp, u32 lanes) {
  whole_warp(lanes);
  float a[16][16], b[16][8];
  for (int lane = 0; lane < LANES; lane++) {
    const MultiplyAdd* part = (const MultiplyAdd*)warp[lane]->data;
    const int g = lane / 4, t = lane % 4 * 2;
    for (int half = 0; half < 2; half++) {
      a[g][t + half] = element<T>(part->a[0], half);
      a[g + 8][t + half] = element<T>(part->a[1], half);
      a[g][t + 8 + half] = element<T>(part->a[2], half);
      a[g + 8][t + 8 + half] = element<T>(part->a[3], half);
      b[t + half][g] = element<T>(part->b0, half);
      b[t + 8 + half][g] = element<T>(part->b1, half);
    }
  }
  for (int row = 0; row < 16; row++) {
    float sums[8] = {};
    for (int k = 0; k < 16; k++) {
      for (int column = 0; column < 8; column++) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; column++) {
      const MultiplyAdd* part = (const MultiplyAdd*)warp[row % 8 * 4 + column / 2]->data;
      part->c[row / 8 * 2 + column % 2] += sums[column];
    }
  }
}
}  // namespace emulator

DEVICE void load_matrices(u32 (&fragment)[4], u32 row_address, CALLER) {
  emulator::MatrixRow part = {fragment, row_address, false};
  emulator::meet(HERE("load_matrices"), ~0u, &part, emulator::load_four_matrices);
}

DEVICE void load_matrices_transposed(u32 (&fragment)[4], u32 row_address, CALLER) {
  emulator::MatrixRow part = {fragment, row_address, true};
  emulator::meet(HERE("load_matrices_transposed"), ~0u, &part, emulator::load_four_matrices);
}

template <class T>
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, CALLER) {
#if __CUDA_ARCH__ < 800
  static_assert(same_type<T, f16>, "Turing multiplies f16 only");
#endif
  emulator::MultiplyAdd part = {c, a, b0, b1};
  emulator::meet(HERE("multiply_add"), ~0u, &part, emulator::multiply_matrices<T>);
}
