// float16 in plain C++, for what is not on the path of a step.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace inflight {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = (float)fraction * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

constexpr uint16_t F16_NAN = 0x7e00;

// The smallest float16 that is not below x >= 0; infinity if there is none.
inline uint16_t to_f16_upwards(float x) {
  if (!(x <= 65504.0f)) return 0x7c00;
  if (x < 0x1p-14f) return (uint16_t)std::ceil(x * 0x1p24f);  // subnormal, or the first that is not
  return (uint16_t)(((to_bits(x) + 0x1fff) >> 13) - (112 << 10));
}

}  // namespace inflight
