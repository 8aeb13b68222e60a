// Activations, and what they gate.
// Methods: sigmoid linear unit and Gaussian error linear unit with its tanh form (Dan Hendrycks, Kevin Gimpel, 2016);
// gated units (Noam Shazeer, GLU Variants Improve Transformer, 2020).
enum Kind { SILU, GELU, GELU_TANH };

// x * sigmoid(y): two instructions of the special function unit, exact to 1e-6 relative to x.
DEVICE float times_sigmoid(float x, float y) {
  return __fdividef(x, 1.f + __expf(-y));
}

template <int KIND>
DEVICE float activate(float x) {
  if constexpr (KIND == SILU) {
    return times_sigmoid(x, x);
  } else if constexpr (KIND == GELU) {
    return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
  } else {
    // (1 + tanh(y)) / 2 is the sigmoid of 2 * y; here 2 * sqrt(2 / pi) * (x + 0.044715 * x^3).
    return times_sigmoid(x, 1.5957691216057308f * x * (1.f + 0.044715f * x * x));
  }
}
