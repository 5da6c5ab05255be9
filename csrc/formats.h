// How numbers lie in memory: what packers write and kernels read. Sizes in bytes unless they are called otherwise.
#pragma once
#include <cstddef>
#include <cstdint>

namespace inflight {

// A quantized row of activations is a run of records, one for each GROUP inputs: x[i] is about scale * values[i].
// Weights have a scale for each HALF of a group.
constexpr int GROUP = 64;
constexpr int HALF = GROUP / 2;

// Rotated numbers: each half of a group is multiplied by the Hadamard matrix H of 32 rows, weights w -> H w and
// activations x -> H x / 32, which leaves w . x as it is. An outlier is spread over its half, and the others lose less
// to rounding (Ashkboos et al., arXiv:2404.00456). Weights that are 4-bit numbers times a scale become whole numbers
// times the same scale, which nearly always fit into 8 bits: nothing of them is lost.
enum class Basis { PLAIN, ROTATED };
constexpr int NUM_BASES = 2;

struct ActivationGroup {
  int8_t values[GROUP];
  float scale;
  // Of the values of each half. Plain basis: the sum, which minimums are multiplied by. Rotated basis: -128 * the sum,
  // which pays back what the weights' unsigned storage adds.
  union {
    float sums[2];
    int32_t offsets[2];
  };
  int32_t padding;
};
static_assert(sizeof(ActivationGroup) == 80);

// Weights are cut into blocks of COLUMNS outputs; a block is a run of groups of GROUP inputs, so that a product reads
// it from front to back. Four neighbouring inputs of one output share 32 bits, as integer dot products want them.
constexpr int COLUMNS = 32;

struct Int8Group {  // rotated: w[i][n] = scales[i / HALF][n] * (values[i / 4][n][i % 4] - 128)
  uint8_t values[GROUP / 4][COLUMNS][4];
  uint16_t scales[2][COLUMNS];  // float16
};
static_assert(sizeof(Int8Group) == 2176);

struct Q4Group {  // plain: w[i][n] = scales[i / HALF][n] * q + minimums[i / HALF][n], q in 0..15
  // Byte (j, n, b) of half h holds input h * HALF + 4 * j + b in its low bits, input h * HALF + 16 + 4 * j + b above.
  uint8_t values[2][HALF / 8][COLUMNS][4];
  uint16_t scales[2][COLUMNS];  // float16, as in GGUF's own blocks
  uint16_t minimums[2][COLUMNS];
};
static_assert(sizeof(Q4Group) == 1280);

enum class WeightFormat { INT8, Q4 };
constexpr int NUM_WEIGHT_FORMATS = 2;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace inflight
