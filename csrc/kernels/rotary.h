// Rotary positions.
#pragma once

namespace {

// x [head_dim], half-split, turned by angles: cos [head_dim / 2], then sin; times scale. In place, or not.
void rotate(const float* x, const float* angles, float scale, int head_dim, float* out) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += LANES) {
    const F left = load(x + i), right = load(x + half + i), cos = load(angles + i), sin = load(angles + half + i);
    store(out + i, mul(sub(mul(left, cos), mul(right, sin)), fill(scale)));
    store(out + half + i, mul(add(mul(right, cos), mul(left, sin)), fill(scale)));
  }
}

}  // namespace
