// A linear layer for few tokens: y[tokens, outputs] = x[tokens, inputs] * W[outputs, inputs]^T + bias, as fast as W can
// be read.
//
// The tensor cores take 16 rows of W as their first operand and up to 8 tokens, transposed, as their second: 8 tokens
// take the time of one. A lane copies 16 bytes of a row, 8 neighbouring inputs, and reads x likewise. The operands'
// layout wants a lane's inputs elsewhere, but the order of a sum's terms is free as long as both operands have the same;
// so each lane multiplies just what it has copied, and the warps need no barrier.
//
// A block computes a tile of 16 outputs. Its warps take slots of inputs in turn and add up their sums in a fixed order,
// which depends on the number of warps only: a token's result is the same whatever the ring and the other tokens. Copies
// are on their way at any time, and the first ones before the previous kernel ends: nobody who may still run writes W
// (pack_linear waits for who did).
//
// With an activation the first half of the outputs are gates: result i is act(output i) * output (results + i). A tile
// then has 8 gates in one half of the operand, and what they gate in the other.
struct LinearParameters {
  const void* x;       // [tokens, inputs], rows of 16-byte pieces
  const void* weight;  // [outputs, inputs], contiguous, likewise
  const void* bias;    // [outputs], or null
  void* out;           // [tokens, results], contiguous
  i64 x_stride;        // elements between rows of x
  int tokens;
  int inputs;    // a multiple of 8
  int outputs;
  int kind;      // of the activation, or -1
  int is_float;  // out is float32; else it has the type of x
};

constexpr int LINEAR_THREADS = 256;  // at most
constexpr int CHUNK = 32;            // inputs that a warp reads of a row at once
constexpr int CHUNKS = 4;            // of a slot: 256 bytes of each row, so that memory reads long runs
constexpr int SLOT_INPUTS = CHUNKS * CHUNK;
// Bytes of a warp's ring, most of them on their way; device/linear.py says who gets the long one.
#if __CUDA_ARCH__ >= 800
constexpr int SHORT_RING = 8192, LONG_RING = 16384;
#else
constexpr int SHORT_RING = 4096;  // its copies wait for themselves
#endif
constexpr int TILE = 16;   // outputs
constexpr int HALVES = 2;  // of the operand, with 8 rows of W each
constexpr int PIECE_BYTES = WARP * 16;

template <class Element, int NUM_TOKEN_TILES, int NUM_RING_BYTES>
struct LinearShape {
  using T = Element;
  static constexpr int TOKEN_TILES = NUM_TOKEN_TILES;  // of 8 tokens
  static constexpr int RING_BYTES = NUM_RING_BYTES, SLOT_BYTES = CHUNKS * HALVES * PIECE_BYTES;
  static constexpr int STAGES = RING_BYTES / SLOT_BYTES;
  // Slots of x in registers: one is multiplied while the other is on its way, where there is room for two.
  static constexpr int SETS = TOKEN_TILES == 4 ? 1 : 2;
  // Floats from a token's sums to the next one's: the four tokens that a warp stores at once lie in different banks.
  static constexpr int TOKEN_STRIDE = TILE + 4;
  static constexpr int WARP_FLOATS = 8 * TOKEN_TILES * TOKEN_STRIDE;
};

// Results are the columns of out: outputs, or pairs of a gate and what it gates. A tile has `width` of them.
struct Tiling {
  int results, width, slots;
  bool gated;
};

DEVICE Tiling tiling_of(const LinearParameters& p) {
  const bool gated = p.kind >= 0;
  const int results = gated ? p.outputs / 2 : p.outputs, width = gated ? 8 : TILE;
  return {results, width, divide_up(p.inputs, SLOT_INPUTS), gated};
}

// Where a warp copies from next.
template <class Shape>
struct Source {
  const typename Shape::T* rows[HALVES];  // of this lane, from its first input on
  int slot;
};

// Rows behind the last are the last one: nothing is stored of them.
template <class Shape>
DEVICE Source<Shape> first_source(const LinearParameters& p, const Tiling& tiling) {
  const int lane = threadIdx.x % WARP, first = blockIdx.x * tiling.width;
  Source<Shape> source;
  source.slot = threadIdx.x / WARP;
  UNROLL
  for (int half = 0; half < HALVES; half++) {
    const int result = smaller(first + (tiling.gated ? 0 : half * 8) + lane / 4, tiling.results - 1);
    const int row = tiling.gated ? half * tiling.results + result : result;
    source.rows[half] = (const typename Shape::T*)p.weight + (i64)row * p.inputs + lane % 4 * 8;
  }
  return source;
}

// Inputs behind the last become zeros; behind the last slot there is nothing to copy.
template <class Shape>
DEVICE void copy_slot(u32 target, Source<Shape>& source, const LinearParameters& p, const Tiling& tiling) {
  if (source.slot < tiling.slots) {
    const int end = p.inputs - threadIdx.x % 4 * 8;
    UNROLL
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const int input = source.slot * SLOT_INPUTS + chunk * CHUNK;
      UNROLL
      for (int half = 0; half < HALVES; half++) {
        copy_async16(target, source.rows[half] + input, input < end);
        target += PIECE_BYTES;
      }
    }
    source.slot += blockDim.x / WARP;
  }
  copy_async_commit();
}

