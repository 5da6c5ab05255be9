// The likeliest token of a row of logits.
#pragma once

namespace {

int argmax(const float* x, int n) {
  F best = fill(-__builtin_inff()), poison = zero();
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    const F v = load(x + i);
    best = larger(v, best);
    poison = fma(v, zero(), poison);
  }
  float top = largest(best), bad = sum(poison);
  for (; i < n; i++) {
    if (x[i] > top) top = x[i];
    bad += x[i] * 0.0f;
  }
  if (!(bad == 0.0f)) return -1;
  for (i = 0; i < n; i++)
    if (x[i] == top) return i;
  return -1;
}

}  // namespace
