// RMS norm of rows, alone or after the residual add. One block a row; the row stays in registers between its two passes.
struct NormParameters {
  const void* x;         // [rows, size]
  const void* weight;    // [size]
  void* residual;        // [rows, size] or null; becomes residual + x
  void* out;             // [rows, size]
  i64 x_stride;          // elements between rows of x
  i64 residual_stride;
  int size;
  float eps;
  float weight_offset;
};

constexpr int NORM_THREADS = 256;

// The reference in steps of one element; the product's version follows.
template <class T>
DEVICE void rms_norm_row(const NormParameters& p) {
  SHARED_MEMORY(shared);
  const int row = blockIdx.x;
  const T* x = (const T*)p.x + row * p.x_stride;
  T* residual = p.residual ? (T*)p.residual + row * p.residual_stride : nullptr;
  const T* weight = (const T*)p.weight;
  T* out = (T*)p.out + (i64)row * p.size;
  float squares = 0.f;
  for (int i = threadIdx.x; i < p.size; i += NORM_THREADS) {
    float value = to_float(x[i]);
    if (residual) {
      T sum = from_float<T>(value + to_float(residual[i]));
      residual[i] = sum;
      value = to_float(sum);
    }
    squares += value * value;
  }
  const float scale = 1.f / sqrtf(block_sum(squares, (float*)shared) / p.size + p.eps);
  const T* source = residual ? residual : x;
  for (int i = threadIdx.x; i < p.size; i += NORM_THREADS) {
    const float normed = to_float(source[i]) * scale;
    if (p.weight_offset != 0.f) {
      out[i] = from_float<T>(normed * (to_float(weight[i]) + p.weight_offset));
    } else {
      out[i] = from_float<T>(to_float(from_float<T>(normed)) * to_float(weight[i]));
    }
  }
}

KERNEL(rms_norm_f32, NormParameters, NORM_THREADS, 1) {
  rms_norm_row<float>(params);
}
KERNEL(rms_norm_f16, NormParameters, NORM_THREADS, 1) {
  rms_norm_row<f16>(params);
}
KERNEL(rms_norm_bf16, NormParameters, NORM_THREADS, 1) {
  rms_norm_row<bf16>(params);
}