// Rows of x, of this lane. Behind the last token is the last one.
template <class Shape>
struct Tokens {
  const typename Shape::T* rows[Shape::TOKEN_TILES];

  explicit __device__ Tokens(const LinearParameters& p) {
    UNROLL
    for (int i = 0; i < Shape::TOKEN_TILES; i++) {
      const int token = smaller(i * 8 + (int)threadIdx.x % WARP / 4, p.tokens - 1);
      rows[i] = (const typename Shape::T*)p.x + token * p.x_stride + threadIdx.x % 4 * 8;
    }
  }
};

template <class Shape>
using TokenFragments = Vec16[CHUNKS][Shape::TOKEN_TILES];

// Inputs behind the last become zeros, as those of W.
template <class Shape>
DEVICE void read_tokens(TokenFragments<Shape>& fragments, const Tokens<Shape>& tokens, int slot, int inputs) {
  const int end = inputs - threadIdx.x % 4 * 8;
  UNROLL
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
    const int input = slot * SLOT_INPUTS + chunk * CHUNK;
    UNROLL
    for (int i = 0; i < Shape::TOKEN_TILES; i++) {
      Vec16 v = {{0u, 0u, 0u, 0u}};
      if (input < end) v = load16(tokens.rows[i] + input);
      fragments[chunk][i] = v;
    }
  }
}

// Of multiply_add's fragments: [tile of tokens][element].
template <class Shape>
using LinearSums = float[Shape::TOKEN_TILES][4];

template <class Shape>
DEVICE void multiply(LinearSums<Shape>& sums, const u8* slot, const TokenFragments<Shape>& tokens) {
  UNROLL
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
    const u8* const piece = slot + chunk * HALVES * PIECE_BYTES;
    const Vec16 upper = load16(piece), lower = load16(piece + PIECE_BYTES);
    UNROLL
    for (int word = 0; word < 4; word += 2) {
      const u32 weights[4] = {upper.words[word], lower.words[word], upper.words[word + 1], lower.words[word + 1]};
      UNROLL
      for (int i = 0; i < Shape::TOKEN_TILES; i++) {
        const Vec16& x = tokens[chunk][i];
        multiply_add<typename Shape::T>(sums[i], weights, x.words[word], x.words[word + 1]);
      }
    }
  }
}

// The sums of a warp: [token][output].
template <class Shape>
DEVICE void share_sums(float* shared, const LinearSums<Shape>& sums) {
  const int lane = threadIdx.x % WARP, output = lane / 4, token = lane % 4 * 2;
  UNROLL
  for (int i = 0; i < Shape::TOKEN_TILES; i++) {
    UNROLL
    for (int j = 0; j < 2 * HALVES; j++) {
      shared[(i * 8 + token + j % 2) * Shape::TOKEN_STRIDE + output + j / 2 * 8] = sums[i][j];
    }
  }
}

DEVICE float activate(int kind, float x) {
  return kind == SILU ? activate<SILU>(x) : kind == GELU ? activate<GELU>(x) : activate<GELU_TANH>(x);
}

// Of the results that a thread stores, which are all in one column; `gated` is that of what a gate gates.
// Not yet converted, so that nobody waits for it before it is used.
template <class T>
struct Bias {
  T plain, gated;
};

template <class Shape>
DEVICE Bias<typename Shape::T> read_bias(const LinearParameters& p, const Tiling& tiling) {
  Bias<typename Shape::T> bias = {};
  if (p.bias) {
    const int result = smaller((int)(blockIdx.x * tiling.width + threadIdx.x % tiling.width), tiling.results - 1);
    const typename Shape::T* const source = (const typename Shape::T*)p.bias + result;
    bias.plain = source[0];
    if (tiling.gated) bias.gated = source[tiling.results];
  }
  return bias;
}

template <class Shape>
DEVICE void store_results(const LinearParameters& p, const Tiling& tiling, const Bias<typename Shape::T>& bias,
                          const float* shared) {
  using T = typename Shape::T;
  const int warps = blockDim.x / WARP;
  // An output of a token: the sum of the warps' sums, and the bias.
  const auto output_at = [&](int token, int column, T bias_of_column) {
    float value = 0.f;
    for (int warp = 0; warp < warps; warp++) {
      value += shared[warp * Shape::WARP_FLOATS + token * Shape::TOKEN_STRIDE + column];
    }
    return value + to_float(bias_of_column);
  };
  for (int i = threadIdx.x; i < p.tokens * tiling.width; i += blockDim.x) {
    const int token = i / tiling.width, column = i % tiling.width, result = blockIdx.x * tiling.width + column;
    if (result >= tiling.results) continue;
    float value = output_at(token, column, bias.plain);
    if (tiling.gated) {
      // Rounded wherever the two ops one after the other round.
      const float gate = rounded<T>(activate(p.kind, rounded<T>(value)));
      value = gate * rounded<T>(output_at(token, column + 8, bias.gated));
    }
    const i64 place = (i64)token * tiling.results + result;
    if (p.is_float) {
      ((float*)p.out)[place] = value;
    } else {
      ((T*)p.out)[place] = from_float<T>(value);
    }
  }
}
