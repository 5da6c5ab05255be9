#include "weights.h"

#include <cmath>
#include <cstring>

#include "../float_formats.h"

namespace inflight {

namespace {

constexpr int HALF_BYTES = HALF / 2;  // sixteen bytes hold 32 weights of 4 bits: the low bits are the first 16

template <class Group>
Group& group_of(unsigned char* out, int row, int num_groups, int g) {
  return ((Group*)out)[row / COLUMNS * num_groups + g];
}

template <class Group>
const Group& group_of(const unsigned char* out, int row, int num_groups, int g) {
  return ((const Group*)out)[row / COLUMNS * num_groups + g];
}

void pack_q4_half(const unsigned char* values, uint16_t scale, uint16_t minimum, Q4Group& group, int half, int column) {
  group.scales[half][column] = scale;
  group.minimums[half][column] = minimum;
  for (int i = 0; i < HALF_BYTES; i++) group.values[half][i / 4][column][i % 4] = values[i];
}

uint16_t read_u16(const unsigned char* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// -8 * x in float16: three more in the exponent, exact but for overflow; subnormals grow by shifting.
uint16_t times_minus_8(uint16_t x) {
  const uint16_t sign = (uint16_t)(~x & 0x8000);
  uint16_t magnitude = x & 0x7fff;
  for (int i = 0; i < 3; i++) {
    if (magnitude >= 0x7c00) break;
    magnitude = magnitude < 0x400 ? (uint16_t)(magnitude << 1) : (uint16_t)(magnitude + 0x400);
  }
  return sign | magnitude;
}

using HalfGroup = float[HALF];

// x -> H x, of which H / 32 is the inverse; see Basis.
void rotate(HalfGroup& x) {
  for (int step = 1; step < HALF; step *= 2)
    for (int i = 0; i < HALF; i += 2 * step)
      for (int j = i; j < i + step; j++) {
        const float sum = x[j] + x[j + step];
        x[j + step] = x[j] - x[j + step];
        x[j] = sum;
      }
}

void write_int8(const HalfGroup& whole, uint16_t scale, Int8Group& group, int half, int column) {
  group.scales[half][column] = scale;
  for (int i = 0; i < HALF; i++)
    group.values[half * HALF / 4 + i / 4][column][i % 4] = (uint8_t)(128 + (int)whole[i]);
}

// w are the half's plain weights.
void round_to_int8(HalfGroup& w, Int8Group& group, int half, int column) {
  rotate(w);
  float largest = 0, poison = 0;
  for (const float v : w) {
    largest = std::fmax(largest, std::fabs(v));
    poison += v * 0;  // 0, but NaN where a weight is not finite
  }
  const uint16_t scale = poison == 0 ? to_f16_upwards(largest / 127) : F16_NAN;  // so that it shows
  const float step = from_f16(scale);
  for (float& v : w) v = step > 0 ? std::nearbyint(v / step) : 0;
  write_int8(w, scale, group, half, column);
}

// w = scale * q + minimum. The minimum adds to the first rotated weight alone, 32 times; there it is rounded to the
// scale, an error of at most scale / 64 in each weight.
void pack_int8_from_4_bits(const unsigned char* values, uint16_t scale, uint16_t minimum, Int8Group& group, int half,
                           int column) {
  const float step = from_f16(scale), least = from_f16(minimum);
  HalfGroup w;
  for (int i = 0; i < HALF_BYTES; i++) {
    w[i] = (float)(values[i] & 15) - 8;
    w[i + HALF_BYTES] = (float)(values[i] >> 4) - 8;
  }
  rotate(w);
  w[0] += std::nearbyint(HALF * (least / step + 8));
  bool fits = step != 0 && std::isfinite(step) && std::isfinite(least);
  for (const float v : w) fits = fits && std::fabs(v) <= 127;
  if (fits) return write_int8(w, scale, group, half, column);
  for (int i = 0; i < HALF_BYTES; i++) {
    w[i] = step * (float)(values[i] & 15) + least;
    w[i + HALF_BYTES] = step * (float)(values[i] >> 4) + least;
  }
  round_to_int8(w, group, half, column);
}

}  // namespace

void Weights::read(int output, float* out) const {
  const int column = output % COLUMNS;
  for (int h = 0; h * HALF < num_inputs; h++) {
    const int g = h / 2, half = h % 2;
    HalfGroup w;
    if (format == WeightFormat::INT8) {
      const auto& group = group_of<Int8Group>(groups, output, num_groups(), g);
      const float step = from_f16(group.scales[half][column]) / HALF;
      for (int i = 0; i < HALF; i++)
        w[i] = step * (float)((int)group.values[half * HALF / 4 + i / 4][column][i % 4] - 128);
      rotate(w);
    } else {
      const auto& group = group_of<Q4Group>(groups, output, num_groups(), g);
      const float step = from_f16(group.scales[half][column]), least = from_f16(group.minimums[half][column]);
      for (int i = 0; i < HALF_BYTES; i++) {
        const uint8_t both = group.values[half][i / 4][column][i % 4];
        w[i] = step * (float)(both & 15) + least;
        w[i + HALF_BYTES] = step * (float)(both >> 4) + least;
      }
    }
    const int left = num_inputs - h * HALF;
    std::memcpy(out + h * HALF, w, sizeof(float) * (left < HALF ? left : HALF));
  }
}

namespace {

// Calls pack(row, index of the half, group, half of the group, column) for each half that there is, and fill_rest for
// the others of the last group and block, which hold no weights.
template <class Group, class Pack, class FillRest>
void pack_halves(int count, int num_inputs, unsigned char* out, Pack pack, FillRest fill_rest) {
  const int num_groups = ceil_div(num_inputs, GROUP), padded = ceil_div(count, COLUMNS) * COLUMNS;
#pragma omp parallel for schedule(static, COLUMNS)
  for (int row = 0; row < padded; row++)
    for (int h = 0; h < 2 * num_groups; h++) {
      Group& group = group_of<Group>(out, row, num_groups, h / 2);
      if (row < count && h * HALF < num_inputs)
        pack(row, h, group, h % 2, row % COLUMNS);
      else
        fill_rest(group, h % 2, row % COLUMNS);
    }
}

void fill_int8(Int8Group& group, int half, int column) { write_int8({}, 0, group, half, column); }

void fill_q4(Q4Group& group, int half, int column) {
  static const unsigned char zeros[HALF_BYTES] = {};
  pack_q4_half(zeros, 0, 0, group, half, column);
}

// GGUF's blocks of 32 weights: a float16 scale, in Q4_1 a float16 minimum, then the 4-bit numbers.
struct Block {
  uint16_t scale, minimum;
  const unsigned char* values;
};

Block block_at(BlockFormat format, const unsigned char* rows, int num_inputs, int row, int h) {
  const unsigned char* p = rows + ((size_t)row * (num_inputs / HALF) + h) * block_bytes(format);
  const uint16_t scale = read_u16(p);
  if (format == BlockFormat::Q4_0) return {scale, times_minus_8(scale), p + 2};
  return {scale, read_u16(p + 2), p + 4};
}

}  // namespace

void pack_int8(const float* rows, int count, int num_inputs, unsigned char* out) {
  const auto pack = [&](int row, int h, Int8Group& group, int half, int column) {
    HalfGroup w = {};
    const int left = num_inputs - h * HALF;
    std::memcpy(w, rows + (size_t)row * num_inputs + h * HALF, sizeof(float) * (left < HALF ? left : HALF));
    round_to_int8(w, group, half, column);
  };
  pack_halves<Int8Group>(count, num_inputs, out, pack, fill_int8);
}

void pack_blocks(WeightFormat format, BlockFormat from, const unsigned char* rows, int count, int num_inputs,
                 unsigned char* out) {
  if (format == WeightFormat::INT8) {
    const auto pack = [&](int row, int h, Int8Group& group, int half, int column) {
      const Block block = block_at(from, rows, num_inputs, row, h);
      pack_int8_from_4_bits(block.values, block.scale, block.minimum, group, half, column);
    };
    return pack_halves<Int8Group>(count, num_inputs, out, pack, fill_int8);
  }
  const auto pack = [&](int row, int h, Q4Group& group, int half, int column) {
    const Block block = block_at(from, rows, num_inputs, row, h);
    pack_q4_half(block.values, block.scale, block.minimum, group, half, column);
  };
  pack_halves<Q4Group>(count, num_inputs, out, pack, fill_q4);
}

}  // namespace inflight
