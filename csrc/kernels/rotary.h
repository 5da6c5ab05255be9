// Rotary positions, and the writing of keys and values into a page of the cache.
#pragma once
#include "../kv.h"

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

inline uint32_t to_bfloat16(float x) {  // nearest, ties to even; any NaN becomes the quiet one
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? rounded : 0x7fc0;
}

void store_float32(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
  float* keys = (float*)page + token;
  for (int d = 0; d < head_dim; d++) keys[d * PAGE] = key[d];
  __builtin_memcpy((float*)page + (PAGE + token) * head_dim, value, sizeof(float) * head_dim);
}

void store_bfloat16(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
  uint32_t* keys = (uint32_t*)page + token;
  for (int d = 0; d < head_dim; d += 2) keys[d / 2 * PAGE] = to_bfloat16(key[d]) | to_bfloat16(key[d + 1]) << 16;
  uint32_t* values = (uint32_t*)page + (PAGE + token) * head_dim / 2;
  for (int j = 0; j < head_dim; j += 32)
    for (int i = 0; i < 16; i++)
      values[j / 2 + i] = to_bfloat16(value[j + i]) | to_bfloat16(value[j + 16 + i]) << 16;
}

// KV_GROUP numbers -> int8, scale = largest magnitude / 127; NaN where one is not finite.
inline float quantize_kv(const float* x, int8_t* out) {
  F top = zero(), poison = zero();
  for (int i = 0; i < KV_GROUP; i += LANES) {
    top = larger(magnitude(load(x + i)), top);
    poison = fma(load(x + i), zero(), poison);
  }
  const float largest_value = largest(top);
  const bool empty = !(largest_value > 1e-36f);
  const F inverse = fill(empty ? 0.0f : 127.0f / largest_value);
  for (int i = 0; i < KV_GROUP; i += LANES)
    store_i8(out + i, to_int(smaller(fill(127.0f), larger(fill(-127.0f), mul(load(x + i), inverse)))));
  return (empty ? 0.0f : largest_value / 127.0f) + sum(poison);
}

void store_int8(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
  int8_t* numbers = (int8_t*)page;
  float* scales = (float*)(page + 2 * PAGE * head_dim) + token;
  for (int d = 0; d < head_dim; d += KV_GROUP) {
    int8_t quantized[KV_GROUP];
    scales[d / KV_GROUP * PAGE] = quantize_kv(key + d, quantized);
    for (int i = 0; i < KV_GROUP; i++) numbers[(d + i) * PAGE + token] = quantized[i];
    scales[(head_dim + d) / KV_GROUP * PAGE] = quantize_kv(value + d, numbers + (PAGE + token) * head_dim + d);
  }
}

}  // namespace
