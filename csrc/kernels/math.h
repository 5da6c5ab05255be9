// exp and what is built of it, from the primitives that each instruction set gives.
#pragma once

namespace {

// e**x to about 1 unit in the last place; 0 below -103.97, infinity above 88.72. Cody and Waite's reduction to
// |r| <= ln(2) / 2, then a polynomial of degree 6 fitted to the least relative error there, 4e-9.
inline F exp(F x) {
  x = larger(fill(-104.0f), smaller(fill(89.0f), x));  // a NaN in x stays
  F n = round_even(mul(x, fill(1.44269504088896341f)));
  F r = fma(n, fill(-0.693145751953125f), x);
  r = fma(n, fill(-1.42860682e-6f), r);
  F p = fill(1.38145394e-3f);
  p = fma(p, r, fill(8.36874545e-3f));
  p = fma(p, r, fill(4.16683890e-2f));
  p = fma(p, r, fill(1.66665211e-1f));
  p = fma(p, r, fill(4.99999940e-1f));
  p = fma(p, r, fill(1.0f));
  p = fma(p, r, fill(1.0f));
  return times_power_of_two(p, n);
}

// x / (1 + e**-x), to about 2 units in the last place.
inline F silu(F x) {
  const F d = add(fill(1.0f), exp(smaller(fill(87.0f), sub(zero(), x))));  // so that 1 / d is a normal number
  F inverse = near_inverse(d);
  inverse = mul(inverse, fma(sub(zero(), d), inverse, fill(2.0f)));  // a step of Newton's doubles the right bits
  return mul(x, inverse);
}

}  // namespace
