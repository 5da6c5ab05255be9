// What the formats with scales share: groups of KV_GROUP neighbouring numbers of a token, in a basis of their own, with
// one bfloat16 scale.
//
// A group is stored as H x / 32, where H is the Hadamard matrix of 32 rows: an outlier is spread over its group, and
// the others lose less to rounding (Ashkboos et al., arXiv:2404.00456). Attention turns queries to H q, which leaves
// their products with keys as they are, and turns its outcome back: H (H v / 32) = v.
//
// A scale is rounded upwards, so that no number of its group leaves the range of the integers; it has all magnitudes of
// float32. A group that holds a NaN or an infinity has the scale NaN, and gives NaN to whoever reads it. A group of
// magnitudes below SMALLEST has the scale 0.
#pragma once
#include "../kv.h"
#include "hadamard.h"

namespace {

using inflight::KV_GROUP;
using inflight::PAGE;
static_assert(KV_GROUP == 2 * LANES, "a group is two vectors");

constexpr float SMALLEST = 0x1p-100f;  // so that neither a scale nor its inverse is subnormal

// x [KV_GROUP] -> the group / scale, where the scale is its largest magnitude / `largest_integer`; returns the scale.
inline uint16_t scale_group(const float* x, float largest_integer, F* scaled) {
  for (int i = 0; i < 2; i++) scaled[i] = mul(load(x + i * LANES), fill(1.0f / 32));  // first, so that no sum overflows
  hadamard(scaled);
  const float top = largest(larger(magnitude(scaled[0]), magnitude(scaled[1])));
  const float poison = sum(fma(scaled[0], zero(), mul(scaled[1], zero())));  // 0, or NaN
  const float scale = top < SMALLEST ? 0.0f : top / largest_integer;
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, 4);
  bits = poison == 0.0f ? (bits + 0xffff) & 0xffff0000 : 0x7fc00000;
  float rounded;
  __builtin_memcpy(&rounded, &bits, 4);
  const F inverse = fill(bits == 0 ? 0.0f : 1.0f / rounded);
  for (int i = 0; i < 2; i++) scaled[i] = mul(scaled[i], inverse);
  return (uint16_t)(bits >> 16);
}

// The scales of PAGE tokens for the group of dimension d, after a side's numbers.
template <class Format>
inline F load_scales(const unsigned char* side, int head_dim, int d) {
  return load_bf16((const uint16_t*)(side + Format::LAYOUT.number_bytes(PAGE * head_dim)) + d / KV_GROUP * PAGE);
}

// Stores the scales of a key or a value x [head_dim]; `write(scaled, d)` stores the numbers of the group at d.
template <class Format, class Write>
inline void store_groups(const float* x, int head_dim, int token, unsigned char* side, Write write) {
  uint16_t* scales = (uint16_t*)(side + Format::LAYOUT.number_bytes(PAGE * head_dim)) + token;
  for (int d = 0; d < head_dim; d += KV_GROUP) {
    F scaled[2];
    scales[d / KV_GROUP * PAGE] = scale_group(x + d, Format::LARGEST, scaled);
    write(scaled, d);
  }
}

}  // namespace
