// Runs of elements: what one thread loads or stores at once. A run is 16 bytes of T where sizes and addresses allow it,
// else one element.

// Elements of T in 16 bytes.
template <class T>
constexpr int PIECE = (int)(16 / sizeof(T));

// N elements as they lie in memory, so that those that wait in registers take as few as possible.
template <class T, int N>
struct Run {
  static_assert(N == PIECE<T>, "a run is one element or 16 bytes");
  Vec16 bits;
};
template <class T>
struct Run<T, 1> {
  T bits;
};

// The float nearest to `value` that T can hold.
template <class T>
DEVICE float rounded(float value) {
  return to_float(from_float<T>(value));
}

// Rounds two values to T; one conversion does both if T has 16 bits.
template <class T>
DEVICE void round_both(float& x, float& y) {
  if constexpr (!same_type<T, float>) {
    const u32 pair = pack2<T>(x, y);
    x = unpack_low<T>(pair);
    y = unpack_high<T>(pair);
  }
}

template <class T, int N>
DEVICE void round_all(float (&values)[N]) {
  if constexpr (N == 1) {
    values[0] = rounded<T>(values[0]);
  } else {
    UNROLL
    for (int i = 0; i < N; i += 2) round_both<T>(values[i], values[i + 1]);
  }
}

template <class T, int N>
DEVICE Run<T, N> load_run(const T* source) {
  if constexpr (N == 1) {
    return {*source};
  } else {
    return {load16(source)};
  }
}

template <class T, int N>
DEVICE void store_run(T* target, const Run<T, N>& run) {
  if constexpr (N == 1) {
    *target = run.bits;
  } else {
    store16(target, run.bits);
  }
}

template <class T, int N>
DEVICE void unpack(float (&values)[N], const Run<T, N>& run) {
  if constexpr (N == 1) {
    values[0] = to_float(run.bits);
  } else {
    UNROLL
    for (int i = 0; i < 4; i++) {
      if constexpr (same_type<T, float>) {
        values[i] = __uint_as_float(run.bits.words[i]);
      } else {
        values[2 * i] = unpack_low<T>(run.bits.words[i]);
        values[2 * i + 1] = unpack_high<T>(run.bits.words[i]);
      }
    }
  }
}

// Rounds to T.
template <class T, int N>
DEVICE Run<T, N> pack(const float (&values)[N]) {
  Run<T, N> run;
  if constexpr (N == 1) {
    run.bits = from_float<T>(values[0]);
  } else {
    UNROLL
    for (int i = 0; i < 4; i++) {
      if constexpr (same_type<T, float>) {
        run.bits.words[i] = __float_as_uint(values[i]);
      } else {
        run.bits.words[i] = pack2<T>(values[2 * i], values[2 * i + 1]);
      }
    }
  }
  return run;
}
