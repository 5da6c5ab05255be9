// Rows of float32 -> groups of int8: scale = largest magnitude / 127, ties to even. A NaN makes its group's scale NaN,
// an infinity too, so that neither is lost.
#pragma once
#include "../formats.h"
#include "hadamard.h"

namespace {

using inflight::ActivationGroup;
using inflight::Basis;
using inflight::GROUP;

constexpr int GROUP_VECTORS = GROUP / LANES;
using Group = F[GROUP_VECTORS];

// Both halves of a group times H / 32; see Basis.
inline void rotate_halves(Group& x) {
  static_assert(2 * 2 * LANES == GROUP, "a half is two vectors");
  for (int i = 0; i < GROUP_VECTORS; i += 2) hadamard(x + i);
  for (F& v : x) v = mul(v, fill(1.0f / 32));
}

template <int N>
inline I swap_lanes_i(I a) {
  return as_int(swap_lanes<N>(as_float(a)));
}

template <Basis B>
inline void quantize_group(Group& x, ActivationGroup& out) {
  if (B == Basis::ROTATED) rotate_halves(x);
  // Of numbers without a sign, the bits of the larger are the larger whole number, and a NaN's exceed all others.
  I top = as_int(magnitude(x[0]));
  for (int i = 1; i < GROUP_VECTORS; i++) top = larger_i(top, as_int(magnitude(x[i])));
  top = larger_i(top, swap_lanes_i<8>(top));
  top = larger_i(top, swap_lanes_i<4>(top));
  top = larger_i(top, swap_lanes_i<2>(top));
  const float largest = first(as_float(larger_i(top, swap_lanes_i<1>(top))));
  // A magnitude whose inverse is not a float32 is a zero to every product; what is not finite makes the scale NaN.
  const bool empty = largest <= 1e-36f;
  const F inverse = fill(empty ? 0.0f : 127.0f / largest);
  out.scale = empty ? 0.0f : largest / 127.0f + largest * 0.0f;
  for (int i = 0; i < GROUP_VECTORS; i++) store_i8(out.values + i * LANES, to_int(mul(x[i], inverse)));
  // Four neighbouring values to a lane, then the eight lanes of each half.
  I sums = dot(fill_i(0), fill_i(0x01010101), load_i(out.values));
  sums = add_i(sums, swap_lanes_i<4>(sums));
  sums = add_i(sums, swap_lanes_i<2>(sums));
  sums = add_i(sums, swap_lanes_i<1>(sums));
  alignas(64) int32_t totals[LANES];
  store_i(totals, sums);
  for (int h = 0; h < 2; h++)
    if (B == Basis::PLAIN)
      out.sums[h] = (float)totals[h * LANES / 2];
    else
      out.offsets[h] = -128 * totals[h * LANES / 2];
}

// n inputs, zeros after them up to a whole group.
inline F load_padded(const float* x, int at, int n) {
  if (at + LANES <= n) return load(x + at);
  float padded[LANES] = {};
  for (int i = at; i < n; i++) padded[i - at] = x[i];
  return load(padded);
}

template <Basis B>
void quantize(const float* x, int n, ActivationGroup* out) {
  for (int g = 0; g * GROUP < n; g++) {
    Group group;
    for (int i = 0; i < GROUP_VECTORS; i++) group[i] = load_padded(x, g * GROUP + i * LANES, n);
    quantize_group<B>(group, out[g]);
  }
}

// x / sqrt(mean(x^2) + eps) * weight, then quantized (Zhang and Sennrich, arXiv:1910.07467).
template <Basis B>
void rms_norm_quantize(const float* x, const float* weight, float eps, int n, ActivationGroup* out) {
  F squares = zero();
  for (int i = 0; i < n; i += LANES) {
    const F v = load_padded(x, i, n);
    squares = fma(v, v, squares);
  }
  const F factor = fill(1.0f / __builtin_sqrtf(sum(squares) / (float)n + eps));
  for (int g = 0; g * GROUP < n; g++) {
    Group group;
    for (int i = 0; i < GROUP_VECTORS; i++) {
      const int at = g * GROUP + i * LANES;
      group[i] = mul(mul(load_padded(x, at, n), factor), load_padded(weight, at, n));
    }
    quantize_group<B>(group, out[g]);
  }
}

}  // namespace
