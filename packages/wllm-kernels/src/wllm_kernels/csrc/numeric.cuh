// Conversions between float and the element types, and reductions over a warp: plain C++ over the primitives.
constexpr int WARP = 32;
constexpr u32 WHOLE_WARP = 0xffffffffu;
// Below every score, and finite: the difference of two of them is 0, not NaN.
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float to_float(float value) {
  return value;
}
DEVICE float to_float(f16 value) {
  return f16_to_float(value.bits);
}
DEVICE float to_float(bf16 value) {
  return __uint_as_float((u32)value.bits << 16);
}
DEVICE float to_float(i8 value) {
  return (float)value;
}

#if __CUDA_ARCH__ >= 890
DEVICE float to_float(e4m3 value) {
  return f16_to_float((u16)e4m3x2_to_f16x2(value.bits));
}
#endif

// Rounded to nearest even.
template <class T>
DEVICE T from_float(float value) {
  if constexpr (same_type<T, float>) {
    return value;
  } else if constexpr (same_type<T, f16>) {
    return {(u16)pack_f16(value, 0.f)};
  } else if constexpr (same_type<T, bf16>) {
    return {(u16)pack_bf16(value, 0.f)};
  } else {
#if __CUDA_ARCH__ >= 890
    return {(u8)pack_e4m3(value, 0.f)};
#endif
  }
}

// Two elements of T = f16 or bf16, the first in the lower half.
template <class T>
DEVICE u32 pack2(float low, float high) {
  if constexpr (same_type<T, bf16>) {
    return pack_bf16(low, high);
  } else {
    return pack_f16(low, high);
  }
}

template <class T>
DEVICE float unpack_low(u32 pair) {
  return to_float(T{(u16)pair});
}
template <class T>
DEVICE float unpack_high(u32 pair) {
  return to_float(T{(u16)(pair >> 16)});
}

template <class T>
DEVICE T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
DEVICE T larger(T a, T b) {
  return a < b ? b : a;
}
DEVICE int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

DEVICE float warp_sum(float value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  return value;
}

DEVICE float warp_max(float value) {
  UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
  }
  return value;
}

// The sum over a block of whole warps, in every thread. `scratch` has a float for each warp; it is free again after the
// next barrier.
DEVICE float block_sum(float value, float* scratch) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.f);
}
